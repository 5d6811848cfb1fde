// SPDX-License-Identifier: Apache-2.0
// The engine: a loaded model that many clients submit requests to. Thread-safe. No tensor type
// leaks.
#pragma once

#include <tessera/error.h>
#include <tessera/model_info.h>
#include <tessera/request.h>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

enum class OpsKind { kFast, kReference };  // SIMD and threads, or the short FP32 oracle

/// Who drives decode rounds: the host, launch by launch, or the backend, round after round, which
/// the host reads one round later. The text is the same.
enum class RoundDriver { kAuto, kHost, kDevice };  // kAuto: the device where there is one

/// Weights of the head that drafts are drawn with: those of the checkpoint, or the same in block
/// FP8, half the bytes of BF16. Verification makes the text the same.
enum class DraftHead { kAuto, kWhole, kFp8 };  // kAuto: kFp8, but for the reference ops

struct EngineOptions {
  std::string model_dir{};
  std::string device = "cpu";    // "cpu", "cuda" or "cuda:N"
  double memory_fraction = 0.9;  // of the device memory left after the weights, for cache pages
  bool overlap_kernels = true;   // a device kernel may start before its predecessor has ended
  bool record_steps = true;      // decode steps are replayed as one CUDA graph
  RoundDriver rounds = RoundDriver::kAuto;
  OpsKind ops = OpsKind::kFast;
  CacheType cache_type = CacheType::kAuto;
  int threads = 0;         // 0: all cores this process may use
  int max_context = 0;     // 0: max_position_embeddings of the model
  int max_sequences = 16;  // sequences that run at once; others wait in the queue
  int max_draft = 5;       // K_max of the state rings
  int indexer_budget = 0;  // tokens QSA may select, a multiple of the block size; 0: the model's
  int valid_vocab = 0;     // ids from here on are never drawn (unused vocabulary rows); 0: all
  DraftHead draft_head = DraftHead::kAuto;
  /// A file of frequent ids (shortlist.h) to which the draft head is cut; empty: the whole head.
  std::string draft_shortlist{};
  /// Drafts after the first of a round attend to the blocks that the first one selected and to what
  /// was drafted since: less work, and where the context exceeds the budget other drafts.
  bool draft_share_selection = false;
  uint64_t vocabulary = 0;  // Tokenizer::fingerprint() that the list must name; 0: not compared
  int prefill_chunk = 0;    // rows of a prefill launch, a multiple of 64; 0: 512, on a device 4096
  /// Called while weights load, fraction in [0, 1].
  std::function<void(double fraction)> on_load_progress{};
};

struct EngineStats {
  int running = 0;
  int queued = 0;
  uint64_t prompt_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t failed_requests = 0;
  uint64_t pages_used = 0;
  uint64_t pages_total = 0;
};

/// One running request. Movable handle; dropping it cancels the request.
class Generation {
 public:
  Generation();
  ~Generation();
  Generation(Generation&&) noexcept;
  Generation& operator=(Generation&&) noexcept;

  /// Blocks until the next event. After kFinished it keeps returning that event.
  Event next();
  /// Asks the engine to stop at the next round; `next()` then yields kFinished / kCancelled.
  void cancel();

  struct Impl;
  explicit Generation(std::shared_ptr<Impl> impl);

 private:
  std::shared_ptr<Impl> impl_;
};

class Engine {
 public:
  /// Loads a checkpoint folder in the released layout (config.json, *.safetensors,
  /// generation_config.json).
  static Result<std::unique_ptr<Engine>> load(EngineOptions options);
  ~Engine();

  /// Validates and queues a request. Errors: kInvalidArgument, kContextLimit (with the numbers),
  /// kMismatch.
  Result<Generation> submit(Request request);

  const ModelInfo& info() const;
  EngineStats stats() const;

  /// Writes a snapshot with a fingerprint of weights, config and numerics version. Errors: I/O as
  /// kNotFound.
  Result<void> save_state(const StateHandle& state, const std::string& path) const;
  /// Reads one back; the file is untrusted: sizes, checksum and fingerprint are checked first.
  Result<StateHandle> load_state(const std::string& path);
  /// Token ids that a snapshot has absorbed.
  static const std::vector<int32_t>& state_tokens(const StateHandle& state);

  struct Impl;

 private:
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
