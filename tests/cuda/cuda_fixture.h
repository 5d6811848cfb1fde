// SPDX-License-Identifier: Apache-2.0
// Base of the tests of single CUDA kernels: a context with device buffers, and copies between host
// floats and device activations. Skips itself where there is no device.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "bench/cuda/world.h"
#include "cpu/op_fixture.h"
#include "cuda/context.h"

namespace tessera::test {

class CudaTest : public testing::Test {
 protected:
  void SetUp() override;

  /// Random device buffers in the shapes of the model.
  bench::World& world() { return *world_; }
  /// Launchers of cuda_kernels.h, and kernels of their own, run on this.
  cuda::Context& context() { return world_->context(); }

  /// Rounded to BF16.
  void* upload_bf16(std::span<const float> values);
  std::vector<float> read_bf16(const void* device, size_t count);
  std::vector<float> read_floats(const float* device, size_t count);
  template <class T>
  std::vector<T> read(const T* device, size_t count) {
    std::vector<T> values(count);
    world_->copy_out(values.data(), device, count * sizeof(T));
    return values;
  }
  /// Device copy of a host weight.
  ops::LinearWeight upload(const ops::LinearWeight& host);
  /// Host floats of device weights of any type, scales applied.
  std::vector<float> read_weight(const ops::LinearWeight& device);
  /// Errors of kernels launched so far become failures here.
  void synchronize();

 private:
  std::unique_ptr<bench::World> world_{};
};

}  // namespace tessera::test
