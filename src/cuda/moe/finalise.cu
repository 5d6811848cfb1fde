// SPDX-License-Identifier: Apache-2.0
// Launches of the experts' last step, with or without the residual update.
#include <array>
#include <utility>

#include "cuda/combine/combine_plan.h"
#include "cuda/cuda_kernels.h"
#include "cuda/moe/finalise_kernel.cuh"
#include "cuda/moe/moe_parts.h"

namespace tessera::cuda::moe {
namespace {

constexpr int kPlainThreads = 64;  // one row is spread over several multiprocessors

/// The released model adds up eleven results. BF16 ones come from the fast kernels.
template <class Result>
constexpr int results_ahead(int threads) {
  constexpr int kAll = 12, kSome = 4, kFew = 2, kFewRegisters = 512;
  if (threads > kFewRegisters) return kFew;
  return sizeof(Result) == sizeof(device::Bf16) ? kAll : kSome;
}

template <class ResultType>
struct PlainTile {
  using Result = ResultType;
  static constexpr int kThreads = kPlainThreads;
  static constexpr int kAhead = results_ahead<Result>(kThreads);
};
template <class ResultType, size_t kIndex>
struct CombineTileOf {
  using Result = ResultType;
  static constexpr int kThreads = kCombineTiles[kIndex].threads;
  static constexpr int kAhead = results_ahead<Result>(kThreads);
};

using CombineKernel = void (*)(device::FinaliseArgs, ops::CombineArgs);
template <class Result, size_t... kIndices>
constexpr auto combine_table(std::index_sequence<kIndices...>) {
  return std::array<CombineKernel, sizeof...(kIndices)>{
      device::finalise_combine<CombineTileOf<Result, kIndices>>...};
}

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>((items + kPlainThreads - 1) / kPlainThreads);
}

/// The rows of a block of a CombineArgs over the whole launch.
ops::CombineArgs combine_rows(const RowBlock& block) {
  ops::CombineArgs part = *block.args.combine;
  const size_t row_values = static_cast<size_t>(part.branches) * static_cast<size_t>(part.hidden);
  const size_t skipped = static_cast<size_t>(block.first) * row_values * dtype_bytes(DType::kBF16);
  part.wide = static_cast<std::byte*>(part.wide) + skipped;
  if (part.normed != nullptr) part.normed = static_cast<std::byte*>(part.normed) + skipped;
  part.out = block.out();
  part.inject += static_cast<size_t>(block.first) * static_cast<size_t>(part.branches);
  part.rows = block.rows;
  return part;
}

template <class Result>
void finalise_vectors(Context& context, const RowBlock& block, const device::FinaliseArgs& args) {
  if (block.args.combine == nullptr) {
    launch(context,
           {.grid = {blocks_for(int64_t{args.rows} * (args.hidden / device::kVectorBf16))},
            .block = {kPlainThreads}},
           device::finalise<PlainTile<Result>>, args);
    return;
  }
  static const auto kKernels =
      combine_table<Result>(std::make_index_sequence<kCombineTiles.size()>());
  const ops::CombineArgs combine = combine_rows(block);
  const auto tile = static_cast<size_t>(plan_combine(args.hidden));
  const auto blocks = static_cast<unsigned>(args.rows) * static_cast<unsigned>(combine.branches);
  launch(context, {.grid = {blocks}, .block = {static_cast<unsigned>(kCombineTiles[tile].threads)}},
         kKernels[tile], args, combine);
}

}  // namespace

void finalise(Context& context, const RowBlock& block, const void* results, ResultType type,
              const int32_t* places) {
  const device::FinaliseArgs args{.results = results,
                                  .places = places,
                                  .weights = block.weights(),
                                  .shared_logit = block.shared_logit(),
                                  .out = static_cast<device::Bf16*>(block.out()),
                                  .rows = block.rows,
                                  .top_k = block.shape.top_k,
                                  .hidden = block.shape.hidden};
  if (plan_combine(args.hidden) >= 0) {
    if (type == ResultType::kFloat) return finalise_vectors<float>(context, block, args);
    return finalise_vectors<device::Bf16>(context, block, args);
  }
  // Odd sizes only come here from the generic kernels, whose results are FP32.
  launch(context,
         {.grid = {blocks_for(int64_t{args.rows} * args.hidden)}, .block = {kPlainThreads}},
         device::finalise_scalar<PlainTile<float>>, args);
  if (block.args.combine != nullptr) launch_combine(context, combine_rows(block));
}

}  // namespace tessera::cuda::moe
