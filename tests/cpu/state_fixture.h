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

/// `tokens` further tokens of sequence `sequence`; 0 makes an empty span.
struct Piece {
  size_t sequence = 0;
  int tokens = 0;
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

  /// Packs the launch's rows of the per-sequence data; elements of 4 bytes.
  template <class T>
  std::vector<T> gather(const std::vector<std::vector<T>>& data, size_t width) const {
    std::vector<T> packed;
    for_each([&](size_t sequence, size_t begin, size_t count) {
      const T* first = data[sequence].data() + begin * width;
      packed.insert(packed.end(), first, first + count * width);
    });
    return packed;
  }
  /// Appends packed results to the per-sequence data.
  template <class T>
  void scatter(std::span<const T> packed, size_t width, std::vector<std::vector<T>>& data) const {
    for_each([&](size_t sequence, size_t, size_t count) {
      data[sequence].insert(data[sequence].end(), packed.begin(),
                            packed.begin() + static_cast<ptrdiff_t>(count * width));
      packed = packed.subspan(count * width);
    });
  }
  /// The tokens of the launch now belong to the past.
  void advance();

 private:
  template <class Fn>
  void for_each(Fn&& fn) const {
    for (size_t index = 0; index < spans_.size(); ++index)
      fn(launch_[index].sequence, static_cast<size_t>(spans_[index].position),
         static_cast<size_t>(spans_[index].num_rows));
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
