// SPDX-License-Identifier: Apache-2.0
// A backend that hands every op to another one: the base of those that watch.
#pragma once

#include "ops/ops.h"

namespace tessera {

/// NOTE: `repeat` is not handed on, so every step reaches the watcher op by op.
class ForwardingOps : public ops::Ops {
 public:
  explicit ForwardingOps(ops::Ops& inner) : inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }
  std::vector<ops::KernelNote> kernels() const override { return inner_.kernels(); }
  ops::Traits traits() const override { return inner_.traits(); }
  Memory& memory() override { return inner_.memory(); }
  void forget_repeats() override { inner_.forget_repeats(); }
  ops::LaunchBuffers begin(const ops::LaunchInputs& inputs) override {
    return inner_.begin(inputs);
  }

  void embed(const ops::EmbedArgs& args) override { inner_.embed(args); }
  void draft_input(const ops::DraftInputArgs& args) override { inner_.draft_input(args); }
  void linear(const ops::LinearArgs& args) override { inner_.linear(args); }
  void mixer(const ops::MixerArgs& args) override { inner_.mixer(args); }
  void combine(const ops::CombineArgs& args) override { inner_.combine(args); }
  void gdn(const ops::GdnArgs& args) override { inner_.gdn(args); }
  void ngram_ids(const ops::NgramIdsArgs& args) override { inner_.ngram_ids(args); }
  void ngram_gather(const ops::NgramGatherArgs& args) override { inner_.ngram_gather(args); }
  void ple_mix(const ops::PleMixArgs& args) override { inner_.ple_mix(args); }
  void qsa_front(const ops::QsaFrontArgs& args) override { inner_.qsa_front(args); }
  void qsa_select(const ops::QsaSelectArgs& args) override { inner_.qsa_select(args); }
  void qsa_extend(const ops::QsaExtendArgs& args) override { inner_.qsa_extend(args); }
  void qsa_attend(const ops::QsaAttendArgs& args) override { inner_.qsa_attend(args); }
  void router(const ops::RouterArgs& args) override { inner_.router(args); }
  void experts(const ops::ExpertsArgs& args) override { inner_.experts(args); }
  void finish(const ops::FinishArgs& args) override { inner_.finish(args); }
  void sample(const ops::SampleArgs& args) override { inner_.sample(args); }

  ops::RoundState begin_round(const ops::RoundInputs& inputs) override {
    return inner_.begin_round(inputs);
  }
  ops::RoundRows use_rows(ops::RoundPart part, int spans, int rows) override {
    return inner_.use_rows(part, spans, rows);
  }
  void draw(const ops::DrawArgs& args) override { inner_.draw(args); }
  void accept(const ops::AcceptArgs& args) override { inner_.accept(args); }
  void take_drafts(const ops::TakeDraftsArgs& args) override { inner_.take_drafts(args); }
  void advance(const ops::AdvanceArgs& args) override { inner_.advance(args); }
  void end_round() override { inner_.end_round(); }
  ops::RoundReport read_round() override { return inner_.read_round(); }

 protected:
  ops::Ops& inner_;
};

}  // namespace tessera
