// SPDX-License-Identifier: Apache-2.0
// Copies of the CUDA tests.
#include "cuda/cuda_fixture.h"

#include <algorithm>

#include "cuda/check.h"
#include "cuda/cuda_backend.h"

namespace tessera::test {
namespace {

size_t scale_count(const ops::LinearWeight& weight) {
  const int rows = (weight.out_features + ops::kScaleBlock - 1) / ops::kScaleBlock;
  return static_cast<size_t>(rows) * static_cast<size_t>(weight.scale_cols());
}

}  // namespace

void CudaTest::SetUp() {
  const std::string reason = cuda::why_unusable(cuda::Options{}.device);
  if (!reason.empty()) GTEST_SKIP() << reason;
  world_ = std::make_unique<bench::World>();
}

void* CudaTest::upload_bf16(std::span<const float> values) {
  std::vector<uint16_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), float_to_bf16);
  return world_->copy(bits);
}

std::vector<float> CudaTest::read_bf16(const void* device, size_t count) {
  const auto bits = read(static_cast<const uint16_t*>(device), count);
  std::vector<float> values(count);
  std::transform(bits.begin(), bits.end(), values.begin(), bf16_to_float);
  return values;
}

std::vector<float> CudaTest::read_floats(const float* device, size_t count) {
  return read(device, count);
}

ops::LinearWeight CudaTest::upload(const ops::LinearWeight& host) {
  ops::LinearWeight device = host;
  std::byte* data = world_->bytes(host.bytes());
  world_->copy_in(data, host.data, host.bytes());
  device.data = data;
  if (host.scale != nullptr)
    device.scale = world_->copy(std::span<const float>(host.scale, scale_count(host)));
  return device;
}

std::vector<float> CudaTest::read_weight(const ops::LinearWeight& device) {
  const size_t ins = static_cast<size_t>(device.in_features);
  const size_t count = static_cast<size_t>(device.out_features) * ins;
  if (device.dtype == DType::kF32)
    return read_floats(static_cast<const float*>(device.data), count);
  if (device.dtype == DType::kBF16) return read_bf16(device.data, count);
  const auto codes = read(static_cast<const uint8_t*>(device.data), count);
  const auto scales = read_floats(device.scale, scale_count(device));
  const auto scale_cols = static_cast<size_t>(device.scale_cols());
  std::vector<float> values(count);
  for (size_t at = 0; at < count; ++at) {
    const size_t row = at / ins / ops::kScaleBlock, col = at % ins / ops::kScaleBlock;
    values[at] = f8e4m3_to_float(codes[at]) * scales[row * scale_cols + col];
  }
  return values;
}

void CudaTest::synchronize() { cuda::check(cudaStreamSynchronize(world_->stream())); }

}  // namespace tessera::test
