// SPDX-License-Identifier: Apache-2.0
// `tessera verify` against golden.safetensors.
#include <tessera/verify.h>

#include <algorithm>
#include <cmath>
#include <exception>

#include "eval/golden_tap.h"
#include "eval/verify_bounds.h"
#include "eval/verify_draft.h"
#include "eval/verify_greedy.h"
#include "eval/verify_inputs.h"
#include "eval/verify_selection.h"
#include "io/mapped_file.h"
#include "runtime/loaded_model.h"
#include "runtime/scoped_sequence.h"

namespace tessera {
namespace {

Result<const TensorRef*> require(const TensorMap& golden, const std::string& name, DType dtype,
                                 const std::string& path) {
  const auto at = golden.find(name);
  if (at != golden.end() && at->second.dtype == dtype) return &at->second;
  return fail({.code = Errc::kNotFound,
               .what = "golden tensor missing or of another type",
               .where = path + ": " + name,
               .expected = dtype_name(dtype),
               .found = at == golden.end() ? "nothing" : at->second.describe(),
               .hint = "golden sets are written by the reference model, see models/README.md"});
}

VerifyRow error_row(std::string name, const KindError& error, double bound, bool must_pass) {
  VerifyRow row{.name = std::move(name), .value = error.worst, .bound = bound};
  row.is_count = error.is_count;
  row.judged = must_pass;
  row.passed = !must_pass || error.worst <= bound;
  row.note = std::to_string(error.compared) + (error.compared == 1 ? " tensor" : " tensors");
  if (error.worst > 0 && error.compared > 1)
    row.note += ", worst at layer " + std::to_string(error.layer);
  if (!must_pass) row.note += ", not judged with these options";
  return row;
}

/// All text tensors: one prefill of the whole input with every row's logits.
Result<void> check_text(LoadedModel& model, const TensorMap& golden, const std::string& path,
                        const VerifyBounds& bounds, VerifyReport& report) {
  auto ids_tensor = require(golden, "text.input_ids", DType::kI32, path);
  auto logits_tensor = require(golden, "text.logits", DType::kF32, path);
  if (!ids_tensor) return fail(ids_tensor.error());
  if (!logits_tensor) return fail(logits_tensor.error());
  const auto ids = golden_values<int32_t>(**ids_tensor);
  const auto expected = golden_values<float>(**logits_tensor);
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  const std::vector<int64_t> shape{static_cast<int64_t>(ids.size()), static_cast<int64_t>(vocab)};
  if ((*logits_tensor)->shape != shape)
    return fail({.code = Errc::kMismatch,
                 .what = "golden set of another model",
                 .where = path + ": text.logits",
                 .expected = shape_text(shape),
                 .found = (*logits_tensor)->describe()});

  if (auto status = check_reference_prompt(model, ids, 0, path + ": text.input_ids"); !status)
    return status;

  Result<ScopedSequence> sequence = ScopedSequence::create(model.store());
  if (!sequence) return fail(sequence.error());
  std::vector<int32_t> rows(ids.size());
  for (size_t row = 0; row < rows.size(); ++row) rows[row] = static_cast<int32_t>(row);
  GoldenTap tap(golden, model.config().qsa);
  const SequenceRows work{.sequence = sequence->id(), .ids = ids};
  if (auto status = model.run({&work, 1}, ops::Role::kPrefill, rows, &tap); !status) return status;
  std::vector<float> logits(expected.size());
  model.logits(0, static_cast<int>(ids.size()), logits.data());

  for (const auto& [kind, error] : tap.errors()) {
    if (kind == kSelectedSets && !tap.swaps().empty() && bounds.swaps_may_be_ties) {
      auto verdict = judge_selection(
          model, ids, golden, tap,
          {.hidden = bounds.relative_l2, .rounding = rounding_of(model.ops().traits().activation)});
      if (!verdict) return fail(verdict.error());
      report.rows.push_back(selection_row(*verdict));
      continue;
    }
    const bool must_pass = kind == "ngram_ids" || kind == kSelectedSets ||
                           (error.is_count ? bounds.sets_must_match : bounds.tensors_must_pass);
    report.rows.push_back(
        error_row(kind, error, error.is_count ? 0.0 : bounds.relative_l2, must_pass));
  }
  const double error = relative_l2(logits.data(), expected.data(), expected.size());
  report.rows.push_back(
      error_row("text.logits", {.worst = error, .compared = 1}, bounds.relative_l2, true));
  return {};
}

Result<void> check_greedy_inputs(const LoadedModel& model, std::span<const int32_t> prompt,
                                 std::span<const int32_t> output, std::span<const float> margins,
                                 const std::string& path) {
  const std::string output_name = path + ": greedy.output";
  if (auto status = check_reference_prompt(model, prompt, output.size(), path + ": greedy.prompt");
      !status)
    return status;
  if (auto status = check_reference_prompt(model, output, 0, output_name); !status) return status;
  const std::string margin_name = path + ": greedy.margin";
  if (margins.size() != output.size())
    return fail({.code = Errc::kCorruptFile,
                 .what = "golden tensors of different lengths",
                 .where = margin_name,
                 .expected = std::to_string(output.size()) + " as in greedy.output",
                 .found = std::to_string(margins.size())});
  const auto bad = std::find_if(margins.begin(), margins.end(),
                                [](float margin) { return !std::isfinite(margin) || margin < 0; });
  if (bad == margins.end()) return {};
  return fail({.code = Errc::kCorruptFile,
               .what = "margin out of range",
               .where = margin_name + "[" + std::to_string(bad - margins.begin()) + "]",
               .expected = "a finite number from 0 up",
               .found = std::to_string(*bad)});
}

Result<void> check_greedy(LoadedModel& model, const TensorMap& golden, const std::string& path,
                          const VerifyBounds& bounds, VerifyReport& report) {
  auto prompt = require(golden, "greedy.prompt", DType::kI32, path);
  auto output = require(golden, "greedy.output", DType::kI32, path);
  auto margin = require(golden, "greedy.margin", DType::kF32, path);
  for (const auto* tensor : {&prompt, &output, &margin})
    if (!*tensor) return fail(tensor->error());
  const auto margins = golden_values<float>(**margin);
  const auto prompt_ids = golden_values<int32_t>(**prompt);
  const auto output_ids = golden_values<int32_t>(**output);
  if (auto status = check_greedy_inputs(model, prompt_ids, output_ids, margins, path); !status)
    return status;
  auto greedy =
      compare_greedy(model, prompt_ids, output_ids,
                     std::vector<double>(margins.begin(), margins.end()), bounds.golden_margin);
  if (!greedy) return fail(greedy.error());
  report.rows.push_back({.name = "greedy.output",
                         .value = static_cast<double>(greedy->mismatches),
                         .bound = 0,
                         .is_count = true,
                         .passed = greedy->mismatches == 0,
                         .note = std::to_string(greedy->steps) + " tokens, " +
                                 std::to_string(greedy->ties) + " rounding ties"});
  return {};
}

/// Kinds that a golden set should hold and this one does not: their absence must not look like
/// agreement.
void list_missing(const ModelConfig& config, VerifyReport& report) {
  std::vector<std::string> wanted{"text.attn_in",        "text.attn_inject", "text.attn_out",
                                  "text.mlp_out",        "text.layer",       "text.router_logits",
                                  "text.experts (sets)", "text.final_hidden"};
  const auto& layers = config.layers;
  if (std::find(layers.begin(), layers.end(), LayerKind::kQsa) != layers.end())
    wanted.emplace_back(kSelectedSets);
  if (!config.ple.layers.empty()) wanted.insert(wanted.end(), {"text.ple", "ngram_ids"});
  for (const std::string& kind : wanted) {
    const bool present = std::any_of(report.rows.begin(), report.rows.end(),
                                     [&](const VerifyRow& row) { return row.name == kind; });
    if (!present) report.skipped.push_back(kind + ": missing in this golden set");
  }
}

void list_skipped(const TensorMap& golden, VerifyReport& report) {
  const auto has_prefix = [&](const char* prefix) {
    return std::any_of(golden.begin(), golden.end(),
                       [&](const auto& entry) { return entry.first.rfind(prefix, 0) == 0; });
  };
  if (has_prefix("image.")) report.skipped.emplace_back("image.*: this version reads text only");
}

}  // namespace

bool VerifyReport::passed() const {
  return !rows.empty() &&
         std::all_of(rows.begin(), rows.end(), [](const VerifyRow& row) { return row.passed; });
}

Result<VerifyReport> verify_golden(const EngineOptions& options, const std::string& golden_path) {
  const std::string path =
      golden_path.empty() ? options.model_dir + "/golden.safetensors" : golden_path;
  auto file = MappedFile::open(path);
  if (!file) return fail(file.error());
  Result<TensorMap> golden = parse_safetensors((*file)->bytes(), path);
  if (!golden) return fail(golden.error());
  EngineOptions whole = options;
  whole.draft_head = DraftHead::kWhole;  // the reference has no other
  auto model = LoadedModel::load(whole);
  if (!model) return fail(model.error());

  const VerifyBounds bounds = verify_bounds(options);
  VerifyReport report{.source = path, .bounds = describe_bounds(options, bounds)};
  if (auto status = check_text(**model, *golden, path, bounds, report); !status)
    return fail(status.error());
  if (auto status = check_greedy(**model, *golden, path, bounds, report); !status)
    return fail(status.error());
  if (auto status = check_draft(**model, *golden, path, bounds, report); !status)
    return fail(status.error());
  list_missing((*model)->config(), report);
  list_skipped(*golden, report);
  return report;
}

}  // namespace tessera
