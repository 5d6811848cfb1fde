// SPDX-License-Identifier: Apache-2.0
// The fast CPU backend: forwards every op to its kernel and owns the scratch memory.
#include <string>

#include "cpu/bookkeeping.h"
#include "cpu/cpu_ops.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/round.h"
#include "cpu/sample.h"

namespace tessera::cpu {
namespace {

class FastOps final : public RoundOps {
 public:
  std::string_view name() const override { return "cpu fast"; }

  ops::Traits traits() const override { return {.drafts = true}; }

  std::vector<ops::KernelNote> kernels() const override {
    const std::string level = simd_level();
    const std::string why = "best level this processor supports";
    return {
        {"embed", "rows copied and widened", "memory bound"},
        {"draft_input", "row-wise, " + level, why},
        {"linear",
         "decode: multi-row dot products; prefill: packed register-tile product, " + level, why},
        {"mixer", "row-blocked, two products, " + level, why},
        {"combine", "elementwise, " + level, why},
        {"gdn", "decode: recurrence; prefill: chunks of 64, " + level, why},
        {"ngram_ids", "plain loops", "a few integers per row"},
        {"ngram_gather", "rows decoded from the table as stored", "memory bound"},
        {"ple_mix", "row-wise, " + level, why},
        {"qsa_front", "row-wise, " + level, why},
        {"qsa_select",
         "prompt rows score a page together, decoded rows alone; exact selection, " + level, why},
        {"qsa_attend", "gather of the selected blocks, " + level, why},
        {"router", "product as in linear, then exact top-k by insertion", "few experts"},
        {"experts", "rows grouped by expert; decode and prefill products as in linear, " + level,
         why},
        {"finish", "rows copied", "memory bound"},
        {"sample", "a row per thread, in double", "a heap for top-k, halving for top-p"},
        {"round", "draws as in sample, then plain loops", "a few integers per row"},
    };
  }

  void embed(const ops::EmbedArgs& args) override { fast_embed(args); }
  void draft_input(const ops::DraftInputArgs& args) override { fast_draft_input(args); }
  void linear(const ops::LinearArgs& args) override { fast_linear(args, fresh()); }
  void mixer(const ops::MixerArgs& args) override { fast_mixer(args, fresh()); }
  void combine(const ops::CombineArgs& args) override { fast_combine(args); }
  void gdn(const ops::GdnArgs& args) override { fast_gdn(args, fresh()); }
  void ngram_ids(const ops::NgramIdsArgs& args) override { cpu::ngram_ids(args); }
  void ngram_gather(const ops::NgramGatherArgs& args) override { fast_ngram_gather(args); }
  void ple_mix(const ops::PleMixArgs& args) override { fast_ple_mix(args, fresh()); }
  void qsa_front(const ops::QsaFrontArgs& args) override { fast_qsa_front(args, fresh()); }
  void qsa_select(const ops::QsaSelectArgs& args) override { fast_qsa_select(args, fresh()); }
  void qsa_extend(const ops::QsaExtendArgs& args) override { cpu::qsa_extend(args); }
  void qsa_attend(const ops::QsaAttendArgs& args) override { fast_qsa_attend(args, fresh()); }
  void router(const ops::RouterArgs& args) override { fast_router(args, fresh()); }
  void experts(const ops::ExpertsArgs& args) override {
    fast_experts(args, fresh());
    if (args.combine != nullptr) fast_combine(*args.combine);
  }
  void finish(const ops::FinishArgs& args) override { cpu::finish(args); }
  void sample(const ops::SampleArgs& args) override { cpu::sample(args); }

 private:
  Arena& fresh() {
    scratch_.reset();
    return scratch_;
  }

  Arena scratch_;
};

}  // namespace

std::unique_ptr<ops::Ops> make_fast_ops() { return std::make_unique<FastOps>(); }

}  // namespace tessera::cpu
