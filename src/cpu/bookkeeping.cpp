// SPDX-License-Identifier: Apache-2.0
// N-gram addresses of a launch, and what it leaves behind.
#include "cpu/bookkeeping.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/floats.h"

namespace tessera::cpu {
namespace {

/// Id of the token `lag` places before a row of a span; -1 before the start of the sequence.
int32_t token_before(const ops::NgramIdsArgs& args, const ops::RowSpan& span, int row, int lag) {
  if (row >= lag) return args.ids[span.row_begin + row - lag];
  const int64_t position = span.position + row - lag;
  if (position < 0) return -1;
  int64_t id = 0;
  std::memcpy(&id, args.token_ring.entry(span.slot, position), sizeof id);
  return static_cast<int32_t>(id);
}

}  // namespace

void ngram_ids(const ops::NgramIdsArgs& args) {
  const auto heads = static_cast<size_t>(args.hash->heads());
  std::vector<int32_t> history;
  for (const ops::RowSpan& span : args.batch.spans) {
    for (int row = 0; row < span.num_rows; ++row) {
      history.clear();
      for (int lag = args.hash->ngram_size - 1; lag >= 0; --lag) {
        const int32_t id = token_before(args, span, row, lag);
        if (id >= 0) history.push_back(id);
      }
      ngram_rows(*args.hash, history,
                 args.table_rows + static_cast<size_t>(span.row_begin + row) * heads);
    }
  }
}

void qsa_extend(const ops::QsaExtendArgs& args) {
  for (const ops::RowSpan& span : args.batch.spans) {
    if (span.num_rows == 0) continue;
    const int row = span.row_begin, from = args.source_rows[row];
    const int32_t* list = args.from_blocks + static_cast<ptrdiff_t>(from) * args.from_stride;
    int32_t* longer = args.blocks + static_cast<ptrdiff_t>(row) * args.stride;
    int32_t count = args.from_counts[from];
    std::copy_n(list, count, longer);  // in place, a list moves to the front or stays
    const int64_t seen = span.position + 1;
    if (seen % args.block == 0) longer[count++] = static_cast<int32_t>(seen / args.block - 1);
    args.counts[row] = count;
  }
}

void finish(const ops::FinishArgs& args) {
  const auto width = static_cast<size_t>(args.width);
  const float* wide = floats(args.wide);
  for (const ops::RowSpan& span : args.batch.spans) {
    if (span.num_rows == 0) continue;
    const auto last = static_cast<size_t>(span.row_begin + span.num_rows - 1);
    if (args.keeps_wide)
      std::memcpy(span.slot + args.wide_offset, wide + last * width, width * sizeof(float));
    for (int row = std::max(0, span.num_rows - args.token_ring.slots); row < span.num_rows; ++row) {
      const int64_t id = args.ids[span.row_begin + row];
      std::memcpy(args.token_ring.entry(span.slot, span.position + row), &id, sizeof id);
    }
  }
  for (int entry = 0; entry < args.num_logit_rows; ++entry)
    std::memcpy(floats(args.selected) + static_cast<size_t>(entry) * width,
                wide + static_cast<size_t>(args.logit_rows[entry]) * width, width * sizeof(float));
}

}  // namespace tessera::cpu
