// SPDX-License-Identifier: Apache-2.0
// The small steps of a round: which draws are text, the draft layer's rows, the next rows.
//
// They write what a copy brings in other launches: spans, ids, positions, sources, settings. That
// needs no edge of its own. Every kernel reads those after wait_for_inputs() only, and no kernel
// ends before its own wait, so whoever reads them, however early it was started, comes after all
// kernels before it.
#pragma once

#include "cuda/device/clock.cuh"
#include "cuda/device/copy_row.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/reduce.cuh"
#include "ops/round.h"

namespace tessera::cuda::device {

inline constexpr int kRoundAxes = 3;  // of a position

/// What goes on from a draw, also from one that failed.
__device__ __forceinline__ int32_t token_of(const ops::SampledToken& drawn) {
  return drawn.status == ops::SampleStatus::kDrawn ? drawn.token : 0;
}

__device__ __forceinline__ void set_position(int32_t* positions, int row, int64_t position) {
#pragma unroll
  for (int axis = 0; axis < kRoundAxes; ++axis)
    positions[row * kRoundAxes + axis] = static_cast<int32_t>(position);
}

__device__ __forceinline__ bool is_stop(const ops::RoundSequence& sequence, int32_t token) {
  bool found = false;
  for (int stop = 0; stop < sequence.num_stops; ++stop)
    found |= sequence.stops[static_cast<size_t>(stop)] == token;
  return found;
}

struct Verdict {
  int kept;
  bool ended;
};

/// Lane l judges row l as if all rows before it were text; the first that is the last one decides.
/// All lanes of a warp; the span has rows.
__device__ __forceinline__ Verdict judge(const ops::RoundState& state, const ops::RowSpan& span,
                                         const ops::RoundSequence& sequence) {
  static_assert(ops::kMaxRoundDrafts < kWarp);
  const int inner = lane_id();
  bool ends = false, is_last = false;
  if (inner < span.num_rows) {
    const int row = span.row_begin + inner;
    const int32_t token = state.drawn[row].token;
    ends = state.drawn[row].status != ops::SampleStatus::kDrawn || inner + 1 >= sequence.left ||
           is_stop(sequence, token);
    is_last = ends || inner + 1 == span.num_rows || state.ids[row + 1] != token;
  }
  const int kept = __ffs(static_cast<int>(__ballot_sync(kAllLanes, is_last)));
  const uint32_t ending = __ballot_sync(kAllLanes, ends);
  return {kept, (ending >> (kept - 1) & 1U) != 0};
}

template <class T>
__device__ __forceinline__ void store(std::byte* slot, size_t offset, T value) {
  *reinterpret_cast<T*>(slot + offset) = value;
}

/// One thread. The row of the draft layer from which the next token but one is drawn. Of a text
/// that has ended, all rows from here on lie behind it, where nothing counts.
__device__ __forceinline__ void prepare_live_row(const ops::RoundState& state, int index,
                                                 const ops::RowSpan& span, const Verdict& verdict) {
  const int row = span.row_begin + max(verdict.kept - 1, 0);
  const int64_t position = span.position + verdict.kept - (verdict.ended ? 0 : 1);
  state.draft_spans[index].position = position;
  state.draft_ids[index] = token_of(state.drawn[row]);
  set_position(state.draft_positions, index, position);
  state.draft_sources[index] = verdict.ended ? index : row;
  state.draft_settings[index].position = position + 2;
}

/// One thread.
__device__ __forceinline__ void store_verdict(const ops::AcceptArgs& args, int index,
                                              const ops::RowSpan& span, const Verdict& verdict) {
  const ops::RoundState& state = args.state;
  state.outcomes[index] = {.kept = verdict.kept, .ended = verdict.ended ? 1 : 0};
  if (args.pending) store(span.slot, args.accepted_offset, static_cast<int32_t>(verdict.kept));
  if (verdict.kept > 0 && index < args.drafting)
    store<int64_t>(span.slot, args.draft_rows_offset, span.position + verdict.kept);
  int32_t& left = state.sequences[index].left;
  left = verdict.ended ? 0 : left - verdict.kept;
  prepare_live_row(state, index, span, verdict);
}

/// grid: spans. The first warp decides, all copy.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    accept(const __grid_constant__ ops::AcceptArgs args) {
  __shared__ int kept_rows;
  wait_for_inputs();
  allow_next_kernel();
  const ops::RoundState& state = args.state;
  const int index = static_cast<int>(blockIdx.x);
  if (index == 0 && threadIdx.x == 0) state.times->accepted = global_nanoseconds();
  const ops::RowSpan span = state.spans[index];
  if (warp_id() == 0) {
    const ops::RoundSequence& sequence = state.sequences[index];
    Verdict verdict{.kept = 0, .ended = true};
    if (sequence.left > 0) verdict = judge(state, span, sequence);
    const int row = span.row_begin + lane_id();
    if (lane_id() < span.num_rows) state.next_ids[row] = token_of(state.drawn[row]);
    if (lane_id() == 0) {
      store_verdict(args, index, span, verdict);
      kept_rows = verdict.kept;
    }
  }
  __syncthreads();  // it is decided
  if (kept_rows == 0) return;
  const auto width = static_cast<size_t>(args.width);
  const auto last = static_cast<size_t>(span.row_begin + kept_rows - 1);
  copy_row<Config>(reinterpret_cast<Bf16*>(span.slot + args.wide_offset),
                   static_cast<const Bf16*>(args.wide) + last * width, args.width);
}

/// One block.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    take_drafts(const __grid_constant__ ops::TakeDraftsArgs args) {
  wait_for_inputs();
  allow_next_kernel();
  const ops::RoundState& state = args.state;
  for (int index = static_cast<int>(threadIdx.x); index < args.count; index += Config::kThreads) {
    ops::RowSpan& live = state.draft_spans[index];
    const int32_t number = token_of(state.drafted[index]);
    const int32_t draft = args.listed != nullptr ? args.listed[number] : number;
    const int64_t position = live.position + 1;
    state.outcomes[index].drafts[static_cast<size_t>(args.place)] = draft;
    live.position = position;
    ++state.draft_settings[index].position;
    state.draft_ids[index] = draft;
    set_position(state.draft_positions, index, position);
    state.draft_sources[index] = index;
  }
}

/// grid: spans, a warp each; lane l writes row l.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    advance(const __grid_constant__ ops::AdvanceArgs args) {
  static_assert(Config::kThreads == kWarp);
  wait_for_inputs();
  allow_next_kernel();
  const ops::RoundState& state = args.state;
  const int index = static_cast<int>(blockIdx.x), inner = lane_id();
  if (index == 0 && inner == 0) state.times->advanced = global_nanoseconds();
  const ops::RoundOutcome& outcome = state.outcomes[index];
  if (outcome.kept == 0) return;
  const ops::RowSpan span = state.spans[index];
  const int64_t first = span.position + outcome.kept;
  if (inner < span.num_rows) {
    const int row = span.row_begin + inner;
    const int64_t position = first + inner;
    state.ids[row] = inner == 0 ? token_of(state.drawn[span.row_begin + outcome.kept - 1])
                                : outcome.drafts[static_cast<size_t>(inner - 1)];
    set_position(state.positions, row, position);
    state.settings[row].position = position + 1;
  }
  __syncwarp();  // all have read the span
  if (inner != 0) return;
  state.spans[index].position = first;
}

}  // namespace tessera::cuda::device
