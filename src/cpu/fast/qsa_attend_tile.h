// SPDX-License-Identifier: Apache-2.0
// Attention of one row's query heads of one kv head over a run of its token list, tile by tile.
#pragma once

#include <cstdint>

#include "cpu/floats.h"
#include "ops/qsa.h"

namespace tessera::cpu {

inline constexpr int kAttendLanes = 16;  // query heads that share a load of K and V
inline constexpr int kAttendTile = 64;   // tokens between two looks at the running maximum

/// Unnormalised softmax of some tokens. Two states of neighbouring runs merge into one.
struct AttendState {
  float* top = nullptr;  // [kAttendLanes] largest logit so far
  float* sum = nullptr;  // [kAttendLanes] sum of e^(logit - top)
  float* out = nullptr;  // [heads, head_dim] sum of e^(logit - top) * V
};

/// The query heads of one row that read one kv head: at most kAttendLanes of them.
struct AttendHeads {
  int kv_head = 0;
  int first = 0;  // query head
  int count = 0;
};

/// Buffers of one thread.
struct AttendWorkspace {
  float* packed = nullptr;   // [head_dim, kAttendLanes]
  float* logits = nullptr;   // [kAttendTile, kAttendLanes]
  float* widened = nullptr;  // [kAttendTile, head_dim], for caches that are not float
};

/// A row's list: the tokens of its blocks ascending, then the open tail up to the row itself.
struct TokenList {
  const int32_t* blocks = nullptr;
  int num_blocks = 0;
  int64_t tail = 0;  // first token of the tail
  int num_tail = 0;

  int size(int block) const { return num_blocks * block + num_tail; }
};

TokenList token_list(const ops::QsaAttendArgs& args, const ops::RowSpan& span, int row);

/// Attends to list entries [first, last), in order, starting from an empty state.
void attend_run(const ops::QsaAttendArgs& args, const ops::RowSpan& span, int row,
                const AttendHeads& heads, const TokenList& list, int first, int last,
                const AttendWorkspace& work, const AttendState& state);

/// `into` then holds both runs; `next` follows it in the list.
void merge_runs(const AttendState& next, int heads, int head_dim, const AttendState& into);

}  // namespace tessera::cpu
