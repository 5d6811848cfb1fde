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

struct BenchOptions {
  EngineOptions engine{};
  SyntheticWeights synthetic = SyntheticWeights::kNone;
  int synthetic_layers = 0;     // 0: two layers with 64 experts; N: N layers of the whole geometry
  std::vector<int> contexts{};  // empty: 128, 512, 2048, 8192, 32768, or as far as the model allows
  int decode_tokens = 32;       // generated at each frontier
  /// Also measure drafts, so many a round at most or kDraftAuto, against plain decoding. Synthetic
  /// weights get a draft layer for it.
  std::optional<int> draft{};
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

/// One text gone on with greedily, with drafts and without, in turns; the median of each.
struct DraftRow {
  std::string text{};  // "counting" and "prose" where there is a tokenizer, "random" ids
  int context = 0;     // tokens before the first generated one
  int tokens = 0;      // generated
  double plain_tokens_per_second = 0;
  double drafted_tokens_per_second = 0;
  double seconds_per_round = 0;  // that verifies drafts and makes new ones; 0 with kDraftAuto
  bool same_text = false;        // every turn gave the same tokens
  DraftUsage drafts{};           // says nothing about a model where weights are synthetic
};

struct BenchReport {
  std::string model{};  // says "synthetic weights" when they are
  MachineCeiling ceiling{};
  bool on_device = false;  // then prefill_flops, the op timings and peak_rss_bytes are not measured
  std::vector<FrontierRow> frontiers{};
  std::vector<OpTiming> decode_ops{};
  std::vector<OpTiming> prefill_ops{};
  bool synthetic = false;          // speed only: what drafts are accepted means nothing
  std::vector<DraftRow> drafts{};  // when asked for
};

MachineCeiling measure_ceiling(int threads);
Result<BenchReport> run_bench(const BenchOptions& options);

}  // namespace tessera
