// SPDX-License-Identifier: Apache-2.0
// Rounds of both CPU backends: the state lies in host memory, and every op has run on return.
#pragma once

#include <array>
#include <vector>

#include "ops/ops.h"
#include "ops/round_layout.h"

namespace tessera::cpu {

/// NOTE: `traits().rounds` stays false: here the host is no detour, and its own rounds leave out
/// rows of a text that has ended.
class RoundOps : public ops::Ops {
 public:
  ops::RoundState begin_round(const ops::RoundInputs& inputs) final;
  /// The spans of the batch are those of the state.
  ops::RoundRows use_rows(ops::RoundPart part, int spans, int rows) final;
  void draw(const ops::DrawArgs& args) final;
  void accept(const ops::AcceptArgs& args) final;
  void take_drafts(const ops::TakeDraftsArgs& args) final;
  void advance(const ops::AdvanceArgs& args) final;
  void end_round() final;
  ops::RoundReport read_round() final;

 private:
  struct Report {
    ops::RoundLayout layout{};
    std::vector<std::byte> bytes{};
  };

  ops::RoundLayout layout_{};
  MemoryBlock block_{};
  ops::RoundState state_{};
  ops::ReportQueue queue_{};
  std::array<Report, ops::ReportQueue::kPlaces> reports_{};
};

}  // namespace tessera::cpu
