// SPDX-License-Identifier: Apache-2.0
// One function per op: which arguments it reads and writes, and how large they are.
#include "cuda/staged_ops.h"

#include <algorithm>

#include "cuda/staged_state.h"

namespace tessera::test {
namespace {

size_t product(std::initializer_list<int> factors) {
  size_t value = 1;
  for (const int factor : factors) value *= static_cast<size_t>(factor);
  return value;
}

/// Set by models, derived from the batch here.
template <class Args>
void set_max_context(Args& args) {
  if constexpr (requires { args.max_context; })
    for (const ops::RowSpan& span : args.batch.spans)
      args.max_context = std::max<int64_t>(args.max_context, span.position + span.num_rows);
}

class StagedOps final : public ops::Ops {
 public:
  explicit StagedOps(std::unique_ptr<ops::Ops> device)
      : device_(std::move(device)), traits_(device_->traits()), cache_(device_->memory()) {}

  std::string_view name() const override { return device_->name(); }
  std::vector<ops::KernelNote> kernels() const override { return device_->kernels(); }
  ops::Traits traits() const override {
    ops::Traits shown = traits_;
    shown.activation = DType::kF32;
    return shown;
  }
  Memory& memory() override { return device_->memory(); }

  void embed(const ops::EmbedArgs& host) override;
  void draft_input(const ops::DraftInputArgs& host) override;
  void linear(const ops::LinearArgs& host) override;
  void mixer(const ops::MixerArgs& host) override;
  void combine(const ops::CombineArgs& host) override;
  void gdn(const ops::GdnArgs& host) override;
  void ngram_ids(const ops::NgramIdsArgs& host) override;
  void ngram_gather(const ops::NgramGatherArgs& host) override;
  void ple_mix(const ops::PleMixArgs& host) override;
  void qsa_front(const ops::QsaFrontArgs& host) override;
  void qsa_select(const ops::QsaSelectArgs& host) override;
  void qsa_attend(const ops::QsaAttendArgs& host) override;
  void router(const ops::RouterArgs& host) override;
  void experts(const ops::ExpertsArgs& host) override;
  void finish(const ops::FinishArgs& host) override;
  void sample(const ops::SampleArgs& host) override;

  ops::RoundState begin_round(const ops::RoundInputs& inputs) override {
    return device_->begin_round(inputs);
  }
  ops::RoundRows use_rows(ops::RoundPart part, int spans, int rows) override {
    return device_->use_rows(part, spans, rows);
  }
  void draw(const ops::DrawArgs& args) override { device_->draw(args); }
  void accept(const ops::AcceptArgs& args) override { device_->accept(args); }
  void take_drafts(const ops::TakeDraftsArgs& args) override { device_->take_drafts(args); }
  void advance(const ops::AdvanceArgs& args) override { device_->advance(args); }
  void end_round() override { device_->end_round(); }
  ops::RoundReport read_round() override { return device_->read_round(); }

 private:
  Staging stage() { return {cache_, traits_}; }
  /// Hands the staged batch over, with ids and positions that nobody reads where there are none.
  ops::LaunchBuffers begin_batch(const ops::RowBatch& batch, std::span<const int32_t> ids = {},
                                 std::span<const int32_t> positions = {},
                                 std::span<const int32_t> logit_rows = {}) {
    return device_->begin(
        {.batch = batch, .ids = ids, .positions = positions, .logit_rows = logit_rows});
  }
  ops::CombineArgs stage_combine(Staging& staging, const ops::CombineArgs& host, const void* out);

  std::unique_ptr<ops::Ops> device_;
  ops::Traits traits_;
  DeviceCache cache_;
};

void StagedOps::embed(const ops::EmbedArgs& host) {
  Staging staging = stage();
  ops::EmbedArgs args = host;
  args.ids = staging.in(host.ids, product({host.rows}));
  args.table = staging.weight(host.table);
  args.wide = staging.activations_out(host.wide,
                                      product({host.rows, host.branches, host.table.in_features}));
  device_->embed(args);
  staging.finish();
}

/// The rows of `wide` go over one by one: the last that any row reads says how many there are.
void StagedOps::draft_input(const ops::DraftInputArgs& host) {
  Staging staging = stage();
  ops::DraftInputArgs args = host;
  const int hidden = host.table.in_features;
  const size_t wide = product({host.branches, hidden});
  const int source =
      host.rows == 0 ? 0 : 1 + *std::max_element(host.wide_rows, host.wide_rows + host.rows);
  args.ids = staging.in(host.ids, product({host.rows}));
  args.table = staging.weight(host.table);
  args.wide = staging.activations_in(host.wide, product({source}) * wide);
  args.wide_rows = staging.in(host.wide_rows, product({host.rows}));
  args.norm_embedding = staging.in(host.norm_embedding, product({hidden}));
  args.norm_hidden = staging.in(host.norm_hidden, wide);
  args.embedded = staging.activations_out(host.embedded, product({host.rows, hidden}));
  args.normed = staging.activations_out(host.normed, product({host.rows}) * wide);
  args.inject = staging.out(host.inject, product({host.rows, host.branches}));
  device_->draft_input(args);
  staging.finish();
}

void StagedOps::linear(const ops::LinearArgs& host) {
  Staging staging = stage();
  ops::LinearArgs args = host;
  std::vector<ops::LinearPart> parts(host.parts.begin(), host.parts.end());
  if (!parts.empty())
    args.x = staging.activations_in(host.x, product({host.rows, parts[0].weight.in_features}));
  for (ops::LinearPart& part : parts) {
    const size_t count = product({host.rows, part.weight.out_features});
    part.y = part.output == ops::Output::kFloat
                 ? static_cast<void*>(staging.out(static_cast<float*>(part.y), count))
                 : staging.activations_out(part.y, count);
    part.weight = staging.weight(part.weight);
  }
  args.parts = parts;
  device_->linear(args);
  staging.finish();
}

void StagedOps::mixer(const ops::MixerArgs& host) {
  Staging staging = stage();
  ops::MixerArgs args = host;
  const size_t wide = product({host.branches, host.hidden});
  const size_t rows = product({host.rows});
  args.wide = staging.activations_in(host.wide, rows * wide);
  args.normed = staging.activations_in(host.normed, rows * wide);
  args.weights.norm = staging.in(host.weights.norm, wide);
  args.weights.down = staging.weight(host.weights.down);
  args.weights.up = staging.weight(host.weights.up);
  args.weights.inject = staging.weight(host.weights.inject);
  args.mixed = staging.activations_out(host.mixed, rows * product({host.hidden}));
  args.inject = staging.out(host.inject, rows * product({host.branches}));
  device_->mixer(args);
  staging.finish();
}

ops::CombineArgs StagedOps::stage_combine(Staging& staging, const ops::CombineArgs& host,
                                          const void* out) {
  ops::CombineArgs args = host;
  const size_t wide = product({host.branches, host.hidden});
  const size_t rows = product({host.rows});
  args.wide = staging.activations_out(host.wide, rows * wide);
  args.out = out;
  args.inject = staging.in(host.inject, rows * product({host.branches}));
  args.next_norm = staging.in(host.next_norm, wide);
  args.normed = staging.activations_out(host.normed, rows * wide);
  return args;
}

void StagedOps::combine(const ops::CombineArgs& host) {
  Staging staging = stage();
  const void* out = staging.activations_in(host.out, product({host.rows, host.hidden}));
  device_->combine(stage_combine(staging, host, out));
  staging.finish();
}

void StagedOps::gdn(const ops::GdnArgs& host) {
  Staging staging = stage();
  ops::GdnArgs args = host;
  const ops::GdnShape& shape = host.shape;
  const int rows = host.batch.num_rows;
  const size_t values = product({rows, shape.value_heads, shape.value_dim});
  args.qkv = staging.activations_in(host.qkv, product({rows, shape.channels()}));
  args.z = staging.activations_in(host.z, values);
  args.a = staging.in(host.a, product({rows, shape.value_heads}));
  args.b = staging.in(host.b, product({rows, shape.value_heads}));
  args.conv_weight = staging.in(host.conv_weight, product({shape.channels(), shape.conv_kernel}));
  args.a_log = staging.in(host.a_log, product({shape.value_heads}));
  args.dt_bias = staging.in(host.dt_bias, product({shape.value_heads}));
  args.norm = staging.in(host.norm, product({shape.value_dim}));
  args.out = staging.activations_out(host.out, values);
  StagedSlots slots(staging, host.batch);
  args.conv_ring = slots.activation_ring(host.conv_ring);
  args.matrix_offset =
      slots.single(host.matrix_offset,
                   product({shape.value_heads, shape.key_dim, shape.value_dim}) * sizeof(float));
  if (host.verify) {
    args.pending_offset =
        slots.single(host.pending_offset, ops::GdnPending{shape}.bytes(host.pending_rows));
    args.accepted_offset = slots.single(host.accepted_offset, sizeof(int32_t));
  }
  std::vector<ops::RowSpan> spans;
  args.batch = slots.upload(spans);
  begin_batch(args.batch);
  device_->gdn(args);
  staging.finish();
}

void StagedOps::ngram_ids(const ops::NgramIdsArgs& host) {
  Staging staging = stage();
  ops::NgramIdsArgs args = host;
  const int rows = host.batch.num_rows;
  NgramHash hash = *host.hash;
  std::vector<int64_t> constants = hash.multipliers;
  constants.insert(constants.end(), hash.primes.begin(), hash.primes.end());
  constants.insert(constants.end(), hash.offsets.begin(), hash.offsets.end());
  hash.device_constants = staging.in(constants.data(), constants.size());
  args.hash = &hash;
  args.table_rows = staging.out(host.table_rows, product({rows, hash.heads()}));
  StagedSlots slots(staging, host.batch);
  args.token_ring = slots.raw_ring(host.token_ring);
  std::vector<ops::RowSpan> spans;
  args.batch = slots.upload(spans);
  args.ids = begin_batch(args.batch, {host.ids, product({rows})}).ids;
  device_->ngram_ids(args);
  staging.finish();
}

void StagedOps::ngram_gather(const ops::NgramGatherArgs& host) {
  Staging staging = stage();
  ops::NgramGatherArgs args = host;
  ops::NgramTable table = *host.table;
  int64_t rows_left = table.num_rows;
  for (const void*& shard : table.shards) {
    const int64_t rows = std::min(rows_left, table.rows_per_shard);
    rows_left -= rows;
    shard = staging.in(
        static_cast<const std::byte*>(shard),
        static_cast<size_t>(rows) * static_cast<size_t>(table.row_dim) * dtype_bytes(table.dtype));
  }
  args.table = &table;
  args.table_rows = staging.in(host.table_rows, product({host.rows, host.heads}));
  args.out = staging.activations_out(host.out, product({host.rows, host.heads, table.row_dim}));
  device_->ngram_gather(args);
  staging.finish();
}

void StagedOps::ple_mix(const ops::PleMixArgs& host) {
  Staging staging = stage();
  ops::PleMixArgs args = host;
  const size_t wide = product({host.branches, host.hidden});
  const size_t rows = product({host.batch.num_rows});
  args.key = staging.activations_in(host.key, rows * wide);
  args.value = staging.activations_in(host.value, rows * product({host.hidden}));
  args.norm_key = staging.in(host.norm_key, wide);
  args.norm_query = staging.in(host.norm_query, wide);
  args.norm_conv = staging.in(host.norm_conv, wide);
  args.conv_weight = staging.in(host.conv_weight, wide * product({host.conv_kernel}));
  args.wide = staging.activations_out(host.wide, rows * wide);
  args.delta = staging.activations_out(host.delta, rows * wide);
  StagedSlots slots(staging, host.batch);
  args.conv_ring = slots.activation_ring(host.conv_ring);
  std::vector<ops::RowSpan> spans;
  args.batch = slots.upload(spans);
  begin_batch(args.batch);
  device_->ple_mix(args);
  staging.finish();
}

void StagedOps::qsa_front(const ops::QsaFrontArgs& host) {
  Staging staging = stage();
  ops::QsaFrontArgs args = host;
  const ops::QsaShape& shape = host.shape;
  const int rows = host.batch.num_rows;
  const size_t frequencies = product({shape.rotary_dim}) / 2;
  args.rope.inv_freq = staging.in(host.rope.inv_freq, frequencies);
  args.rope.axis = staging.in(host.rope.axis, frequencies);
  args.q_gate =
      staging.activations_in(host.q_gate, product({rows, shape.heads, 2, shape.head_dim}));
  args.k = staging.activations_in(host.k, product({rows, shape.kv_heads, shape.head_dim}));
  args.v = staging.activations_in(host.v, product({rows, shape.kv_heads, shape.head_dim}));
  args.index_qk = staging.activations_in(host.index_qk,
                                         product({rows, shape.index_heads + 1, shape.index_dim}));
  args.q_norm = staging.in(host.q_norm, product({shape.head_dim}));
  args.k_norm = staging.in(host.k_norm, product({shape.head_dim}));
  args.index_q_norm = staging.in(host.index_q_norm, product({shape.index_dim}));
  args.index_k_norm = staging.in(host.index_k_norm, product({shape.index_dim}));
  args.q = staging.activations_out(host.q, product({rows, shape.heads, shape.head_dim}));
  args.index_q =
      staging.activations_out(host.index_q, product({rows, shape.index_heads, shape.index_dim}));
  StagedSlots slots(staging, host.batch);
  args.cache = stage_pages(staging, traits_, shape, host.cache, host.batch, true);
  args.cache.raw_keys = slots.activation_ring(host.cache.raw_keys);
  args.cache.positions = slots.raw_ring(host.cache.positions);
  std::vector<ops::RowSpan> spans;
  args.batch = slots.upload(spans);
  args.positions = begin_batch(args.batch, {}, {host.positions, product({rows, 3})}).positions;
  device_->qsa_front(args);
  staging.finish();
}

void StagedOps::qsa_select(const ops::QsaSelectArgs& host) {
  Staging staging = stage();
  ops::QsaSelectArgs args = host;
  const ops::QsaShape& shape = host.shape;
  const int rows = host.batch.num_rows;
  args.index_q =
      staging.activations_in(host.index_q, product({rows, shape.index_heads, shape.index_dim}));
  args.blocks = staging.out(host.blocks, product({rows, host.budget_blocks}));
  args.counts = staging.out(host.counts, product({rows}));
  args.cache = stage_pages(staging, traits_, shape, host.cache, host.batch, false);
  set_max_context(args);
  StagedSlots slots(staging, host.batch);
  std::vector<ops::RowSpan> spans;
  args.batch = slots.upload(spans);
  begin_batch(args.batch);
  device_->qsa_select(args);
  staging.finish();
}

void StagedOps::qsa_attend(const ops::QsaAttendArgs& host) {
  Staging staging = stage();
  ops::QsaAttendArgs args = host;
  const ops::QsaShape& shape = host.shape;
  const int rows = host.batch.num_rows;
  const size_t queries = product({rows, shape.heads, shape.head_dim});
  args.q = staging.activations_in(host.q, queries);
  args.q_gate = staging.activations_in(host.q_gate, 2 * queries);
  args.blocks = staging.in(host.blocks, product({rows, host.budget_blocks}));
  args.counts = staging.in(host.counts, product({rows}));
  args.out = staging.activations_out(host.out, queries);
  args.cache = stage_pages(staging, traits_, shape, host.cache, host.batch, false);
  set_max_context(args);
  StagedSlots slots(staging, host.batch);
  std::vector<ops::RowSpan> spans;
  args.batch = slots.upload(spans);
  begin_batch(args.batch);
  device_->qsa_attend(args);
  staging.finish();
}

void StagedOps::router(const ops::RouterArgs& host) {
  Staging staging = stage();
  ops::RouterArgs args = host;
  args.x = staging.activations_in(host.x, product({host.rows, host.gate.in_features}));
  args.gate = staging.weight(host.gate);
  args.shared_gate = staging.weight(host.shared_gate);
  args.logits = staging.out(host.logits, product({host.rows, host.num_experts}));
  args.shared_logit = staging.out(host.shared_logit, product({host.rows}));
  args.ids = staging.out(host.ids, product({host.rows, host.top_k}));
  args.weights = staging.out(host.weights, product({host.rows, host.top_k}));
  device_->router(args);
  staging.finish();
}

void StagedOps::experts(const ops::ExpertsArgs& host) {
  Staging staging = stage();
  ops::ExpertsArgs args = host;
  const size_t count = product({host.rows, host.shared.down.out_features});
  args.x = staging.activations_in(host.x, count);
  args.ids = staging.in(host.ids, product({host.rows, host.top_k}));
  args.weights = staging.in(host.weights, product({host.rows, host.top_k}));
  args.shared_logit = staging.in(host.shared_logit, product({host.rows}));
  const std::vector<ops::ExpertWeight> experts = staging.experts(host.experts);
  args.experts = experts;
  args.shared = {staging.weight(host.shared.gate), staging.weight(host.shared.up),
                 staging.weight(host.shared.down)};
  args.out = staging.activations_out(host.out, count);
  ops::CombineArgs combine;
  if (host.combine != nullptr) {
    combine = stage_combine(staging, *host.combine, args.out);
    args.combine = &combine;
  }
  device_->experts(args);
  staging.finish();
}

void StagedOps::finish(const ops::FinishArgs& host) {
  Staging staging = stage();
  ops::FinishArgs args = host;
  const int rows = host.batch.num_rows;
  args.wide = staging.activations_in(host.wide, product({rows, host.width}));
  args.selected =
      staging.activations_out(host.selected, product({host.num_logit_rows, host.width}));
  StagedSlots slots(staging, host.batch);
  args.token_ring = slots.raw_ring(host.token_ring);
  args.wide_offset = slots.single_activations(host.wide_offset, product({host.width}));
  std::vector<ops::RowSpan> spans;
  args.batch = slots.upload(spans);
  const ops::LaunchBuffers buffers = begin_batch(args.batch, {host.ids, product({rows})}, {},
                                                 {host.logit_rows, product({host.num_logit_rows})});
  args.ids = buffers.ids;
  args.logit_rows = buffers.logit_rows;
  device_->finish(args);
  staging.finish();
}

void StagedOps::sample(const ops::SampleArgs& host) {
  Staging staging = stage();
  ops::SampleArgs args = host;
  args.logits = staging.in(host.logits, host.rows.size() * product({host.vocab}));
  device_->sample(args);
  staging.finish();
}

}  // namespace

std::unique_ptr<ops::Ops> make_staged_ops(std::unique_ptr<ops::Ops> device) {
  return std::make_unique<StagedOps>(std::move(device));
}

}  // namespace tessera::test
