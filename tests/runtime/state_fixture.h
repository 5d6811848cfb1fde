// SPDX-License-Identifier: Apache-2.0
// A model with the smallest odd sizes, and recognisable bytes for every part of its state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/config.h"
#include "model/state_layout.h"
#include "runtime/page_pool.h"
#include "runtime/sequence_store.h"
#include "runtime/state_file.h"

namespace tessera::state_fixture {

inline constexpr int kVocab = 64;
inline constexpr uint64_t kWeights = 0x1122334455667788ULL;

inline ModelConfig tiny_config() {
  ModelConfig config;
  config.vocab_size = kVocab;
  config.hidden = 4;
  config.branches = 2;
  config.layers = {LayerKind::kGdn, LayerKind::kQsa, LayerKind::kGdn, LayerKind::kQsa};
  config.gdn = {.key_heads = 1, .value_heads = 3, .key_dim = 4, .value_dim = 5, .conv_kernel = 4};
  config.qsa = {.heads = 2,
                .kv_heads = 1,
                .head_dim = 5,
                .index_heads = 1,
                .index_dim = 3,
                .block = 4,
                .rotary_dim = 2};
  config.ple.layers = {1};
  config.ple.conv_kernel = 4;
  config.ple.ngram_size = 3;
  config.ple.heads_per_ngram = 2;
  config.ple.embed_dim = 8;
  return config;
}

inline constexpr StateOptions kOptions{.max_draft = 3, .draft_layer = true};

inline StateLayout tiny_layout(const StateOptions& options = kOptions) {
  return StateLayout::make(tiny_config(), options).value();
}

inline std::shared_ptr<PagePool> make_pool(const StateLayout& layout, int32_t pages) {
  return PagePool::make(layout.page_bytes(), pages).value();
}

inline StateIdentity identity_of(const StateLayout& layout) {
  return {.layout = &layout, .weights = kWeights, .vocab_size = kVocab};
}

inline std::vector<std::byte> encode(const StateSnapshot& snapshot, const StateIdentity& identity) {
  std::vector<std::byte> file;
  encode_state(snapshot, identity, [&file](std::span<const std::byte> bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
    return true;
  });
  return file;
}

/// Byte `index` of what a part of a layer holds for `stamp`; never zero.
inline std::byte pattern(StatePart part, int layer, uint64_t stamp, size_t index) {
  uint64_t mixed = stamp * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(part) * 1000003U +
                   static_cast<uint64_t>(layer) * 10007U + index * 31U;
  mixed ^= mixed >> 29;
  mixed *= 0xBF58476D1CE4E5B9ULL;
  return static_cast<std::byte>((mixed >> 40) % 255 + 1);
}

inline void write_pattern(std::byte* to, size_t bytes, StatePart part, int layer, uint64_t stamp) {
  for (size_t index = 0; index < bytes; ++index) to[index] = pattern(part, layer, stamp, index);
}

inline bool has_pattern(const std::byte* from, size_t bytes, StatePart part, int layer,
                        uint64_t stamp) {
  for (size_t index = 0; index < bytes; ++index)
    if (from[index] != pattern(part, layer, stamp, index)) return false;
  return true;
}

inline bool is_zero(const std::byte* from, size_t bytes) {
  for (size_t index = 0; index < bytes; ++index)
    if (from[index] != std::byte{0}) return false;
  return true;
}

/// Every part by its enumerator, not by the loops under test: fn(entry, layer, offset).
template <class Fn>
void for_each_part(const StateLayout& layout, Fn&& fn) {
  for (int index = 0; index < kNumStateParts; ++index) {
    const StateEntry& entry = layout.entry(static_cast<StatePart>(index));
    if (entry.host_only) continue;
    for (const int layer : entry.layers) fn(entry, layer, layout.offset(entry.part, layer));
  }
}

}  // namespace tessera::state_fixture
