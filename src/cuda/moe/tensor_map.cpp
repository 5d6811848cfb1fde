// SPDX-License-Identifier: Apache-2.0
// Encoding of tensor maps through the driver.
#include "cuda/moe/tensor_map.h"

#include <cuda_runtime_api.h>

#include <array>
#include <stdexcept>
#include <string>

#include "cuda/check.h"
#include "cuda/moe/moe_plan.h"

namespace tessera::cuda::moe {
namespace {

constexpr ptrdiff_t kMapAlign = 16;  // of base and distances
constexpr int kGroupRows = 8;        // rows of gate, then as many of up
constexpr cuuint32_t kStepK = kGroupedStepK;

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encoder() {
  constexpr unsigned kSinceVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSinceVersion,
                                         cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr)
    throw std::runtime_error("the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<Encode>(function);
}

template <size_t kRank>
CUtensorMap encode(DType dtype, const std::byte* base, const std::array<cuuint64_t, kRank>& sizes,
                   const std::array<cuuint64_t, kRank - 1>& distances,
                   const std::array<cuuint32_t, kRank>& box) {
  static const Encode kEncode = find_encoder();
  std::array<cuuint32_t, kRank> steps{};
  steps.fill(1);
  CUtensorMap map{};
  // The encoder takes a pointer to mutable memory, but only stores the address.
  void* address = const_cast<std::byte*>(base);
  // The swizzle spans one row of a box.
  constexpr size_t kLine = 128;
  const bool whole_line = box[0] * dtype_bytes(dtype) == kLine;
  const CUresult status = kEncode(
      &map,
      dtype == DType::kF8E4M3 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      kRank, address, sizes.data(), distances.data(), box.data(), steps.data(),
      CU_TENSOR_MAP_INTERLEAVE_NONE,
      whole_line ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw std::runtime_error("cuTensorMapEncodeTiled failed with " + std::to_string(status));
  return map;
}

/// Distance between experts; a lone expert has none, but the encoder wants one.
cuuint64_t expert_distance(const MatrixStack& stack, size_t matrix_bytes) {
  return stack.stride == 0 ? matrix_bytes : static_cast<cuuint64_t>(stack.stride);
}

}  // namespace

std::string_view why_not_mapped(const ExpertStack& stack) {
  const auto aligned = [](const MatrixStack& matrix) {
    return reinterpret_cast<uintptr_t>(matrix.data) % kMapAlign == 0 &&
           matrix.stride % kMapAlign == 0 && matrix.stride >= 0;
  };
  if (!aligned(stack.gate) || !aligned(stack.up) || !aligned(stack.down))
    return "experts are not at distances of 16 bytes";
  return {};
}

std::string_view why_not_mapped_together(const ExpertStack& stack) {
  if (const std::string_view reason = why_not_mapped(stack); !reason.empty()) return reason;
  if (stack.up.data <= stack.gate.data || stack.up.stride != stack.gate.stride)
    return "up matrices do not follow their gate matrices";
  return {};
}

CUtensorMap map_gate_up(const ExpertStack& stack, int width, int hidden, int num_experts,
                        int tile_rows) {
  const size_t row_bytes = static_cast<size_t>(hidden) * dtype_bytes(stack.dtype);
  const size_t matrix_bytes = row_bytes * static_cast<size_t>(width);
  return encode<5>(
      stack.dtype, stack.gate.data,
      {static_cast<cuuint64_t>(hidden), kGroupRows, 2, static_cast<cuuint64_t>(width / kGroupRows),
       static_cast<cuuint64_t>(num_experts)},
      {row_bytes, static_cast<cuuint64_t>(stack.up.data - stack.gate.data), row_bytes * kGroupRows,
       expert_distance(stack.gate, matrix_bytes)},
      {kStepK, kGroupRows, 2, static_cast<cuuint32_t>(tile_rows / (2 * kGroupRows)), 1});
}

CUtensorMap map_down(const ExpertStack& stack, int width, int hidden, int num_experts,
                     int tile_rows) {
  const size_t row_bytes = static_cast<size_t>(width) * dtype_bytes(stack.dtype);
  const size_t matrix_bytes = row_bytes * static_cast<size_t>(hidden);
  return encode<3>(stack.dtype, stack.down.data,
                   {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(hidden),
                    static_cast<cuuint64_t>(num_experts)},
                   {row_bytes, expert_distance(stack.down, matrix_bytes)},
                   {kStepK, static_cast<cuuint32_t>(tile_rows), 1});
}

CUtensorMap map_slices(const MatrixStack& stack, DType dtype, int rows, int depth, int num_experts,
                       int slices) {
  const size_t row_bytes = static_cast<size_t>(depth) * dtype_bytes(dtype);
  constexpr size_t kSlice = StreamGeometry::kSliceBytes;
  const auto elements = static_cast<cuuint32_t>(kSlice / dtype_bytes(dtype));
  // NOTE: slices lie closer together than rows: distances need not ascend.
  return encode<4>(
      dtype, stack.data,
      {elements, static_cast<cuuint64_t>(rows), row_bytes / kSlice,
       static_cast<cuuint64_t>(num_experts)},
      {row_bytes, kSlice, expert_distance(stack, row_bytes * static_cast<size_t>(rows))},
      {elements, StreamGeometry::kHalfRows, static_cast<cuuint32_t>(slices), 1});
}

}  // namespace tessera::cuda::moe
