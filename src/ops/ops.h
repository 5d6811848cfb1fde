// SPDX-License-Identifier: Apache-2.0
// A backend is one implementation of every op. The model calls this and sees no thread, stream or
// graph. All pointers in the arguments of an op lie in the backend's memory.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/memory.h"
#include "ops/draft.h"
#include "ops/embed.h"
#include "ops/finish.h"
#include "ops/gdn.h"
#include "ops/linear.h"
#include "ops/mixer.h"
#include "ops/moe.h"
#include "ops/ple.h"
#include "ops/qsa.h"
#include "ops/round.h"
#include "ops/sample.h"

namespace tessera::ops {

/// Which version of an op runs here, and why; printed at start and by `tessera info`.
struct KernelNote {
  std::string op{};
  std::string kernel{};
  std::string reason{};
};

/// What the layout of activations and state depends on.
struct Traits {
  DType activation = DType::kF32;  // of every buffer called "activations", rings included
  DType index_key = DType::kF32;   // of pooled index keys
  bool combine_norms = false;      // combine writes the next mixer's N (CombineArgs::normed)
  bool drafts = false;             // runs the draft layer: `draft_input` and its source rows
  bool rounds = false;             // rounds without the host are the faster ones (ops/round.h)
};

/// What changes from launch to launch, in host memory.
struct LaunchInputs {
  RowBatch batch;
  std::span<const int32_t> ids{};         // [rows]
  std::span<const int32_t> positions{};   // [rows, 3]
  std::span<const int32_t> logit_rows{};  // row indices, ascending
  /// [rows] of the draft layer: which of the wide rows that it reads; else empty.
  std::span<const int32_t> source_rows{};
};

/// The same in the backend's memory, valid until the next `begin`.
struct LaunchBuffers {
  const int32_t* ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* logit_rows = nullptr;
  const int32_t* source_rows = nullptr;
};

/// Rows of a part of a round: `batch` has the right counts; its positions are those of
/// `begin_round` where the backend's memory is not the host's.
struct RoundRows {
  RowBatch batch;
  LaunchBuffers buffers;
};

/// The lists of ops that a launch may be.
enum class StepKind : uint8_t {
  kTrunk,
  kVerify,      // the trunk, its rows left pending
  kDraft,       // the draft layer with logits
  kDraftCache,  // the draft layer up to its keys and values
  kRound,       // a whole round (ops/round.h)
  kDraftKept,   // the draft layer with logits, its selections kept
  kDraftChain,  // the draft layer with logits, on kept selections
};

/// Launches with equal keys differ in their inputs only: the same ops with the same arguments.
struct StepKey {
  StepKind kind = StepKind::kTrunk;
  int num_spans = 0;
  int num_rows = 0;
  int num_logit_rows = 0;
  const void* buffers = nullptr;      // where the activations of the launch lie
  const void* temporaries = nullptr;  // where those within a block lie
  const void* source = nullptr;       // wide rows that the draft layer reads
  const void* lists = nullptr;        // selections that it goes on from
  // Of a round.
  const void* round = nullptr;  // where its state lies
  bool verify = false;          // its trunk leaves rows pending
  bool best_only = false;       // DrawArgs, of the trunk
  bool best_drafts = false;     // of the draft layer
  int lagging_spans = 0, lagging_rows = 0;
  std::array<int, kMaxRoundDrafts> drafting{};  // sequences that get a draft of each number

  bool operator==(const StepKey&) const = default;
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual std::string_view name() const = 0;
  virtual std::vector<KernelNote> kernels() const = 0;
  virtual Traits traits() const { return {}; }
  virtual Memory& memory() { return host_memory(); }

  /// Hands over the inputs of the ops that follow; spans of their batches must be those of
  /// `inputs`.
  virtual LaunchBuffers begin(const LaunchInputs& inputs) {
    return {inputs.ids.data(), inputs.positions.data(), inputs.logit_rows.data(),
            inputs.source_rows.data()};
  }
  /// Calls `ops`, or repeats what it did when it was called for an equal key: it may do nothing but
  /// call ops, with arguments that follow from the key alone.
  virtual void repeat(const StepKey& key, const std::function<void()>& ops) {
    static_cast<void>(key);
    ops();
  }
  /// Drops what `repeat` has kept: buffers that a key does not name move, or another caller begins,
  /// whose buffers may lie where those of the last one lay.
  virtual void forget_repeats() {}
  /// Kernels in the step that `repeat` repeated last; 0 where nothing is recorded.
  virtual int repeated_kernels() const { return 0; }
  /// Calls of `repeat` so far that took longer than the next one with their key will.
  virtual int64_t first_repeats() const { return 0; }

  virtual void embed(const EmbedArgs& args) = 0;
  /// Called where `traits().drafts` says so.
  virtual void draft_input(const DraftInputArgs& args) {
    static_cast<void>(args);
    throw std::logic_error("this backend has no draft layer");
  }
  virtual void linear(const LinearArgs& args) = 0;
  virtual void mixer(const MixerArgs& args) = 0;
  virtual void combine(const CombineArgs& args) = 0;
  virtual void gdn(const GdnArgs& args) = 0;
  virtual void ngram_ids(const NgramIdsArgs& args) = 0;
  virtual void ngram_gather(const NgramGatherArgs& args) = 0;
  virtual void ple_mix(const PleMixArgs& args) = 0;
  virtual void qsa_front(const QsaFrontArgs& args) = 0;
  virtual void qsa_select(const QsaSelectArgs& args) = 0;
  /// Called where `traits().drafts` says so.
  virtual void qsa_extend(const QsaExtendArgs& args) {
    static_cast<void>(args);
    throw std::logic_error("this backend shares no selections");
  }
  virtual void qsa_attend(const QsaAttendArgs& args) = 0;
  virtual void router(const RouterArgs& args) = 0;
  virtual void experts(const ExpertsArgs& args) = 0;
  virtual void finish(const FinishArgs& args) = 0;
  /// Waits for the results: the one synchronisation of a round.
  virtual void sample(const SampleArgs& args) = 0;

  // Rounds without the host; every op of a backend that has none throws std::logic_error.
  /// Hands over the rows of a round, and of those that repeat it.
  virtual RoundState begin_round(const RoundInputs& inputs);
  /// The ops that follow work on the first `rows` rows, of the first `spans` sequences, of this
  /// part of the last round. Batches of their arguments must have these counts.
  virtual RoundRows use_rows(RoundPart part, int spans, int rows);
  virtual void draw(const DrawArgs& args);
  virtual void accept(const AcceptArgs& args);
  virtual void take_drafts(const TakeDraftsArgs& args);
  virtual void advance(const AdvanceArgs& args);
  /// Ends a round: its report will be there once it has run. At most two are not read yet.
  virtual void end_round();
  /// The oldest report that was not read, when its round has run.
  virtual RoundReport read_round();
};

}  // namespace tessera::ops
