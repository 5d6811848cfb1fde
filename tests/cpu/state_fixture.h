// SPDX-License-Identifier: Apache-2.0
// Sequences and launches of the op tests: slots and page pools built by hand, with gaps and
// shuffled page ids, and schedules that cut the same tokens into different launches.
#pragma once

#include <cstring>
#include <vector>

#include "cpu/op_fixture.h"
#include "ops/rows.h"

namespace tessera::test {

inline constexpr int kMaxDraft = 5;
inline constexpr size_t kGapBytes = 36;    // keeps float alignment, breaks vector alignment
inline constexpr std::byte kPoison{0xFF};  // reads as NaN in every float type

/// Data of one sequence, [tokens, width].
using Rows = std::vector<float>;

struct Sequence {
  int64_t absorbed = 0;
  std::vector<std::byte> slot{};
  std::vector<int32_t> pages{};
};

/// `tokens` further tokens of sequence `sequence`; 0 makes an empty span. The last `rejected` of
/// them carry other data and do not count as absorbed: drafts that failed.
struct Piece {
  size_t sequence = 0;
  int tokens = 0;
  int rejected = 0;
};
using Launch = std::vector<Piece>;
using Schedule = std::vector<Launch>;

/// Every launch takes up to `chunk` tokens of each sequence; finished ones leave empty spans.
Schedule in_chunks(const std::vector<int>& lengths, int chunk);
/// All sequences whole, one launch.
Schedule at_once(const std::vector<int>& lengths);
/// One sequence after the other, in launches of `chunk` tokens.
Schedule one_by_one(const std::vector<int>& lengths, int chunk);

/// Ring sized as the state table sizes it, so that a decode launch of kMaxDraft + 1 rows fits.
ops::RingRef make_ring(size_t offset, size_t entry_bytes, int reach);

/// One launch over some sequences: the spans, and rows packed in span order.
class Batch {
 public:
  Batch(std::vector<Sequence>& sequences, const Launch& launch, ops::Role role);
  ops::RowBatch view() const { return {spans_, rows_, role_}; }
  size_t rows() const { return static_cast<size_t>(rows_); }
  ops::Role role() const { return role_; }

  /// Packs the launch's rows of the per-sequence data.
  template <class T>
  std::vector<T> gather(const std::vector<std::vector<T>>& data, size_t width) const {
    std::vector<T> packed;
    for_each([&](const Piece& piece, size_t begin) {
      const T* first = data[piece.sequence].data() + begin * width;
      packed.insert(packed.end(), first, first + static_cast<size_t>(piece.tokens) * width);
      const size_t wrong = static_cast<size_t>(piece.rejected) * width;
      for (size_t index = packed.size() - wrong; index < packed.size(); ++index)
        packed[index] = shifted(packed[index]);
    });
    return packed;
  }
  /// Appends packed results of the accepted rows to the per-sequence data.
  template <class T>
  void scatter(std::span<const T> packed, size_t width, std::vector<std::vector<T>>& data) const {
    for_each([&](const Piece& piece, size_t) {
      const auto accepted =
          packed.first(static_cast<size_t>(piece.tokens - piece.rejected) * width);
      std::vector<T>& rows = data[piece.sequence];
      rows.insert(rows.end(), accepted.begin(), accepted.end());
      packed = packed.subspan(static_cast<size_t>(piece.tokens) * width);
    });
  }
  /// The accepted tokens of the launch now belong to the past.
  void advance();

 private:
  /// Other data of a rejected row: what an activation can hold.
  static float shifted(float value) { return as_bf16(value + 1); }
  static int32_t shifted(int32_t value) { return value + 1; }

  template <class Fn>
  void for_each(Fn&& fn) const {
    for (size_t index = 0; index < spans_.size(); ++index)
      fn(launch_[index], static_cast<size_t>(spans_[index].position));
  }

  std::vector<Sequence>& sequences_;
  Launch launch_;
  ops::Role role_;
  std::vector<ops::RowSpan> spans_;
  int rows_ = 0;
};

/// Float at a byte offset of a slot.
inline float* slot_floats(Sequence& sequence, size_t offset) {
  return reinterpret_cast<float*>(sequence.slot.data() + offset);
}

}  // namespace tessera::test
