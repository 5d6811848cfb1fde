// SPDX-License-Identifier: Apache-2.0
// Launches and schedules of the op tests.
#include "cpu/state_fixture.h"

#include <algorithm>
#include <bit>

namespace tessera::test {

Schedule in_chunks(const std::vector<int>& lengths, int chunk) {
  Schedule schedule;
  const int longest = *std::max_element(lengths.begin(), lengths.end());
  for (int begin = 0; begin < longest; begin += chunk) {
    Launch launch;
    for (size_t sequence = 0; sequence < lengths.size(); ++sequence)
      launch.push_back({sequence, std::clamp(lengths[sequence] - begin, 0, chunk)});
    schedule.push_back(launch);
  }
  return schedule;
}

Schedule at_once(const std::vector<int>& lengths) {
  return in_chunks(lengths, std::max(1, *std::max_element(lengths.begin(), lengths.end())));
}

Schedule one_by_one(const std::vector<int>& lengths, int chunk) {
  Schedule schedule;
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence)
    for (int begin = 0; begin < lengths[sequence]; begin += chunk)
      schedule.push_back({{sequence, std::min(chunk, lengths[sequence] - begin)}});
  return schedule;
}

ops::RingRef make_ring(size_t offset, size_t entry_bytes, int reach) {
  const auto slots = std::bit_ceil(static_cast<unsigned>(kMaxDraft + 1 + reach));
  return {.offset = offset,
          .entry_bytes = entry_bytes,
          .slots = static_cast<int>(slots),
          .reach = reach};
}

Batch::Batch(std::vector<Sequence>& sequences, const Launch& launch, ops::Role role)
    : sequences_(sequences), launch_(launch), role_(role) {
  for (const Piece& piece : launch) {
    Sequence& sequence = sequences[piece.sequence];
    spans_.push_back({.row_begin = rows_,
                      .num_rows = piece.tokens,
                      .position = sequence.absorbed,
                      .slot = sequence.slot.data(),
                      .pages = sequence.pages.data()});
    rows_ += piece.tokens;
  }
}

void Batch::advance() {
  for (const Piece& piece : launch_)
    sequences_[piece.sequence].absorbed += piece.tokens - piece.rejected;
}

}  // namespace tessera::test
