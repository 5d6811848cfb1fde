// SPDX-License-Identifier: Apache-2.0
// The second pass over the text, and the verdict on each row.
#include "eval/verify_selection.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "runtime/scoped_sequence.h"

namespace tessera {
namespace {

constexpr double kBF16Rounding = 0x1p-8;    // 8 bits of mantissa, the leading one included
constexpr double kFloatRounding = 0x1p-24;  // 24 bits
constexpr IndexErrors kFloatErrors{.hidden = 1e-5, .rounding = kFloatRounding};

EngineOptions reference_options(const EngineOptions& options) {
  EngineOptions reference = options;
  reference.device = "cpu";
  reference.ops = OpsKind::kFast;
  reference.cache_type = CacheType::kF32;
  reference.max_sequences = 1;
  return reference;
}

struct ReferencePass {
  std::vector<IndexInputs> layers{};  // of the layers with sparse attention, in their order
  std::vector<BlockSwap> swaps{};     // where it differs from the golden sets itself
};

Result<ReferencePass> run_reference(const EngineOptions& options, std::span<const int32_t> ids,
                                    const TensorMap& golden) {
  auto model = LoadedModel::load(reference_options(options));
  if (!model) return fail(model.error());
  IndexInputsOps ops((*model)->ops());
  (*model)->replace_ops(ops);
  Result<ScopedSequence> sequence = ScopedSequence::create((*model)->store());
  if (!sequence) return fail(sequence.error());
  GoldenTap tap(golden, (*model)->config().qsa);
  const SequenceRows work{.sequence = sequence->id(), .ids = ids};
  if (auto status = (*model)->run({&work, 1}, ops::Role::kPrefill, {}, &tap); !status)
    return fail(status.error());
  return ReferencePass{.layers = ops.layers(), .swaps = tap.swaps()};
}

/// Even FP32 may turn a tie over, and its own scores are the ones at hand: they prefer what it
/// took. Whether the golden choice is a tie by these scores is the question with the roles
/// exchanged.
BlockSwap reversed(BlockSwap swap) {
  std::swap(swap.dropped, swap.taken);
  return swap;
}

/// Place of a layer among those with sparse attention.
size_t qsa_index(const ModelConfig& config, int layer) {
  return static_cast<size_t>(
      std::count(config.layers.begin(), config.layers.begin() + layer, LayerKind::kQsa));
}

std::string short_number(double ratio) {
  constexpr size_t kRoom = 32;
  char text[kRoom];
  std::snprintf(text, sizeof(text), "%.2g", ratio);
  return text;
}

}  // namespace

double rounding_of(DType activation) {
  return activation == DType::kBF16 ? kBF16Rounding : kFloatRounding;
}

Result<SelectionVerdict> judge_selection(const LoadedModel& model, std::span<const int32_t> ids,
                                         const TensorMap& golden, const GoldenTap& tap,
                                         const IndexErrors& largest) {
  SelectionVerdict verdict;
  if (tap.swaps().empty()) return verdict;
  auto reference = run_reference(model.options(), ids, golden);
  if (!reference) return fail(reference.error());
  const auto ratio_of = [&](const BlockSwap& swap, const IndexErrors& errors) {
    return swap_ratio(reference->layers[qsa_index(model.config(), swap.layer)], swap, errors);
  };
  verdict.reproduced = std::all_of(
      reference->swaps.begin(), reference->swaps.end(),
      [&](const BlockSwap& swap) { return ratio_of(reversed(swap), kFloatErrors) <= 1; });
  for (const BlockSwap& swap : tap.swaps()) {
    IndexErrors errors = largest;
    const double hidden = tap.hidden_error(swap.layer);
    errors.hidden = std::isinf(hidden) ? hidden : std::min(hidden, largest.hidden);
    const double ratio = ratio_of(swap, errors);
    if (verdict.reproduced && ratio <= 1) {
      ++verdict.ties;
      verdict.widest = std::max(verdict.widest, ratio);
    } else if (verdict.failures++ == 0) {
      verdict.failure = swap;
      verdict.excess = ratio;
    }
  }
  return verdict;
}

VerifyRow selection_row(const SelectionVerdict& verdict) {
  VerifyRow row{.name = kSelectedSets,
                .value = static_cast<double>(verdict.failures),
                .bound = 0,
                .is_count = true,
                .passed = verdict.failures == 0};
  const int rows = verdict.ties + verdict.failures;
  row.note = std::to_string(rows) + (rows == 1 ? " row differs, " : " rows differ, ") +
             std::to_string(verdict.ties) + (verdict.ties == 1 ? " is a tie" : " are ties") +
             " within BF16 rounding";
  if (verdict.ties > 0)
    row.note += " (widest gap " + short_number(verdict.widest) + " of the bound)";
  if (!verdict.reproduced) row.note += "; FP32 on the CPU does not choose the reference's sets";
  if (verdict.failures > 0) {
    row.note += "; first other row " + std::to_string(verdict.failure.row) + " of layer " +
                std::to_string(verdict.failure.layer);
    row.note += std::isinf(verdict.excess)
                    ? ", no rounding explains it"
                    : ", gap " + short_number(verdict.excess) + " times the bound";
  }
  return row;
}

}  // namespace tessera
