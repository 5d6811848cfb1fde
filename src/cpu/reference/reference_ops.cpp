// SPDX-License-Identifier: Apache-2.0
// The reference CPU backend: one plain function per op.
#include "cpu/bookkeeping.h"
#include "cpu/cpu_ops.h"
#include "cpu/reference/reference_kernels.h"
#include "cpu/round.h"
#include "cpu/sample.h"

namespace tessera::cpu {
namespace {

class ReferenceOps final : public RoundOps {
 public:
  std::string_view name() const override { return "cpu reference"; }

  ops::Traits traits() const override { return {.drafts = true}; }

  std::vector<ops::KernelNote> kernels() const override {
    std::vector<ops::KernelNote> notes;
    for (const char* op : {"embed", "draft_input", "linear", "mixer", "combine", "gdn", "ngram_ids",
                           "ngram_gather", "ple_mix", "qsa_front", "qsa_select", "qsa_attend",
                           "router", "experts", "finish", "sample", "round"})
      notes.push_back({op, "plain loops, double accumulation", "the oracle was asked for"});
    return notes;
  }

  void embed(const ops::EmbedArgs& args) override { reference::embed(args); }
  void draft_input(const ops::DraftInputArgs& args) override { reference::draft_input(args); }
  void linear(const ops::LinearArgs& args) override { reference::linear(args); }
  void mixer(const ops::MixerArgs& args) override { reference::mixer(args); }
  void combine(const ops::CombineArgs& args) override { reference::combine(args); }
  void gdn(const ops::GdnArgs& args) override { reference::gdn(args); }
  void ngram_ids(const ops::NgramIdsArgs& args) override { cpu::ngram_ids(args); }
  void ngram_gather(const ops::NgramGatherArgs& args) override { reference::ngram_gather(args); }
  void ple_mix(const ops::PleMixArgs& args) override { reference::ple_mix(args); }
  void qsa_front(const ops::QsaFrontArgs& args) override { reference::qsa_front(args); }
  void qsa_select(const ops::QsaSelectArgs& args) override { reference::qsa_select(args); }
  void qsa_extend(const ops::QsaExtendArgs& args) override { cpu::qsa_extend(args); }
  void qsa_attend(const ops::QsaAttendArgs& args) override { reference::qsa_attend(args); }
  void router(const ops::RouterArgs& args) override { reference::router(args); }
  void experts(const ops::ExpertsArgs& args) override {
    reference::experts(args);
    if (args.combine != nullptr) reference::combine(*args.combine);
  }
  void finish(const ops::FinishArgs& args) override { cpu::finish(args); }
  void sample(const ops::SampleArgs& args) override { cpu::sample(args); }
};

}  // namespace

std::unique_ptr<ops::Ops> make_reference_ops() { return std::make_unique<ReferenceOps>(); }

}  // namespace tessera::cpu
