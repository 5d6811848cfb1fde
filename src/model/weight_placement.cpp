// SPDX-License-Identifier: Apache-2.0
// Walks every weight of the model once and replaces its pointers by those of the copies.
#include "model/weight_placement.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "core/arena.h"

namespace tessera {
namespace {

constexpr size_t kAlign = 256;

size_t count_of(int first, int second = 1) {
  return static_cast<size_t>(first) * static_cast<size_t>(second);
}

size_t scale_bytes(const ops::LinearWeight& weight) {
  if (weight.scale == nullptr) return 0;
  const int rows = (weight.out_features + ops::kScaleBlock - 1) / ops::kScaleBlock;
  return count_of(rows, weight.scale_cols()) * sizeof(float);
}

/// Copies arrays to a device, each only once however many weights share it.
class Placer {
 public:
  Placer(Memory& memory, Arena& arena, size_t total_bytes,
         const std::function<void(double)>& on_progress)
      : memory_(memory), arena_(arena), total_(total_bytes), on_progress_(on_progress) {}

  std::byte* take(size_t bytes) {
    return static_cast<std::byte*>(arena_.take_bytes(align_up(bytes, kAlign)));
  }

  void fill(std::byte* to, const void* from, size_t bytes) {
    memory_.copy_in(to, from, bytes);
    done_ += bytes;
    if (on_progress_ && total_ > 0)
      on_progress_(std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)));
  }

  const void* copy(const void* from, size_t bytes) {
    if (from == nullptr || bytes == 0) return nullptr;
    std::byte*& placed = placed_[from];
    if (placed == nullptr) {
      placed = take(bytes);
      fill(placed, from, bytes);
    }
    return placed;
  }

  void floats(const float*& values, size_t count) {
    values = static_cast<const float*>(copy(values, count * sizeof(float)));
  }

  void linear(ops::LinearWeight& weight) {
    weight.data = copy(weight.data, weight.bytes());
    weight.scale = static_cast<const float*>(copy(weight.scale, scale_bytes(weight)));
  }

  void expert(ops::ExpertWeight& expert) {
    linear(expert.gate);
    linear(expert.up);
    linear(expert.down);
  }

  /// Gate, up and down of an expert follow each other, experts at one stride; scales likewise.
  void experts(std::vector<ops::ExpertWeight>& experts) {
    if (experts.empty()) return;
    const auto stride = [](const ops::ExpertWeight& each, auto&& bytes_of) {
      return align_up(bytes_of(each.gate), kAlign) + align_up(bytes_of(each.up), kAlign) +
             align_up(bytes_of(each.down), kAlign);
    };
    const auto data_bytes = [](const ops::LinearWeight& weight) { return weight.bytes(); };
    const size_t data_stride = stride(experts[0], data_bytes);
    const size_t scale_stride = stride(experts[0], scale_bytes);
    std::byte* data = take(data_stride * experts.size());
    std::byte* scale = scale_stride == 0 ? nullptr : take(scale_stride * experts.size());
    for (ops::ExpertWeight& each : experts) {
      for (ops::LinearWeight* weight : {&each.gate, &each.up, &each.down}) {
        fill(data, weight->data, weight->bytes());
        weight->data = data;
        data += align_up(weight->bytes(), kAlign);
        const size_t bytes = scale_bytes(*weight);
        if (bytes == 0) continue;
        fill(scale, weight->scale, bytes);
        weight->scale = reinterpret_cast<const float*>(scale);
        scale += align_up(bytes, kAlign);
      }
    }
  }

  void table(ops::NgramTable& table) {
    const size_t row_bytes = count_of(table.row_dim) * dtype_bytes(table.dtype);
    std::byte* all = take(static_cast<size_t>(table.num_rows) * row_bytes);
    int64_t first = 0;
    for (const void* shard : table.shards) {
      const int64_t rows = std::min(table.rows_per_shard, table.num_rows - first);
      fill(all + static_cast<size_t>(first) * row_bytes, shard,
           static_cast<size_t>(rows) * row_bytes);
      first += rows;
    }
    table.shards = {all};
    table.rows_per_shard = table.num_rows;
  }

  void hash(NgramHash& hash) {
    std::vector<int64_t> constants = hash.multipliers;
    constants.insert(constants.end(), hash.primes.begin(), hash.primes.end());
    constants.insert(constants.end(), hash.offsets.begin(), hash.offsets.end());
    std::byte* placed = take(constants.size() * sizeof(int64_t));
    fill(placed, constants.data(), constants.size() * sizeof(int64_t));
    hash.device_constants = reinterpret_cast<const int64_t*>(placed);
  }

 private:
  Memory& memory_;
  Arena& arena_;
  size_t total_;
  const std::function<void(double)>& on_progress_;
  size_t done_ = 0;
  std::map<const void*, std::byte*> placed_{};
};

void place_mixer(Placer& placer, ops::MixerWeights& mixer, const ModelConfig& config) {
  placer.floats(mixer.norm, count_of(config.wide()));
  placer.linear(mixer.down);
  placer.linear(mixer.up);
  placer.linear(mixer.inject);
}

void place_gdn(Placer& placer, GdnWeights& gdn, const ops::GdnShape& shape) {
  for (ops::LinearWeight* weight : {&gdn.in_qkv, &gdn.in_z, &gdn.in_a, &gdn.in_b, &gdn.out})
    placer.linear(*weight);
  placer.floats(gdn.conv, count_of(shape.channels(), shape.conv_kernel));
  placer.floats(gdn.a_log, count_of(shape.value_heads));
  placer.floats(gdn.dt_bias, count_of(shape.value_heads));
  placer.floats(gdn.norm, count_of(shape.value_dim));
}

void place_qsa(Placer& placer, QsaWeights& qsa, const ops::QsaShape& shape) {
  for (ops::LinearWeight* weight : {&qsa.q_gate, &qsa.k, &qsa.v, &qsa.index_qk, &qsa.out})
    placer.linear(*weight);
  placer.floats(qsa.q_norm, count_of(shape.head_dim));
  placer.floats(qsa.k_norm, count_of(shape.head_dim));
  placer.floats(qsa.index_q_norm, count_of(shape.index_dim));
  placer.floats(qsa.index_k_norm, count_of(shape.index_dim));
}

void place_ple(Placer& placer, PleWeights& ple, const ModelConfig& config) {
  placer.linear(ple.key);
  placer.linear(ple.value);
  for (const float** norm : {&ple.norm_key, &ple.norm_query, &ple.norm_conv})
    placer.floats(*norm, count_of(config.wide()));
  placer.floats(ple.conv, count_of(config.wide(), config.ple.conv_kernel));
  placer.table(ple.table);
  placer.hash(ple.hash);
}

void place_moe(Placer& placer, MoeWeights& moe) {
  placer.linear(moe.router);
  placer.linear(moe.shared_gate);
  placer.expert(moe.shared);
  placer.experts(moe.experts);
}

void place_layer(Placer& placer, LayerWeights& layer, const ModelConfig& config) {
  place_mixer(placer, layer.attn_mixer, config);
  place_mixer(placer, layer.mlp_mixer, config);
  if (layer.kind == LayerKind::kGdn)
    place_gdn(placer, layer.gdn, config.gdn);
  else
    place_qsa(placer, layer.qsa, config.qsa);
  place_moe(placer, layer.moe);
}

void place_draft(Placer& placer, DraftWeights& draft, const ModelConfig& config) {
  placer.floats(draft.norm_embedding, count_of(config.hidden));
  placer.floats(draft.norm_hidden, count_of(config.wide()));
  placer.linear(draft.embedding);
  placer.linear(draft.hidden);
  place_layer(placer, draft.layer, config);
  place_mixer(placer, draft.final_mixer, config);
  placer.linear(draft.own_head);
}

size_t total_bytes(const ModelWeights& weights) {
  size_t total = 0;
  for (const SizeEntry& entry : weights.sizes) total += entry.bytes;
  return total;
}

}  // namespace

ModelWeights place_weights(ModelWeights weights, const ModelConfig& config, Memory& memory,
                           const std::function<void(double fraction)>& on_progress) {
  if (memory.on_host()) return weights;
  auto arena = std::make_shared<Arena>(memory);
  Placer placer(memory, *arena, total_bytes(weights), on_progress);
  placer.linear(weights.embed);
  placer.linear(weights.lm_head);
  place_mixer(placer, weights.final_mixer, config);
  for (LayerWeights& layer : weights.layers) place_layer(placer, layer, config);
  if (weights.draft) place_draft(placer, *weights.draft, config);
  for (PleWeights& ple : weights.ple) place_ple(placer, ple, config);
  weights.placed = std::move(arena);
  weights.checkpoint.reset();
  weights.converted = {};
  weights.copied = {};
  return weights;
}

}  // namespace tessera
