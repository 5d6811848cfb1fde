// SPDX-License-Identifier: Apache-2.0
// Forwards every op to the measured backend and takes its time.
#include "eval/profiling_ops.h"

#include <vector>

namespace tessera {
namespace {

template <class T>
std::vector<T> on_host(Memory& memory, const T* data, size_t count) {
  std::vector<T> copy(count);
  memory.copy_out(copy.data(), data, count * sizeof(T));
  return copy;
}

}  // namespace

ops::Cost ProfilingOps::total_cost() const {
  ops::Cost cost;
  for (const auto& [op, total] : totals_) cost += total.cost;
  return cost;
}

ops::Cost ProfilingOps::cost_of(const ops::ExpertsArgs& args) {
  if (memory().on_host()) return ops::cost(args);
  const auto picks = static_cast<size_t>(args.rows) * static_cast<size_t>(args.top_k);
  const std::vector<int32_t> ids = on_host(memory(), args.ids, picks);
  ops::ExpertsArgs local = args;
  local.ids = ids.data();
  return ops::cost(local);
}

ops::Cost ProfilingOps::cost_of(const ops::QsaAttendArgs& args) {
  if (memory().on_host()) return ops::cost(args);
  const auto rows = static_cast<size_t>(args.batch.num_rows);
  const auto counts = on_host(memory(), args.counts, rows);
  const auto blocks =
      on_host(memory(), args.blocks, rows * static_cast<size_t>(args.budget_blocks));
  ops::QsaAttendArgs local = args;
  local.counts = counts.data();
  local.blocks = blocks.data();
  return ops::cost(local);
}

void ProfilingOps::embed(const ops::EmbedArgs& args) { measure("embed", &ops::Ops::embed, args); }
void ProfilingOps::draft_input(const ops::DraftInputArgs& args) {
  measure("draft_input", &ops::Ops::draft_input, args);
}
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
void ProfilingOps::qsa_extend(const ops::QsaExtendArgs& args) {
  measure("qsa_extend", &ops::Ops::qsa_extend, args);
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
void ProfilingOps::sample(const ops::SampleArgs& args) {
  measure("sample", &ops::Ops::sample, args);
}
void ProfilingOps::draw(const ops::DrawArgs& args) { measure("draw", &ops::Ops::draw, args); }
void ProfilingOps::accept(const ops::AcceptArgs& args) {
  measure("accept", &ops::Ops::accept, args);
}
void ProfilingOps::take_drafts(const ops::TakeDraftsArgs& args) {
  measure("take_drafts", &ops::Ops::take_drafts, args);
}
void ProfilingOps::advance(const ops::AdvanceArgs& args) {
  measure("advance", &ops::Ops::advance, args);
}

}  // namespace tessera
