// SPDX-License-Identifier: Apache-2.0
// The prefill path: products of many rows through cuBLASLt. E4M3 weights become BF16 first, some
// rows of the weight at a time.
#include "cuda/linear/gemm.h"

#include <algorithm>

#include "cuda/device/bf16.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/linear/blas.h"
#include "cuda/linear/linear_plan.h"

namespace tessera::cuda {
namespace {

/// Owner of the library's workspace and of the decoded weights, and how many bytes these may take.
constexpr char kWorkspaceTag = 0;
constexpr char kDecodedTag = 0;
constexpr size_t kDecodedBytes = size_t{32} << 20;

struct DecodeArgs {
  const std::byte* codes = nullptr;  // [rows, in_features] E4M3
  const float* scale = nullptr;      // of row 0 of the matrix; nullptr: 1
  device::Bf16* out = nullptr;       // [rows, in_features]
  int first_row = 0;                 // of `codes` in the matrix
  int rows = 0;
  int in_features = 0;
  int scale_cols = 0;
};

struct DecodeConfig {
  static constexpr int kThreads = 256;
  static constexpr int kElements = 8;  // per thread: 8 bytes in, 16 bytes out
};

/// w = fp8 * scale in FP32, rounded to BF16.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    decode_weight(const __grid_constant__ DecodeArgs args) {
  device::wait_for_inputs();  // the product before may still read `out`
  const size_t vector = size_t{blockIdx.x} * Config::kThreads + threadIdx.x;
  const size_t first = vector * Config::kElements;
  if (first >= static_cast<size_t>(args.rows) * args.in_features) return;
  const int row = static_cast<int>(first / args.in_features);
  const int col = static_cast<int>(first % args.in_features);
  // Eight elements from a multiple of eight lie in one row and in one scale block.
  const uint2 codes = *reinterpret_cast<const uint2*>(args.codes + first);
  const size_t scale_row = static_cast<size_t>((args.first_row + row) / ops::kScaleBlock);
  const float scale = args.scale == nullptr
                          ? 1.0F
                          : args.scale[scale_row * args.scale_cols + col / ops::kScaleBlock];
  const uint2 low = device::f8x4_to_bf16x4(codes.x), high = device::f8x4_to_bf16x4(codes.y);
  float values[Config::kElements];
  device::unpack_bf16x8({low.x, low.y, high.x, high.y}, values);
#pragma unroll
  for (float& value : values) value *= scale;
  *reinterpret_cast<uint4*>(args.out + first) = device::pack_bf16x8(values);
}

void launch_decode(Context& context, const DecodeArgs& args) {
  const size_t elements = static_cast<size_t>(args.rows) * static_cast<size_t>(args.in_features);
  constexpr size_t kPerBlock = size_t{DecodeConfig::kThreads} * DecodeConfig::kElements;
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>((elements + kPerBlock - 1) / kPerBlock)),
      .block = dim3(DecodeConfig::kThreads)};
  launch(context, shape, decode_weight<DecodeConfig>, args);
}

/// Weight rows of one product: all of them, or as many as the decoded ones have room for.
int rows_at_once(const ops::LinearWeight& weight) {
  if (weight.dtype == DType::kBF16) return weight.out_features;
  const size_t row_bytes = static_cast<size_t>(weight.in_features) * sizeof(device::Bf16);
  const auto room = static_cast<int>(kDecodedBytes / row_bytes);
  return std::min(weight.out_features, std::max(1, room / ops::kScaleBlock) * ops::kScaleBlock);
}

GemmShape shape_of(const ops::LinearWeight& weight, int out_features, ops::Output output) {
  return {.out_features = out_features,
          .in_features = weight.in_features,
          .y_stride = weight.out_features,
          .float_output = output == ops::Output::kFloat};
}

/// Empty when the library runs every piece of this product.
std::string_view refusal_of(const ops::LinearWeight& weight, const void* x, const void* y,
                            ops::Output output) {
  if (const std::string_view reason = supports_library(weight, x, y); !reason.empty())
    return reason;
  PinnedGemm& gemm = PinnedGemm::of_current_device();
  const int step = rows_at_once(weight), rest = weight.out_features % step;
  const std::string_view reason = gemm.refusal(shape_of(weight, step, output));
  return reason.empty() && rest != 0 ? gemm.refusal(shape_of(weight, rest, output)) : reason;
}

}  // namespace

void gemm_prefill(Context& context, const void* x, int rows, const ops::LinearWeight& weight,
                  void* y, ops::Output output) {
  if (rows == 0 || weight.out_features == 0) return;
  if (!refusal_of(weight, x, y, output).empty()) {
    const ops::LinearPart part{.weight = weight, .y = y, .output = output};
    return gemv_decode(context, x, rows, {&part, 1});
  }
  const int step = rows_at_once(weight);
  const size_t y_bytes = output == ops::Output::kFloat ? sizeof(float) : sizeof(device::Bf16);
  for (int first = 0; first < weight.out_features; first += step) {
    const int count = std::min(step, weight.out_features - first);
    const auto* stored = static_cast<const std::byte*>(weight.data) +
                         static_cast<size_t>(first) * weight.row_bytes();
    const void* decoded = stored;
    if (weight.dtype == DType::kF8E4M3) {
      auto* out = static_cast<device::Bf16*>(context.persistent(&kDecodedTag, kDecodedBytes));
      launch_decode(context, {.codes = stored,
                              .scale = weight.scale,
                              .out = out,
                              .first_row = first,
                              .rows = count,
                              .in_features = weight.in_features,
                              .scale_cols = weight.scale_cols()});
      decoded = out;
    }
    PinnedGemm::of_current_device().run(
        {.shape = shape_of(weight, count, output),
         .x = x,
         .weight = decoded,
         .y = static_cast<std::byte*>(y) + static_cast<size_t>(first) * y_bytes,
         .rows = rows,
         .workspace = context.persistent(&kWorkspaceTag, PinnedGemm::kWorkspaceBytes),
         .stream = context.stream()});
  }
}

}  // namespace tessera::cuda
