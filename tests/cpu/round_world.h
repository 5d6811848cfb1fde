// SPDX-License-Identifier: Apache-2.0
// A round in a backend's memory beside what it should be, by the definition in a few lines.
#pragma once

#include <array>
#include <vector>

#include "cpu/op_fixture.h"

namespace tessera::test {

/// A sequence of a round as the definition has it.
struct RoundText {
  int64_t position = 0;        // of its first row
  std::vector<int32_t> ids{};  // its rows: pending token, drafts
  ops::RoundSequence settings{};
  int kept = 0;  // by the last `accept`
  bool ended = false;
  int32_t pending = 0;  // the last draw that is text
  std::array<int32_t, ops::kMaxRoundDrafts> drafts{};

  void accept(std::span<const ops::SampledToken> drawn);
  void advance();
};

/// Draws are set by the test; every op runs on the backend and on the definition.
class RoundWorld {
 public:
  struct Accept {
    bool pending = false;
    int drafting = 0;
  };

  RoundWorld(ops::Ops& backend, DType activation, std::vector<RoundText> sequences, int width);

  void accept(const std::vector<ops::SampledToken>& drawn, const Accept& how);
  ops::AcceptArgs accept_args(const Accept& how) const;
  void take_drafts(const std::vector<ops::SampledToken>& drafted, int place,
                   std::span<const int32_t> listed = {});
  void advance();

  void expect_accepted();
  void expect_live_rows();
  void expect_advanced();
  void expect_report(const ops::RoundReport& report) const;

  const ops::RoundState& state() const { return state_; }
  std::byte* slots() const { return slots_.data(); }
  size_t slots_bytes() const { return slots_.bytes(); }
  size_t num_rows() const { return static_cast<size_t>(state_.num_rows); }

  std::vector<RoundText> texts;

 private:
  /// The parts of a slot, with gaps.
  static constexpr size_t kAcceptedAt = 12, kDraftRowsAt = 24, kWideAt = 48;
  /// What the draft layer reads next of a sequence.
  struct Live {
    int64_t position = 0;
    int32_t id = 0, source = 0;
    int64_t draw_position = 0;
  };

  template <class T>
  std::vector<T> read(const T* data, size_t count) {
    std::vector<T> values(count);
    memory_.copy_out(values.data(), data, count * sizeof(T));
    return values;
  }
  void expect_span(const ops::RowSpan& got, size_t index, int row_begin, int rows,
                   int64_t position) const;
  void expect_slots();

  ops::Ops& backend_;
  Memory& memory_;
  size_t row_bytes_;  // of a wide row
  int width_;
  std::vector<int> first_rows_{};
  MemoryBlock slots_{}, wide_{};
  size_t slot_bytes_;
  std::vector<std::byte> wide_bytes_{}, want_slots_{};
  std::vector<Live> live_{};
  std::vector<int32_t> next_ids_{};
  std::vector<ops::SampledToken> drawn_{};
  ops::RoundState state_{};
};

}  // namespace tessera::test
