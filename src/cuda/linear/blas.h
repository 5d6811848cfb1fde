// SPDX-License-Identifier: Apache-2.0
// cuBLASLt, opened at run time, with one algorithm per weight shape: a row of a product has the
// same bits whatever rows share the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::cuda {

/// What an algorithm is chosen for.
struct GemmShape {
  int out_features = 0;
  int in_features = 0;
  int y_stride = 0;  // elements from one row of y to the next
  bool float_output = false;

  auto operator<=>(const GemmShape&) const = default;
};

struct GemmCall {
  GemmShape shape;
  const void* x = nullptr;       // [rows, in_features] BF16
  const void* weight = nullptr;  // [out_features, in_features] BF16
  void* y = nullptr;             // [rows, y_stride], BF16 or FP32
  int rows = 0;
  void* workspace = nullptr;  // kWorkspaceBytes
  cudaStream_t stream = nullptr;
};

class PinnedGemm {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  /// One per device, made on first use, kept until the process ends.
  static PinnedGemm& of_current_device();

  /// Empty when products can be run, else why not.
  std::string_view refusal() const { return refusal_; }
  /// Empty when this shape has an algorithm (chosen now if need be), else why not.
  std::string_view refusal(const GemmShape& shape);
  /// y = x W^T. Only for shapes without a refusal.
  void run(const GemmCall& call);

  ~PinnedGemm();
  PinnedGemm(const PinnedGemm&) = delete;
  PinnedGemm& operator=(const PinnedGemm&) = delete;

 private:
  struct State;
  PinnedGemm();

  std::unique_ptr<State> state_;
  std::string refusal_{};
};

}  // namespace tessera::cuda
