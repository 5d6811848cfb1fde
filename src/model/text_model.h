// SPDX-License-Identifier: Apache-2.0
// The forward pass as a list of ops. Backend-neutral: it sees weights, state offsets and an Ops
// object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/arena.h"
#include "model/config.h"
#include "model/state_layout.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace tessera {

/// Receives intermediate values of a launch (verify, tests). Names follow golden/README: attn_in,
/// attn_inject (raw logits), attn_out, mlp_out, router_logits, ple, layer, final_hidden.
class Tap {
 public:
  virtual ~Tap() = default;
  virtual void values(std::string_view name, int layer, const float* data, int rows, int cols) = 0;
  virtual void experts(int layer, const int32_t* ids, int rows, int top_k) = 0;
  virtual void ngram(int layer, const int64_t* table_rows, int rows, int heads) = 0;
  /// Selected blocks of each row, ascending; the open tail is not listed.
  virtual void selection(int layer, const int32_t* blocks, const int32_t* counts, int rows,
                         int budget_blocks) = 0;
};

struct Launch {
  ops::RowBatch batch;
  std::span<const int32_t> ids{};         // [rows]
  std::span<const int32_t> positions{};   // [rows, 3] RoPE positions
  std::span<const int32_t> logit_rows{};  // rows whose logits are wanted, ascending
  int budget_blocks = 0;
  Tap* tap = nullptr;
};

class TextModel {
 public:
  /// All references must outlive the model. `pool` is the base of the page pool.
  TextModel(const ModelConfig& config, const ModelWeights& weights, const StateLayout& layout,
            ops::Ops& ops, std::byte* pool);

  /// Runs the rows through the model, advances the state of their sequences, writes
  /// `logits` [logit_rows, vocab].
  void forward(const Launch& launch, float* logits);

 private:
  struct Buffers;
  void run_ple(int layer, const Launch& launch, Buffers& buffers);
  void run_gdn(int layer, const Launch& launch, Buffers& buffers);
  void run_qsa(int layer, const Launch& launch, Buffers& buffers);
  void run_moe(int layer, const Launch& launch, Buffers& buffers);
  void store_tokens(const Launch& launch);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  const StateLayout& layout_;
  ops::Ops& ops_;
  std::byte* pool_;
  Arena arena_;
};

}  // namespace tessera
