// SPDX-License-Identifier: Apache-2.0
// Runs the draft layer by hand, row by row or as a chain.
#include "eval/verify_draft.h"

#include <algorithm>

#include "core/logit_math.h"
#include "eval/golden_tap.h"
#include "eval/verify_inputs.h"
#include "runtime/scoped_sequence.h"

namespace tessera {
namespace {

/// Keeps the branches that leave the draft layer.
class WideTap final : public Tap {
 public:
  void values(std::string_view name, int, const float* data, int rows, int cols) override {
    if (name == "layer") wide.assign(data, data + static_cast<ptrdiff_t>(rows) * cols);
  }
  void experts(int, const int32_t*, int, int) override {}
  void ngram(int, const int64_t*, int, int) override {}
  void selection(int, const int32_t*, const int32_t*, int, int) override {}

  std::vector<float> wide{};
};

/// mtp.* of a golden file.
struct DraftGolden {
  std::vector<int32_t> ids{};   // the text
  std::vector<int32_t> next{};  // the token after each of its rows
  std::vector<float> hidden{}, logits{}, last_logits{};
  std::vector<int32_t> chain{};  // drafts after the text
};

class GoldenReader {
 public:
  GoldenReader(const TensorMap& golden, const std::string& path) : golden_(golden), path_(path) {}

  template <class T>
  Result<void> read(const char* name, DType dtype, const std::vector<int64_t>& shape,
                    std::vector<T>& values) const {
    const auto at = golden_.find(name);
    if (at == golden_.end() || at->second.dtype != dtype || at->second.shape != shape)
      return fail({.code = at == golden_.end() ? Errc::kNotFound : Errc::kMismatch,
                   .what = "golden tensor of the draft layer missing or of another model",
                   .where = path_ + ": " + name,
                   .expected = shape_text(shape) + " " + dtype_name(dtype),
                   .found = at == golden_.end() ? "nothing" : at->second.describe()});
    values = golden_values<T>(at->second);
    return {};
  }
  int64_t length(const char* name) const {
    const auto at = golden_.find(name);
    return at == golden_.end() ? 0 : at->second.elements();
  }

 private:
  const TensorMap& golden_;
  const std::string& path_;
};

Result<DraftGolden> read_golden(const LoadedModel& model, const TensorMap& golden,
                                const std::string& path) {
  const GoldenReader reader(golden, path);
  const int64_t rows = reader.length("text.input_ids");
  const int64_t drafts = reader.length("mtp.chain");
  const int64_t vocab = model.config().vocab_size;
  DraftGolden set;
  for (auto status :
       {reader.read("text.input_ids", DType::kI32, {rows}, set.ids),
        reader.read("mtp.tokens", DType::kI32, {rows}, set.next),
        reader.read("mtp.hidden", DType::kF32, {rows, model.config().wide()}, set.hidden),
        reader.read("mtp.logits", DType::kF32, {rows, vocab}, set.logits),
        reader.read("mtp.chain", DType::kI32, {drafts}, set.chain),
        reader.read("mtp.chain_last_logits", DType::kF32, {vocab}, set.last_logits)})
    if (!status) return fail(std::move(status.error()));
  const auto more = static_cast<size_t>(drafts);
  if (auto status = check_reference_prompt(model, set.ids, more, path + ": text.input_ids");
      !status)
    return fail(std::move(status.error()));
  for (const auto& [name, ids] : {std::pair{"mtp.tokens", &set.next}, {"mtp.chain", &set.chain}})
    if (auto status = check_reference_ids(model, *ids, path + ": " + name); !status)
      return fail(std::move(status.error()));
  return set;
}

VerifyRow tensor_row(const char* name, const std::vector<float>& got,
                     const std::vector<float>& want, const VerifyBounds& bounds, bool judged) {
  VerifyRow row{.name = name,
                .value = relative_l2(got.data(), want.data(), want.size()),
                .bound = bounds.relative_l2,
                .judged = judged,
                .note = "1 tensor"};
  row.passed = !judged || row.value <= row.bound;
  return row;
}

/// The rows of the trunk, then all rows of the draft layer with their logits and branches.
Result<void> run_rows(LoadedModel& model, SequenceId sequence, std::span<const int32_t> ids,
                      std::span<const int32_t> next, Tap* tap) {
  const SequenceRows text{.sequence = sequence, .ids = ids};
  if (auto status = model.run({&text, 1}, ops::Role::kPrefill, {}); !status) return status;
  const DraftRows rows{.sequence = sequence, .position = 0, .next_ids = next};
  return model.draft({&rows, 1}, {.role = ops::Role::kPrefill, .tap = tap});
}

/// Drafts of a chain that are not the reference's.
struct ChainDifferences {
  int ties = 0;        // the logits of both lie closer than the bound
  int mismatches = 0;  // every other one
};

int32_t best_draft(LoadedModel& model, int row, std::vector<float>& logits) {
  logits.resize(static_cast<size_t>(model.config().vocab_size));
  model.draft_logits(row, 1, logits.data());
  return argmax(logits);
}

/// Each draft after the reference's own chain up to there; `logits` ends as those of the last one.
Result<ChainDifferences> run_chain(LoadedModel& model, SequenceId sequence, const DraftGolden& set,
                                   double margin_bound, std::vector<float>& logits) {
  auto position = static_cast<int64_t>(set.ids.size());
  auto last_row = static_cast<int>(set.ids.size()) - 1;
  ChainDifferences differences;
  for (size_t at = 0; at < set.chain.size(); ++at) {
    const int32_t best = best_draft(model, last_row, logits);
    if (best != set.chain[at]) {
      const double margin = double{logits[static_cast<size_t>(best)]} -
                            double{logits[static_cast<size_t>(set.chain[at])]};
      ++(margin < margin_bound ? differences.ties : differences.mismatches);
    }
    if (at + 1 == set.chain.size()) break;
    const DraftRows row{.sequence = sequence,
                        .position = position++,
                        .next_ids = {&set.chain[at], 1},
                        .first_source = last_row};
    if (auto status = model.draft({&row, 1}, {.source = DraftSource::kDraft}); !status)
      return fail(std::move(status.error()));
    last_row = 0;
  }
  return differences;
}

}  // namespace

Result<void> check_draft(LoadedModel& model, const TensorMap& golden, const std::string& path,
                         const VerifyBounds& bounds, VerifyReport& report) {
  if (!model.has_draft()) {
    if (golden.contains("mtp.logits")) report.skipped.push_back("mtp.*: " + model.draft_note());
    return {};
  }
  if (!golden.contains("mtp.logits")) {
    report.skipped.emplace_back("mtp.*: missing in this golden set");
    return {};
  }
  const Result<DraftGolden> set = read_golden(model, golden, path);
  if (!set) return fail(set.error());
  Result<ScopedSequence> sequence = ScopedSequence::create(model.store());
  if (!sequence) return fail(sequence.error());
  WideTap tap;
  if (auto status = run_rows(model, sequence->id(), set->ids, set->next, &tap); !status)
    return status;
  std::vector<float> logits(set->logits.size());
  model.draft_logits(0, static_cast<int>(set->ids.size()), logits.data());
  report.rows.push_back(
      tensor_row("mtp.hidden", tap.wide, set->hidden, bounds, bounds.tensors_must_pass));
  report.rows.push_back(tensor_row("mtp.logits", logits, set->logits, bounds, true));

  const Result<ChainDifferences> chain =
      run_chain(model, sequence->id(), *set, bounds.golden_margin, logits);
  if (!chain) return fail(chain.error());
  report.rows.push_back({.name = "mtp.chain",
                         .value = static_cast<double>(chain->mismatches),
                         .bound = 0,
                         .is_count = true,
                         .passed = chain->mismatches == 0,
                         .note = std::to_string(set->chain.size()) + " drafts, " +
                                 std::to_string(chain->ties) + " rounding ties"});
  report.rows.push_back(
      tensor_row("mtp.chain_last_logits", logits, set->last_logits, bounds, true));
  return {};
}

Result<std::vector<bool>> first_drafts(LoadedModel& model, std::span<const int32_t> prompt,
                                       std::span<const int32_t> output) {
  if (output.size() < 2) return std::vector<bool>();
  std::vector<int32_t> text(prompt.begin(), prompt.end());
  text.insert(text.end(), output.begin(), output.end());
  // Row p joins token p with token p + 1 and predicts token p + 2.
  const size_t rows = text.size() - 2;
  Result<ScopedSequence> sequence = ScopedSequence::create(model.store());
  if (!sequence) return fail(sequence.error());
  const std::span<const int32_t> all(text);
  auto status = run_rows(model, sequence->id(), all.first(rows), all.subspan(1, rows), nullptr);
  if (!status) return fail(std::move(status.error()));
  std::vector<bool> accepted;
  std::vector<float> logits;
  for (size_t row = prompt.size() - 1; row < rows; ++row)
    accepted.push_back(best_draft(model, static_cast<int>(row), logits) == text[row + 2]);
  return accepted;
}

}  // namespace tessera
