// SPDX-License-Identifier: Apache-2.0
// Measuring an engine: speed at context frontiers, against ceilings measured in the same run.
#pragma once

#include <tessera/engine.h>
#include <tessera/error.h>
#include <tessera/request.h>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// What the memory and the processor of this machine can do, measured now.
struct MachineCeiling {
  int threads = 0;
  double copy_bytes_per_second = 0;  // bytes read plus bytes written
  double read_bytes_per_second = 0;
  double gemm_flops = 0;    // FP32 product of large matrices, 0 when no yardstick is built in
  std::string gemm_name{};  // "OpenBLAS 0.3.21 sgemm"
};

/// Weights for a bench without a checkpoint: the layer geometry of the released model, random
/// values.
enum class SyntheticWeights { kNone, kBf16, kFp8 };

/// What to measure of drafts: every depth in turns with plain decoding, on the same texts.
struct DraftBenchOptions {
  /// Drafts a round (K), or kDraftAuto. Empty: every K that EngineOptions::max_draft allows, and
  /// kDraftAuto.
  std::vector<int> depths{};
  std::vector<int> batches{1};  // sequences at once, each with a text of its own
  int tokens = 256;  // that each sequence generates in a turn, where the context has room
};

struct BenchOptions {
  EngineOptions engine{};
  SyntheticWeights synthetic = SyntheticWeights::kNone;
  int synthetic_layers = 0;  // 0: two layers with 64 experts; N: N layers of the whole geometry
  /// Empty: 128, 512, 2048, 8192, 32768, or as far as the model allows; 512 where all depths of
  /// drafts are measured.
  std::vector<int> contexts{};
  int decode_tokens = 32;                    // generated at each frontier
  std::optional<DraftBenchOptions> draft{};  // synthetic weights get a draft layer for it
  std::function<void(const std::string&)> on_progress{};
};

struct FrontierRow {
  int context = 0;                       // tokens before the first generated one
  double prefill_tokens_per_second = 0;  // of the rows between the previous frontier and this one
  double prefill_flops = 0;              // achieved
  double decode_tokens_per_second = 0;   // of the median token
  double decode_bytes_per_token = 0;     // weights and state, each once
  double decode_bytes_per_second = 0;
  int decode_kernels = 0;  // launched per token on a device, 0 elsewhere
  double peak_rss_bytes = 0;
};

/// Time of one op, summed over the decode or prefill launches of the last frontier.
struct OpTiming {
  std::string op{};
  double seconds = 0;
  double bytes_per_second = 0;
  double flops = 0;
};

/// One depth on the texts of a case. A round verifies K drafts of each sequence in one launch of
/// the trunk, K + 1 rows each, and drafts K more; with K = 0 it is a plain step. Speeds and shares
/// are those of the median turn.
struct DraftRow {
  int depth = 0;                 // K, or kDraftAuto
  double tokens_per_second = 0;  // of all sequences together
  double seconds_per_round = 0;  // mean of the turn
  double verify_share = 0;       // of the time: launches of the trunk with their draws
  double draft_share = 0;        // of the draft layer: rows of delivered tokens, then drafts
  /// Read and written, each weight, activation and state entry once and of the experts those that
  /// the rows chose (the ops' cost model): the mean over whole rounds, counted in a turn of its
  /// own. 0 with kDraftAuto.
  double bytes_per_round = 0;
  bool same_text = true;  // every turn gave the tokens of K = 0
  DraftUsage drafts{};    // of one sequence; says nothing about a model where weights are synthetic

  /// What is neither: acceptance, delivery, bookkeeping.
  double commit_share() const { return 1.0 - verify_share - draft_share; }
};

/// Texts of one kind at one batch size.
struct DraftCase {
  /// "counting" (greedy) and "prose" (drawn at a temperature of 0.7) where there is a tokenizer,
  /// "random" ids (drawn at 1); every seed is fixed.
  std::string text{};
  int context = 0;  // tokens before the first generated one
  int batch = 1;
  int tokens = 0;                // that a sequence generated in a turn
  std::vector<DraftRow> rows{};  // K = 0 first, then the depths asked for

  bool same_text() const;
  /// The fastest K, 0 among them; null where nothing was measured.
  const DraftRow* best_fixed() const;
  const DraftRow* adaptive() const;
  /// Speed of kDraftAuto / speed of the best fixed K (wanted: kAdaptiveGoal or more). 0 where one
  /// of them was not measured.
  double adaptive_ratio() const;
  /// time of a round / (kRoundGoal x (bytes of a round / bytes of a K = 0 step) x time of a K = 0
  /// step). A step moves its bytes at some rate; a round meets the goal (below 1) when it moves its
  /// own at that rate, but for 20 %. 0 for K = 0 and for kDraftAuto.
  double times_goal(const DraftRow& row) const;
};

inline constexpr double kRoundGoal = 1.2;
inline constexpr double kAdaptiveGoal = 0.97;

struct BenchReport {
  std::string model{};  // says "synthetic weights" when they are
  MachineCeiling ceiling{};
  bool on_device = false;  // then prefill_flops, the op timings and peak_rss_bytes are not measured
  std::vector<FrontierRow> frontiers{};
  std::vector<OpTiming> decode_ops{};
  std::vector<OpTiming> prefill_ops{};
  bool synthetic = false;           // speed only: what drafts are accepted means nothing
  std::vector<DraftCase> drafts{};  // when asked for
};

MachineCeiling measure_ceiling(int threads);
Result<BenchReport> run_bench(const BenchOptions& options);

}  // namespace tessera
