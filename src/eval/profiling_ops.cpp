// SPDX-License-Identifier: Apache-2.0
// Forwards every op to the measured backend and takes its time.
#include "eval/profiling_ops.h"

namespace tessera {

void ProfilingOps::embed(const ops::EmbedArgs& args) { measure("embed", &ops::Ops::embed, args); }
void ProfilingOps::linear(const ops::LinearArgs& args) {
  measure("linear", &ops::Ops::linear, args);
}
void ProfilingOps::mixer(const ops::MixerArgs& args) { measure("mixer", &ops::Ops::mixer, args); }
void ProfilingOps::combine(const ops::CombineArgs& args) {
  measure("combine", &ops::Ops::combine, args);
}
void ProfilingOps::gdn(const ops::GdnArgs& args) { measure("gdn", &ops::Ops::gdn, args); }
void ProfilingOps::ngram_ids(const ops::NgramIdsArgs& args) {
  measure("ngram_ids", &ops::Ops::ngram_ids, args);
}
void ProfilingOps::ngram_gather(const ops::NgramGatherArgs& args) {
  measure("ngram_gather", &ops::Ops::ngram_gather, args);
}
void ProfilingOps::ple_mix(const ops::PleMixArgs& args) {
  measure("ple_mix", &ops::Ops::ple_mix, args);
}
void ProfilingOps::qsa_front(const ops::QsaFrontArgs& args) {
  measure("qsa_front", &ops::Ops::qsa_front, args);
}
void ProfilingOps::qsa_select(const ops::QsaSelectArgs& args) {
  measure("qsa_select", &ops::Ops::qsa_select, args);
}
void ProfilingOps::qsa_attend(const ops::QsaAttendArgs& args) {
  measure("qsa_attend", &ops::Ops::qsa_attend, args);
}
void ProfilingOps::router(const ops::RouterArgs& args) {
  measure("router", &ops::Ops::router, args);
}
void ProfilingOps::experts(const ops::ExpertsArgs& args) {
  measure("experts", &ops::Ops::experts, args);
}
void ProfilingOps::finish(const ops::FinishArgs& args) {
  measure("finish", &ops::Ops::finish, args);
}

}  // namespace tessera
