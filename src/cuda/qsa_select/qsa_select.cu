// SPDX-License-Identifier: Apache-2.0
// Launches the block selection: scores of all visible blocks, then the exact choice. Decoded rows
// in one pass, prompt rows in passes of bounded memory.
#include "cuda/cuda_kernels.h"
#include "cuda/qsa_select/choose_kernel.cuh"
#include "cuda/qsa_select/score_decode_kernel.cuh"
#include "cuda/qsa_select/score_generic_kernel.cuh"
#include "cuda/qsa_select/score_prefill_kernel.cuh"

namespace tessera::cuda {
namespace {

constexpr unsigned kGenericSplits = 8;  // blocks that share the keys of a row

/// Blocks that rows [row_begin, row_end) of the launch see at most. Reads lengths on the host.
int64_t host_visible(const ops::QsaSelectArgs& args, int row_begin, int row_end) {
  int64_t visible = 0;
  for (const ops::RowSpan& span : args.batch.spans) {
    const int last = std::min(row_end, span.row_begin + span.num_rows) - 1;
    if (last < std::max(row_begin, span.row_begin)) continue;
    visible = std::max(visible, (span.position + last - span.row_begin + 1) / args.shape.block);
  }
  return visible;
}

/// A recorded decode launch is repeated for longer sequences, so the model gives its limit.
int64_t capacity_of(const ops::QsaSelectArgs& args) {
  if (args.batch.role == ops::Role::kDecode && args.max_context > 0)
    return args.max_context / args.shape.block;
  return host_visible(args, 0, args.batch.num_rows);
}

void launch_scores(Context& context, const ops::QsaSelectArgs& args, const SelectPlan& plan,
                   const device::SelectLaunch& select) {
  const int rows = select.row_end - select.row_begin;
  const device::Batch& batch = context.batch();
  if (!plan.fast_scores) {
    launch(
        context,
        {.grid = dim3(static_cast<unsigned>(rows), kGenericSplits), .block = dim3(kScoreThreads)},
        device::score_any_rows, select, batch);
  } else if (args.batch.role == ops::Role::kDecode) {
    const auto blocks = static_cast<unsigned>(kDecodeScoreBlocksPerSm * context.gpu().num_sms);
    launch(context, {.grid = dim3(blocks), .block = dim3(device::DecodeScore::kThreads)},
           device::score_decode, select, batch);
  } else {
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    const int splits =
        prefill_splits(tiles, host_visible(args, select.row_begin, select.row_end), context.gpu());
    launch(context,
           {.grid = dim3(static_cast<unsigned>(splits), static_cast<unsigned>(tiles)),
            .block = dim3(kScoreThreads),
            .shared_bytes = sizeof(device::PrefillShared)},
           device::score_prefill, select, batch);
  }
}

void launch_choice(Context& context, const SelectPlan& plan, const device::SelectLaunch& select) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(select.row_end - select.row_begin)),
                          .block = dim3(kChooseThreads)};
  launch(context, shape, plan.fast_choice ? device::choose_blocks : device::choose_any_blocks,
         select, context.batch());
}

}  // namespace

void launch_qsa_select(Context& context, const ops::QsaSelectArgs& args) {
  if (args.batch.num_rows == 0) return;
  const SelectPlan plan = plan_select(args.shape, args.cache.index_keys, args.batch.role,
                                      args.batch.num_rows, capacity_of(args), args.budget_blocks);
  device::SelectLaunch select{.shape = args.shape,
                              .keys = args.cache.index_keys,
                              .queries = args.index_q,
                              .blocks = args.blocks,
                              .counts = args.counts,
                              .budget = args.budget_blocks,
                              .capacity = plan.capacity,
                              .stride = plan.stride};
  select.scores =
      static_cast<uint32_t*>(context.scratch(static_cast<size_t>(plan.scratch_bytes())));
  select.tops = select.scores + plan.num_scores();
  const bool decode = args.batch.role == ops::Role::kDecode;
  for (int row = 0; row < args.batch.num_rows; row += plan.rows_per_pass) {
    select.row_begin = row;
    select.row_end = std::min(row + plan.rows_per_pass, args.batch.num_rows);
    // What a decode launch will see is known on the device only, unless no length exceeds the
    // budget.
    const int64_t most =
        decode ? plan.capacity : host_visible(args, select.row_begin, select.row_end);
    if (most > args.budget_blocks) launch_scores(context, args, plan, select);
    launch_choice(context, plan, select);
  }
}

ops::KernelNote note_qsa_select(const GpuSpec&) {
  return {"qsa_select", "tensor core scores, choice by groups of 16",
          "4 index heads of 128, 16 blocks a page, budget up to 512; else generic kernels"};
}

}  // namespace tessera::cuda
