// SPDX-License-Identifier: Apache-2.0
// The forward pass as a list of ops. Backend-neutral: it sees weights, state offsets and an Ops
// object.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/arena.h"
#include "model/config.h"
#include "model/state_layout.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace tessera {

/// Receives intermediate values of a launch (verify, tests). `name` is the tensor kind: attn_in,
/// attn_inject (logits, before 2 * sigmoid), attn_out, mlp_out, router_logits, ple, layer,
/// final_hidden.
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
  std::span<const int32_t> positions{};   // [rows, 3] RoPE positions (t, h, w)
  std::span<const int32_t> logit_rows{};  // rows whose logits are wanted, ascending
  int budget_blocks = 0;                  // blocks QSA may select per row
  Tap* tap = nullptr;
};

class TextModel {
 public:
  /// All references must outlive the model. `pool` is the base of the page pool. Weights, pool and
  /// slots lie in the memory of `ops`.
  TextModel(const ModelConfig& config, const ModelWeights& weights, const StateLayout& layout,
            ops::Ops& ops, std::byte* pool, int max_context);

  /// Runs the rows through the model and advances the state of their sequences.
  void forward(const Launch& launch);

  /// Logits [count, vocab] of entries first .. first + count - 1 of the last launch's `logit_rows`,
  /// to host memory.
  void logits(int first, int count, float* out);

  /// Draws the tokens of entries first .. first + args.rows.size() - 1; fills in what args does not
  /// say about the logits.
  void sample(int first, ops::SampleArgs args);

 private:
  void reserve_buffers(const Launch& launch);
  void run(const Launch& launch);
  void run_ple(int layer, const Launch& launch);
  void run_gdn(int layer, const Launch& launch);
  void run_qsa(int layer, const Launch& launch);
  void run_moe(int layer, const Launch& launch);
  void mix(const ops::MixerWeights& weights, const Launch& launch);
  ops::CombineArgs combine_into(const float* next_norm, const Launch& launch) const;
  const float* norm_after(int layer) const;
  void finish(const Launch& launch);
  void head(int first, int count, float* out);
  float* compute_logits(int first, int count);
  ops::QsaCache qsa_cache(int layer) const;
  ops::RopeTable place_rope();

  // Taps see host floats, whatever the backend's memory and types.
  void tap_values(const Launch& launch, const char* name, int layer, const void* data, DType dtype,
                  int rows, int cols) const;
  void tap_activations(const Launch& launch, const char* name, int layer, const void* data,
                       int cols) const;
  template <class T>
  std::vector<T> on_host(const T* data, size_t count) const;

  /// `count` activations.
  void* take(Arena& arena, size_t count) const {
    return arena.take_bytes(count * dtype_bytes(traits_.activation));
  }

  const ModelConfig& config_;
  const ModelWeights& weights_;
  const StateLayout& layout_;
  ops::Ops& ops_;
  ops::Traits traits_;
  std::byte* pool_;
  int max_context_;
  Arena launch_arena_;    // lives until the next launch
  Arena block_arena_;     // lives within one block
  Arena constant_arena_;  // lives as long as the model
  ops::RopeTable rope_;

  // Buffers of the current launch, in launch_arena_; activations unless typed.
  void* wide_ = nullptr;      // [rows, branches * hidden] the residual branches
  void* normed_ = nullptr;    // [rows, branches * hidden] their norm for the next mixer, when fused
  void* mixed_ = nullptr;     // [rows, hidden] what a block reads
  float* inject_ = nullptr;   // [rows, branches] how a block writes back
  void* out_ = nullptr;       // [rows, hidden] what a block computed
  void* selected_ = nullptr;  // [logit_rows, branches * hidden]
  void* hidden_ = nullptr;    // [logit_rows, hidden] after the final mixer
  float* logits_ = nullptr;   // [logit_rows, vocab] of a decode launch
  bool normed_is_current_ = false;
  ops::LaunchBuffers inputs_{};
  ops::Role role_ = ops::Role::kPrefill;
};

}  // namespace tessera
