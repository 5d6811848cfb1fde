// SPDX-License-Identifier: Apache-2.0
// `tessera verify --reference FILE.json`: the texts of a trained model.
#include <tessera/tokenizer.h>
#include <tessera/verify.h>

#include <algorithm>
#include <cmath>

#include "eval/reference_file.h"
#include "eval/verify_bounds.h"
#include "eval/verify_draft.h"
#include "eval/verify_greedy.h"
#include "eval/verify_inputs.h"
#include "io/mapped_file.h"
#include "runtime/loaded_model.h"

namespace tessera {
namespace {

constexpr size_t kMaxReferenceBytes = size_t{64} << 20;
constexpr int kAnswerTokens = 64;  // room beyond the reference's own answer

std::string trimmed(std::string text) {
  const auto is_space = [](char symbol) { return symbol == ' ' || symbol == '\n'; };
  while (!text.empty() && is_space(text.back())) text.pop_back();
  const auto first = std::find_if_not(text.begin(), text.end(), is_space);
  text.erase(text.begin(), first);
  return text;
}

/// Both sides may or may not spell the end-of-turn token: compare without it.
std::string answer_text(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return trimmed(tokenizer.decode(ids));
}

class ReferenceCheck {
 public:
  ReferenceCheck(LoadedModel& model, const Tokenizer& tokenizer, const VerifyBounds& bounds,
                 std::string path)
      : model_(model), tokenizer_(tokenizer), bounds_(bounds), path_(std::move(path)) {}

  Result<void> run(const ReferenceCase& item);
  Result<void> run(const ReferenceText& item);
  /// Lines for what was compared. Errors: kCorruptFile when the model was compared with nothing.
  Result<void> finish(VerifyReport& report) const;

 private:
  /// Ids of a text that names special tokens, and back, so that `want` loses its end-of-turn token.
  std::string want_text(const std::string& want) const {
    return answer_text(tokenizer_, tokenizer_.encode(want));
  }
  Result<void> check_ids(const ReferenceCase& item, const std::vector<int32_t>& prompt);
  Result<void> check_answer(const ReferenceCase& item, const std::vector<int32_t>& prompt);
  Result<void> check_drafts(const ReferenceCase& item, const std::vector<int32_t>& prompt);

  LoadedModel& model_;
  const Tokenizer& tokenizer_;
  const VerifyBounds& bounds_;
  std::string path_;
  GreedyComparison greedy_{};
  int greedy_cases_ = 0;
  std::string first_greedy_{};
  int wrong_answers_ = 0, answers_ = 0;
  int wrong_retrievals_ = 0, retrievals_ = 0;
  std::string first_wrong_{};
  int wrong_prompts_ = 0, prompts_ = 0;
  int drafts_ = 0, accepted_drafts_ = 0, reference_drafts_ = 0, different_drafts_ = 0;
  std::vector<VerifyRow> texts_{};
};

Result<void> ReferenceCheck::run(const ReferenceCase& item) {
  std::vector<int32_t> prompt = item.prompt;
  if (!item.prompt_text.empty()) {
    const std::vector<int32_t> encoded = tokenizer_.encode(item.prompt_text);
    if (!prompt.empty()) {
      ++prompts_;
      wrong_prompts_ += encoded != prompt ? 1 : 0;
    } else {
      prompt = encoded;
    }
  }
  const std::string key = path_ + ": " + item.name + ".";
  const std::string prompt_key = key + (item.prompt.empty() ? "prompt" : "prompt_ids");
  if (auto status = check_reference_prompt(model_, prompt, item.output.size(), prompt_key); !status)
    return status;
  if (auto status = check_reference_ids(model_, item.output, key + item.output_key); !status)
    return status;
  if (item.compare_ids)
    if (auto status = check_ids(item, prompt); !status) return status;
  if (model_.has_draft() && !item.first_drafts.empty())
    if (auto status = check_drafts(item, prompt); !status) return status;
  if (!item.want.empty() && item.reference_right) return check_answer(item, prompt);
  return {};
}

Result<void> ReferenceCheck::check_ids(const ReferenceCase& item,
                                       const std::vector<int32_t>& prompt) {
  auto greedy = compare_greedy(model_, prompt, item.output, item.margin, bounds_.reference_margin);
  if (!greedy) return fail(greedy.error());
  ++greedy_cases_;
  greedy_.steps += greedy->steps;
  greedy_.ties += greedy->ties;
  greedy_.mismatches += greedy->mismatches;
  if (greedy->mismatches > 0 && first_greedy_.empty())
    first_greedy_ = item.name + " at token " + std::to_string(greedy->first_mismatch);
  return {};
}

Result<void> ReferenceCheck::check_answer(const ReferenceCase& item,
                                          const std::vector<int32_t>& prompt) {
  const auto wanted = static_cast<int>(item.output.size()) + kAnswerTokens;
  const int room = std::min(wanted, model_.max_context() - static_cast<int>(prompt.size()));
  auto output = greedy_continuation(model_, prompt, room);
  if (!output) return fail(output.error());
  const bool right = answer_text(tokenizer_, *output) == want_text(item.want);
  ++(item.retrieval ? retrievals_ : answers_);
  if (right) return {};
  ++(item.retrieval ? wrong_retrievals_ : wrong_answers_);
  if (first_wrong_.empty()) first_wrong_ = item.name;
  return {};
}

Result<void> ReferenceCheck::check_drafts(const ReferenceCase& item,
                                          const std::vector<int32_t>& prompt) {
  const auto accepted = first_drafts(model_, prompt, item.output);
  if (!accepted) return fail(accepted.error());
  for (size_t at = 0; at < accepted->size(); ++at) {
    ++drafts_;
    accepted_drafts_ += (*accepted)[at] ? 1 : 0;
    reference_drafts_ += item.first_drafts[at] ? 1 : 0;
    different_drafts_ += (*accepted)[at] != item.first_drafts[at] ? 1 : 0;
  }
  return {};
}

Result<void> ReferenceCheck::run(const ReferenceText& item) {
  std::vector<int32_t> ids = tokenizer_.encode(item.text);
  const auto wanted = static_cast<size_t>(item.tokens);
  VerifyRow row{.name = item.name, .bound = bounds_.perplexity};
  if (ids.size() < wanted) {
    row.value = INFINITY;
    row.note = "the text has " + std::to_string(ids.size()) + " tokens, the reference scored " +
               std::to_string(wanted);
  } else {
    ids.resize(wanted);
    if (auto status = check_reference_prompt(model_, ids, 0, path_ + ": " + item.name); !status)
      return status;
    auto nll = mean_nll(model_, ids);
    if (!nll) return fail(nll.error());
    row.value = std::fabs(std::expm1(*nll - item.nll));
    row.note = "perplexity " + std::to_string(std::exp(*nll)) + ", reference " +
               std::to_string(std::exp(item.nll));
  }
  row.passed = row.value <= row.bound;
  texts_.push_back(std::move(row));
  return {};
}

Result<void> ReferenceCheck::finish(VerifyReport& report) const {
  if (greedy_.steps + answers_ + retrievals_ == 0 && texts_.empty())
    return fail({.code = Errc::kCorruptFile,
                 .what = "reference file has nothing to compare the model with",
                 .where = path_,
                 .expected = "output ids, answers the reference gets right, or texts",
                 .found = "none of them"});
  const auto count_row = [&](std::string name, int compared, int wrong, std::string note) {
    if (compared == 0) return;
    report.rows.push_back({.name = std::move(name),
                           .value = static_cast<double>(wrong),
                           .bound = 0,
                           .is_count = true,
                           .passed = wrong == 0,
                           .note = std::move(note)});
  };
  count_row("prompt ids", prompts_, wrong_prompts_,
            std::to_string(prompts_) + " texts, tokenizer against the reference's ids");
  std::string greedy_note = std::to_string(greedy_cases_) + " texts, " +
                            std::to_string(greedy_.steps) + " tokens, " +
                            std::to_string(greedy_.ties) + " rounding ties";
  if (!first_greedy_.empty()) greedy_note += ", first at " + first_greedy_;
  count_row("greedy ids", greedy_.steps, greedy_.mismatches, greedy_note);
  const std::string wrong_note = first_wrong_.empty() ? "" : ", first wrong: " + first_wrong_;
  count_row("answers (sums, tools)", answers_, wrong_answers_,
            std::to_string(answers_) + " cases the reference gets right" + wrong_note);
  count_row("retrieval", retrievals_, wrong_retrievals_,
            std::to_string(retrievals_) + " cases the reference gets right" + wrong_note);
  if (drafts_ > 0)
    report.rows.push_back({.name = "first drafts",
                           .value = static_cast<double>(different_drafts_) / drafts_,
                           .bound = bounds_.draft_flips,
                           .passed = different_drafts_ <= bounds_.draft_flips * drafts_,
                           .note = "share that is accepted here and not there or the reverse; " +
                                   std::to_string(accepted_drafts_) + " of " +
                                   std::to_string(drafts_) + " accepted, reference " +
                                   std::to_string(reference_drafts_)});
  report.rows.insert(report.rows.end(), texts_.begin(), texts_.end());
  return {};
}

}  // namespace

Result<VerifyReport> verify_reference(const EngineOptions& options, const std::string& json_path) {
  Result<std::string> text = read_text_file(json_path, kMaxReferenceBytes);
  if (!text) return fail(text.error());
  Result<ReferenceFile> file = parse_reference_file(*text, json_path);
  if (!file) return fail(file.error());
  Result<Tokenizer> tokenizer = Tokenizer::load(options.model_dir);
  if (!tokenizer) return fail(tokenizer.error());
  EngineOptions whole = options;
  whole.draft_head = DraftHead::kWhole;  // the reference has no other
  auto model = LoadedModel::load(whole);
  if (!model) return fail(model.error());

  const int vocab = (*model)->config().vocab_size;
  if (tokenizer->vocab_size() > vocab)
    return fail({.code = Errc::kMismatch,
                 .what = "tokenizer larger than the model",
                 .where = options.model_dir + "/tokenizer.json",
                 .expected = "at most " + std::to_string(vocab) + " ids",
                 .found = std::to_string(tokenizer->vocab_size()),
                 .hint = "tokenizer.json and config.json belong to different models"});

  const VerifyBounds bounds = verify_bounds(options);
  VerifyReport report{.source = file->source, .bounds = describe_bounds(options, bounds)};
  ReferenceCheck check(**model, *tokenizer, bounds, json_path);
  for (const ReferenceCase& item : file->cases)
    if (auto status = check.run(item); !status) return fail(status.error());
  for (const ReferenceText& item : file->texts)
    if (auto status = check.run(item); !status) return fail(status.error());
  if (auto status = check.finish(report); !status) return fail(status.error());
  return report;
}

}  // namespace tessera
