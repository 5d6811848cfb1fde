// SPDX-License-Identifier: Apache-2.0
// The experts of a layer as kernels address them: one base and one distance per matrix instead of a
// table of pointers, so that a launch needs no device-side table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "ops/weight.h"

namespace tessera::cuda::moe {

/// The same matrix of every expert.
struct MatrixStack {
  const std::byte* data = nullptr;  // [experts] matrices, `stride` bytes apart
  const float* scale = nullptr;     // kF8E4M3: [experts] grids of scales, `scale_stride` apart
  ptrdiff_t stride = 0;             // bytes
  ptrdiff_t scale_stride = 0;       // floats
  int scale_cols = 0;
};

struct ExpertStack {
  MatrixStack gate, up, down;
  DType dtype = DType::kBF16;
};

/// Throws std::logic_error unless the matrices are equally spaced and of one type and size.
template <class Matrix>
MatrixStack stack_matrix(std::span<const ops::ExpertWeight> experts, Matrix&& matrix) {
  const ops::LinearWeight& first = matrix(experts[0]);
  MatrixStack stack{.data = static_cast<const std::byte*>(first.data),
                    .scale = first.scale,
                    .scale_cols = first.scale_cols()};
  if (experts.size() > 1) {
    const ops::LinearWeight& second = matrix(experts[1]);
    stack.stride = static_cast<const std::byte*>(second.data) - stack.data;
    if (first.scale != nullptr) stack.scale_stride = second.scale - first.scale;
  }
  for (size_t index = 0; index < experts.size(); ++index) {
    const ops::LinearWeight& weight = matrix(experts[index]);
    const auto place = static_cast<ptrdiff_t>(index);
    const bool scaled = first.scale != nullptr;
    if (weight.data != stack.data + place * stack.stride || weight.dtype != first.dtype ||
        weight.out_features != first.out_features || weight.in_features != first.in_features ||
        (weight.scale != nullptr) != scaled ||
        (scaled && weight.scale != first.scale + place * stack.scale_stride))
      throw std::logic_error("experts of a layer must be equally spaced in device memory");
  }
  return stack;
}

inline ExpertStack stack_experts(std::span<const ops::ExpertWeight> experts) {
  if (experts.empty()) return {};
  using Expert = ops::ExpertWeight;
  const auto gate = [](const Expert& expert) -> const ops::LinearWeight& { return expert.gate; };
  const auto up = [](const Expert& expert) -> const ops::LinearWeight& { return expert.up; };
  const auto down = [](const Expert& expert) -> const ops::LinearWeight& { return expert.down; };
  const DType dtype = experts[0].gate.dtype;
  if (experts[0].up.dtype != dtype || experts[0].down.dtype != dtype)
    throw std::logic_error("the matrices of an expert must be of one type");
  return {.gate = stack_matrix(experts, gate),
          .up = stack_matrix(experts, up),
          .down = stack_matrix(experts, down),
          .dtype = dtype};
}

}  // namespace tessera::cuda::moe
