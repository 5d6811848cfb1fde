// SPDX-License-Identifier: Apache-2.0
// The forward pass as a list of ops. Backend-neutral: it sees weights, state offsets and an Ops
// object.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/arena.h"
#include "core/memory.h"
#include "model/config.h"
#include "model/state_layout.h"
#include "model/weights.h"
#include "ops/ops.h"

namespace tessera {

/// Receives intermediate values of a launch (verify, tests). `name` is the tensor kind: attn_in,
/// attn_inject (logits, before 2 * sigmoid), attn_out, mlp_out, router_logits, ple, layer,
/// final_hidden. The draft layer is the one after the last.
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
  /// Decode role, with a draft layer: GDN applies the rows that were accepted since the last such
  /// launch, and leaves its own pending (ops::GdnArgs::verify).
  bool verify = false;
  bool in_round =
      false;  // the wide row of each sequence is stored when it is known (ops::AcceptArgs)
  Tap* tap = nullptr;
};

/// The wide rows that the draft layer reads.
enum class DraftSource : uint8_t {
  kTrunk,  // of the last `forward`
  kDraft,  // of the last `draft`: the layer's own output
  kSlot,   // of each span, as its last trunk launch stored it; one row a span
};

/// How the rows of a draft launch choose the blocks that they attend to.
enum class DraftSelection : uint8_t {
  kFresh,      // each by its own query
  kKept,       // the same with room for what they complete, for launches that go on from it
  kContinued,  // as the row of the last launch that they follow, and what was completed since
};

/// Rows of the draft layer: row i joins the wide row of token i with the id of token i + 1.
struct DraftLaunch {
  ops::RowBatch batch;                     // positions of the wide rows
  std::span<const int32_t> ids{};          // [rows] ids of the tokens that follow
  std::span<const int32_t> positions{};    // [rows, 3] RoPE positions of the wide rows
  std::span<const int32_t> source_rows{};  // [rows] rows of the source
  DraftSource source = DraftSource::kTrunk;
  DraftSelection selection = DraftSelection::kFresh;  // kContinued: one row a span, kDraft
  bool cache_only = false;  // keys, values and index keys, nothing else: no logits, no output
  int budget_blocks = 0;
  Tap* tap = nullptr;
};

/// What a round does beside its rows: all of it follows from the key of the recorded step.
struct RoundShape {
  bool verify = false;           // rows beyond the first of a sequence are drafts (Launch::verify)
  bool best_only = false;        // every sequence draws the best token, without log-probabilities
  bool best_drafts = false;      // every sequence draws the best token
  bool share_selection = false;  // drafts after the first one go on from its selection
  int lagging_spans = 0;         // the first sequences, whose rows the draft layer reads ..
  int lagging_rows = 0;          // .. and their rows
  /// Of these, the first ones that get a draft of each number; does not grow.
  std::array<int, ops::kMaxRoundDrafts> drafting{};

  bool operator==(const RoundShape&) const = default;
};

class TextModel {
 public:
  /// All references must outlive the model. `pool` is the base of the page pool. Weights, pool and
  /// slots lie in the memory of `ops`.
  TextModel(const ModelConfig& config, const ModelWeights& weights, const StateLayout& layout,
            ops::Ops& ops, std::byte* pool, int max_context);

  /// Runs the rows through the model and advances the state of their sequences.
  void forward(const Launch& launch);
  /// Applies what the last verify launch of these sequences left and what was accepted of it;
  /// spans without rows.
  void apply_pending(const ops::RowBatch& batch);
  /// Makes row `row` of the last `forward` the stored wide row of the sequence.
  void keep_wide_row(int row, std::byte* slot);

  /// Runs rows through the draft layer. Needs weights and state of one.
  void draft(const DraftLaunch& launch);
  /// Logits [count, vocab] of rows first .. first + count - 1 of the last `draft`, to host memory;
  /// with a shortlist [count, shortlist].
  void draft_logits(int first, int count, float* out);
  /// Rows of the draft head whose tokens are below `valid_vocab`.
  int draft_vocab(int valid_vocab) const;
  /// Draws a token from each row of the last `draft`, as `sample` does.
  void sample_drafts(ops::SampleArgs args);

  /// A whole round without the host (ops/round.h), of what `Ops::begin_round` returned; the same
  /// call again goes on where this one ends.
  void round(const ops::RoundState& state, const RoundShape& shape, int budget_blocks);

  /// Logits [count, vocab] of entries first .. first + count - 1 of the last launch's `logit_rows`,
  /// to host memory.
  void logits(int first, int count, float* out);

  /// Draws the tokens of entries first .. first + args.rows.size() - 1; fills in what args does not
  /// say about the logits.
  void sample(int first, ops::SampleArgs args);

 private:
  /// Buffers of the trunk or of the draft layer; activations unless typed.
  struct Pass {
    explicit Pass(Memory& memory) : arena(memory) {}

    Arena arena;              // lives until the next launch
    void* wide = nullptr;     // [rows, branches * hidden] the residual branches
    void* normed = nullptr;   // [rows, branches * hidden] their norm for the next mixer, when fused
    void* mixed = nullptr;    // [rows, hidden] what a block reads
    float* inject = nullptr;  // [rows, branches] how a block writes back
    void* out = nullptr;      // [rows, hidden] what a block computed
    void* selected = nullptr;                 // [logit_rows, branches * hidden]
    void* hidden = nullptr;                   // [logit_rows, hidden] after the final mixer
    float* logits = nullptr;                  // [logit_rows, head rows] of a decode launch
    const ops::LinearWeight* head = nullptr;  // the whole one, or that of a shortlist
    bool normed_is_current = false;
    ops::LaunchBuffers inputs{};
    ops::Role role = ops::Role::kPrefill;

    size_t head_rows() const { return static_cast<size_t>(head->out_features); }
  };

  void reserve_trunk(ops::Role role, int num_rows, int logit_rows);
  void reserve_buffers(ops::Role role, int num_rows, int logit_rows);
  void run(const Launch& launch);
  void reserve_draft(ops::Role role, int rows, int logit_rows);
  size_t wide_bytes(int rows) const;
  void hold_draft_wide(int rows);
  void run_round(const ops::RoundState& state, const RoundShape& shape, int budget_blocks);
  void run_round_trunk(const ops::RoundState& state, const RoundShape& shape, int budget_blocks);
  void run_round_drafts(const ops::RoundState& state, const RoundShape& shape, int budget_blocks);
  /// Selected blocks of the rows of a launch.
  struct Lists {
    int32_t* blocks = nullptr;  // [rows, stride]
    int32_t* counts = nullptr;  // [rows]
    int stride = 0;
  };
  /// Where the lists of a QSA layer come from and go to. Neither `from` nor `to`: they live as long
  /// as the block does.
  struct Selecting {
    bool cache_only = false;  // no lists: keys, values and index keys for later rows alone
    Lists from{};             // lists to go on from
    Lists to{};
  };
  void hold_draft_lists(int rows, int budget);
  struct ListBudget {
    int kept = 0, continued = 0;
  };
  ListBudget list_budget(int budget) const;
  Selecting draft_selecting(DraftSelection selection, int budget);
  void run_draft(const Launch& rows, const void* source, const Selecting& how);
  Lists select(const ops::QsaCache& cache, const void* index_q, const Launch& launch,
               const Selecting& how);
  const void* draft_source(const DraftLaunch& launch);
  void run_ple(int layer, const Launch& launch);
  void run_gdn(int layer, const Launch& launch);
  void run_qsa(int layer, const QsaWeights& weights, const Launch& launch, const Selecting& how);
  void run_moe(int layer, const MoeWeights& weights, const float* next_norm, const Launch& launch);
  void mix(const ops::MixerWeights& weights, const Launch& launch);
  ops::GdnArgs gdn_constants(int layer) const;
  ops::CombineArgs combine_into(const float* next_norm, int rows) const;
  const float* norm_after(int layer) const;
  void finish(const Launch& launch);
  void mix_final(const ops::MixerWeights& weights, const void* wide, int rows);
  void head(int first, int count, float* out);
  void read_logits(int first, int count, float* out);
  void sample_rows(int first, ops::SampleArgs args);
  float* compute_logits(int first, int count);
  ops::QsaCache qsa_cache(int layer) const;
  ops::RopeTable place_rope();
  void place_shortlist();

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
  Arena block_arena_;     // lives within one block
  Arena constant_arena_;  // lives as long as the model
  ops::RopeTable rope_;
  const int32_t* listed_ = nullptr;  // ids of the draft head's rows, when it has a shortlist

  Pass trunk_;
  Pass draft_;
  MemoryBlock draft_wide_{};   // its branches: the next draft may read them
  MemoryBlock draft_lists_{};  // of a first draft, and as later ones of its chain extend them
  int draft_list_rows_ = 0;    // that there is room for
  Lists last_lists_{};         // of the last draft launch that kept or continued some
  Pass* pass_ = &trunk_;       // the one that runs, or whose results are read
};

}  // namespace tessera
