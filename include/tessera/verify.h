// SPDX-License-Identifier: Apache-2.0
// Comparing an engine with reference outputs, and scoring text: `tessera verify` and `tessera
// eval`.
#pragma once

#include <tessera/engine.h>
#include <tessera/error.h>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// One line of the table: a measured value against its bound.
struct VerifyRow {
  std::string name{};  // "text.logits"
  double value = 0;    // relative L2 error, or a count of differences
  double bound = 0;    // passes when value <= bound
  bool is_count = false;
  bool judged = true;  // false: shown for information, whatever its value
  bool passed = false;
  std::string note{};  // "worst at layer 5", "2 ties with margin below 1e-3"
};

struct VerifyReport {
  std::string source{};  // where the reference came from, in its own words
  std::string bounds{};  // which bounds apply and why
  std::vector<VerifyRow> rows{};
  std::vector<std::string> skipped{};  // reference tensors this version does not compute, by name
  bool passed() const;
};

/// Compares with a golden.safetensors (see models/README.md): relative L2 errors per tensor kind,
/// equality of selected blocks, experts and n-gram ids, greedy continuation. With BF16 activations
/// or caches a row may select other blocks where the reference's own scores tie within BF16
/// rounding; those rows are counted. An empty path means `options.model_dir`/golden.safetensors.
Result<VerifyReport> verify_golden(const EngineOptions& options, const std::string& golden_path);

/// Compares with a reference.json: greedy ids (a mismatch only where the margin is tiny), answers,
/// retrieval, perplexity.
Result<VerifyReport> verify_reference(const EngineOptions& options, const std::string& json_path);

struct TextScore {
  int tokens = 0;         // scored tokens, the first one has no prediction
  double mean_nll = 0;    // natural log
  double perplexity = 0;  // exp(mean_nll)
  double seconds = 0;
};

/// Negative log-likelihood of a text, in windows of the context length that do not overlap.
Result<TextScore> score_text(Engine& engine, const std::vector<int32_t>& ids,
                             const std::function<void(double fraction)>& on_progress = {});

}  // namespace tessera
