// SPDX-License-Identifier: Apache-2.0
// A backend that measures another one: wall time and minimal cost of every op, summed by name.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "eval/forwarding_ops.h"

namespace tessera {

struct OpTotal {
  double seconds = 0;
  ops::Cost cost{};
};

class ProfilingOps : public ForwardingOps {
 public:
  explicit ProfilingOps(ops::Ops& inner) : ForwardingOps(inner) {}

  const std::map<std::string, OpTotal>& totals() const { return totals_; }
  /// Of all ops together.
  ops::Cost total_cost() const;
  /// Time spent on counting costs since `clear`: to be taken off a wall time around the ops.
  double overhead_seconds() const { return overhead_seconds_; }
  void clear() {
    totals_.clear();
    overhead_seconds_ = 0;
  }

  void embed(const ops::EmbedArgs& args) override;
  void draft_input(const ops::DraftInputArgs& args) override;
  void linear(const ops::LinearArgs& args) override;
  void mixer(const ops::MixerArgs& args) override;
  void combine(const ops::CombineArgs& args) override;
  void gdn(const ops::GdnArgs& args) override;
  void ngram_ids(const ops::NgramIdsArgs& args) override;
  void ngram_gather(const ops::NgramGatherArgs& args) override;
  void ple_mix(const ops::PleMixArgs& args) override;
  void qsa_front(const ops::QsaFrontArgs& args) override;
  void qsa_extend(const ops::QsaExtendArgs& args) override;
  void qsa_select(const ops::QsaSelectArgs& args) override;
  void qsa_attend(const ops::QsaAttendArgs& args) override;
  void router(const ops::RouterArgs& args) override;
  void experts(const ops::ExpertsArgs& args) override;
  void finish(const ops::FinishArgs& args) override;
  void sample(const ops::SampleArgs& args) override;
  void draw(const ops::DrawArgs& args) override;
  void accept(const ops::AcceptArgs& args) override;
  void take_drafts(const ops::TakeDraftsArgs& args) override;
  void advance(const ops::AdvanceArgs& args) override;

 private:
  /// Costs read ids and counts: of a device's they need a copy.
  template <class Args>
  ops::Cost cost_of(const Args& args) {
    return ops::cost(args);
  }
  ops::Cost cost_of(const ops::ExpertsArgs& args);
  ops::Cost cost_of(const ops::QsaAttendArgs& args);

  /// NOTE: a device's ops return before they have run, so their seconds mean nothing; costs do.
  template <class Args>
  void measure(const char* op, void (ops::Ops::*run)(const Args&), const Args& args) {
    const auto start = std::chrono::steady_clock::now();
    (inner_.*run)(args);
    const auto end = std::chrono::steady_clock::now();
    OpTotal& total = totals_[op];
    total.seconds += std::chrono::duration<double>(end - start).count();
    total.cost += cost_of(args);
    overhead_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - end).count();
  }

  std::map<std::string, OpTotal> totals_{};
  double overhead_seconds_ = 0;
};

}  // namespace tessera
