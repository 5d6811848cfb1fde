// SPDX-License-Identifier: Apache-2.0
// `tessera shortlist`: counts the tokens of text files and keeps the frequent ones.
#include <tessera/shortlist.h>
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/session.h"
#include "cli/terminal.h"

namespace tessera::cli {
namespace {

/// Occurrences of each token in all files together.
Result<std::vector<uint64_t>> count_tokens(const ShortlistArgs& args, const Tokenizer& tokenizer) {
  std::vector<uint64_t> counts(static_cast<size_t>(tokenizer.vocab_size()));
  for (const std::string& file : args.corpus) {
    const auto text = read_input(file);
    if (!text) return fail(text.error());
    for (const int32_t id : tokenizer.encode(*text, false)) ++counts[static_cast<size_t>(id)];
  }
  return counts;
}

/// Special tokens end turns and texts, which no corpus shows.
void add_special_ids(const Tokenizer& tokenizer, std::vector<int32_t>& ids) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.is_special(id)) ids.push_back(id);
  std::ranges::sort(ids);
  const auto repeated = std::ranges::unique(ids);
  ids.erase(repeated.begin(), repeated.end());
}

Result<void> make_shortlist(const ShortlistArgs& args) {
  EngineOptions options{.model_dir = args.model_dir};
  if (auto chosen = choose_model(options); !chosen) return chosen;
  const auto tokenizer = load_tokenizer(options.model_dir);
  if (!tokenizer) return fail(tokenizer.error());
  const auto counts = count_tokens(args, *tokenizer);
  if (!counts) return fail(counts.error());
  Shortlist list{.vocab_size = static_cast<uint32_t>(tokenizer->vocab_size()),
                 .vocabulary = tokenizer->fingerprint(),
                 .ids = most_frequent_ids(*counts, args.size)};
  if (list.ids.empty())
    return fail({.code = Errc::kInvalidArgument,
                 .what = "no text to count",
                 .where = args.corpus.front(),
                 .expected = "at least one token in all files together",
                 .found = "none"});
  const auto total = std::accumulate(counts->begin(), counts->end(), uint64_t{0});
  uint64_t covered = 0;
  for (const int32_t id : list.ids) covered += (*counts)[static_cast<size_t>(id)];
  add_special_ids(*tokenizer, list.ids);
  if (auto saved = save_shortlist(list, args.output); !saved) return saved;
  constexpr double kPercent = 100.0;
  std::printf("%zu of %u tokens, %.2f %% of %llu counted\n", list.ids.size(), list.vocab_size,
              kPercent * static_cast<double>(covered) / static_cast<double>(total),
              static_cast<unsigned long long>(total));
  return {};
}

}  // namespace

int shortlist_command(const ShortlistArgs& args) {
  const auto made = make_shortlist(args);
  return made ? kExitOk : report_error(made.error());
}

}  // namespace tessera::cli
