// SPDX-License-Identifier: Apache-2.0
// Sampling by definition, by full sorting in double: cuts, ties, penalties, log-probabilities,
// broken rows, and the same outcome in every launch.
#include <algorithm>
#include <cstring>

#include "cpu/op_fixture.h"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
/// A draw this close to a boundary of the distribution may fall on either side of it.
constexpr double kMargin = 2e-6;

constexpr int kVocabs[] = {1, 5, 33, 1000, 20001, 24576};
/// On a device more than one block shares a row of so many.
constexpr int kManyIds = 16384;

struct Ranked {
  int32_t token;
  float logit;
  double weight;
};

bool better(const Ranked& left, const Ranked& right) {
  return left.logit > right.logit || (left.logit == right.logit && left.token < right.token);
}

std::vector<float> edited(const ops::SampleRow& row, std::span<const float> logits,
                          std::span<const ops::LogitEdit> edits) {
  std::vector<float> values(logits.begin(), logits.end());
  for (const ops::LogitEdit& edit : edits) {
    if (edit.token < 0 || edit.token >= row.valid_vocab) continue;
    float& logit = values[static_cast<size_t>(edit.token)];
    logit += edit.bias;
    if (edit.occurrences < 0) continue;
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    const float weighted = row.frequency_penalty * static_cast<float>(edit.occurrences);
    logit -= weighted;
    if (edit.occurrences > 0) logit -= row.presence_penalty;
  }
  return values;
}

/// All tokens, best first.
std::vector<Ranked> ranking(std::span<const float> logits) {
  std::vector<Ranked> ranked;
  for (size_t token = 0; token < logits.size(); ++token)
    ranked.push_back({static_cast<int32_t>(token), logits[token], 0});
  std::sort(ranked.begin(), ranked.end(), better);
  return ranked;
}

/// Token drawn by `uniform` when the nucleus has to reach `top_p`.
int32_t token_by_definition(const ops::SampleRow& row, std::vector<Ranked> ranked, double top_p,
                            double uniform) {
  if (row.temperature == 0) return ranked.front().token;
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < ranked.size())
    ranked.resize(static_cast<size_t>(row.top_k));
  double total = 0;
  for (Ranked& one : ranked)
    total += one.weight =
        std::exp((double{one.logit} - double{ranked.front().logit}) / double{row.temperature});
  if (top_p < 1) {
    double mass = 0;
    size_t count = 0;
    while (count < ranked.size() && (count == 0 || mass < top_p * total))
      mass += ranked[count++].weight;
    ranked.resize(count);
  }
  std::erase_if(ranked, [&](const Ranked& one) { return one.weight < double{row.min_p}; });
  std::sort(ranked.begin(), ranked.end(),
            [](const Ranked& left, const Ranked& right) { return left.token < right.token; });
  total = 0;
  for (const Ranked& one : ranked) total += one.weight;
  double mass = 0;
  int32_t last = -1;
  for (const Ranked& one : ranked) {
    if (one.weight == 0) continue;
    mass += one.weight;
    last = one.token;
    if (mass > uniform * total) break;
  }
  return last;
}

/// Whether `token` is the definition's, up to the margin of its boundaries.
bool may_be_drawn(const ops::SampleRow& row, const std::vector<Ranked>& ranked, int32_t token) {
  const double uniform =
      philox_uniform(row.seed, static_cast<uint64_t>(row.position), DrawPurpose::kSample);
  for (const double nucleus : {0.0, -kMargin, kMargin})
    for (const double shift : {0.0, -kMargin, kMargin}) {
      const double top_p = row.top_p < 1 ? double{row.top_p} * (1 + nucleus) : 1;
      if (token_by_definition(row, ranked, top_p, std::clamp(uniform + shift, 0.0, 1.0)) == token)
        return true;
    }
  return false;
}

/// Rows of one launch and what belongs to them.
struct Draws {
  int vocab = 0;
  std::vector<float> logits{};
  std::vector<ops::SampleRow> rows{};
  std::vector<ops::LogitEdit> edits{};

  std::span<const float> valid(size_t row) const {
    return std::span(logits).subspan(row * static_cast<size_t>(vocab),
                                     static_cast<size_t>(rows[row].valid_vocab));
  }
  std::span<const ops::LogitEdit> edits_of(size_t row) const {
    return std::span(edits).subspan(static_cast<size_t>(rows[row].edits_begin),
                                    static_cast<size_t>(rows[row].num_edits));
  }
  std::vector<ops::SampledToken> run(ops::Ops& backend, size_t first, size_t count) const {
    std::vector<ops::SampledToken> results(count);
    const Values own(std::span<const float>(logits).subspan(first * static_cast<size_t>(vocab),
                                                            count * static_cast<size_t>(vocab)));
    backend.sample({.logits = own.data(),
                    .vocab = vocab,
                    .rows = std::span(rows).subspan(first, count),
                    .edits = edits,
                    .results = results});
    return results;
  }
  std::vector<ops::SampledToken> run(ops::Ops& backend) const {
    return run(backend, 0, rows.size());
  }
};

/// Settings of every kind; `row` picks.
ops::SampleRow some_settings(Random& random, size_t row) {
  constexpr float kTemperatures[] = {0, 1, 0.3F, 5, 1e-30F, 1};
  constexpr int kTopK[] = {0, 20, 1, 200, 3, 0, 5000};
  constexpr float kTopP[] = {1, 0.95F, 0.5F, 1, 1e-6F};
  constexpr float kMinP[] = {0, 0, 0.05F, 1};
  return {.temperature = kTemperatures[row % std::size(kTemperatures)],
          .top_k = kTopK[row % std::size(kTopK)],
          .top_p = kTopP[row % std::size(kTopP)],
          .min_p = kMinP[row % std::size(kMinP)],
          .repetition_penalty = random.uniform(0.5F, 2),
          .presence_penalty = random.uniform(-1, 1),
          .frequency_penalty = random.uniform(-1, 1),
          .seed = static_cast<uint64_t>(random.below(1 << 30)),
          .position = random.below(300000),
          .top_logprobs = static_cast<int>(row % 8) - 1};
}

void add_edits(Random& random, Draws& draws, ops::SampleRow& row) {
  row.edits_begin = static_cast<int>(draws.edits.size());
  std::vector<int32_t> tokens = {-1, draws.vocab, draws.vocab + 7};  // nobody's
  for (int count = random.below(40); count > 0; --count)
    tokens.push_back(random.below(draws.vocab));
  std::sort(tokens.begin(), tokens.end());
  for (const int32_t token : tokens)
    draws.edits.push_back({token, random.uniform(-2, 2), random.below(4) - 1});
  row.num_edits = static_cast<int>(draws.edits.size()) - row.edits_begin;
}

/// Logits in steps of 1/4, so that many are equal, and some masked.
Draws some_draws(Random& random, int vocab, size_t rows) {
  Draws draws{.vocab = vocab};
  for (size_t index = 0; index < rows; ++index) {
    ops::SampleRow row = some_settings(random, index);
    row.valid_vocab = index % 3 == 2 ? std::max(1, vocab - vocab / 3) : vocab;
    if (index % 2 == 1) add_edits(random, draws, row);
    draws.rows.push_back(row);
    for (int token = 0; token < vocab; ++token) {
      const float logit = std::round(12 * random.normal()) / 4;
      draws.logits.push_back(random.below(50) == 0 ? -kInf : logit);
    }
    draws.logits[index * static_cast<size_t>(vocab)] = 1;  // never all masked
  }
  return draws;
}

class SampleOpTest : public OpTest {};

TEST_P(SampleOpTest, MatchesTheDefinition) {
  Random random(71);
  for (const int vocab :
       sized<std::vector<int>>({std::begin(kVocabs), std::end(kVocabs)}, {1, 33, 1000, 20001})) {
    const size_t rows =
        vocab > kManyIds ? sized<size_t>(29, 2) : sized<size_t>(150, vocab == 1000 ? 15 : 3);
    const Draws draws = some_draws(random, vocab, rows);
    const auto results = draws.run(*ops_);
    for (size_t index = 0; index < rows; ++index) {
      SCOPED_TRACE(testing::Message() << "vocabulary " << vocab << " row " << index);
      const ops::SampleRow& row = draws.rows[index];
      const ops::SampledToken& got = results[index];
      const auto raw = draws.valid(index);
      ASSERT_EQ(got.status, ops::SampleStatus::kDrawn);
      const auto ranked = ranking(edited(row, raw, draws.edits_of(index)));
      ASSERT_TRUE(may_be_drawn(row, ranked, got.token)) << got.token;
      if (row.top_logprobs < 0) {
        ASSERT_EQ(got.logprob, 0.0F);
        continue;
      }
      const auto by_logit = ranking(raw);
      double sum = 0;
      for (const Ranked& one : by_logit)
        sum += std::exp(double{one.logit} - double{by_logit.front().logit});
      const auto expect_logprob = [&](float logprob, float logit) {
        const double want = double{logit} - double{by_logit.front().logit} - std::log(sum);
        if (std::isinf(want)) {
          ASSERT_EQ(double{logprob}, want);
          return;
        }
        ASSERT_NEAR(double{logprob}, want, 1e-6 * (1 + std::abs(want)));
      };
      expect_logprob(got.logprob, raw[static_cast<size_t>(got.token)]);
      ASSERT_EQ(got.num_top, std::min(row.top_logprobs, row.valid_vocab));
      for (size_t rank = 0; rank < static_cast<size_t>(got.num_top); ++rank) {
        ASSERT_EQ(got.top[rank].token, by_logit[rank].token) << "rank " << rank;
        expect_logprob(got.top[rank].logprob, by_logit[rank].logit);
      }
    }
  }
}

TEST_P(SampleOpTest, EqualLogitsGoByTheLowerId) {
  for (const int vocab :
       sized<std::vector<int>>({std::begin(kVocabs), std::end(kVocabs)}, {1, 1000})) {
    const auto count = static_cast<size_t>(vocab);
    Draws draws{.vocab = vocab, .logits = std::vector<float>(4 * count, 2.5F)};
    draws.logits[count] = -0.0F;  // row 1: both zeros are equal
    std::fill_n(draws.logits.begin() + vocab + 1, vocab - 1, 0.0F);
    const int kept = std::min(vocab, 7);
    draws.rows = {{.temperature = 0, .valid_vocab = vocab, .top_logprobs = ops::kMaxTopTokens},
                  {.temperature = 0, .valid_vocab = vocab, .top_logprobs = 3},
                  {.top_k = kept, .valid_vocab = vocab, .seed = 5},
                  {.top_p = 0.5F, .valid_vocab = vocab, .seed = 6}};
    for (int position = 0; position < sized(30, 1); ++position) {
      for (ops::SampleRow& row : draws.rows) row.position = position;
      const auto results = draws.run(*ops_);
      EXPECT_EQ(results[0].token, 0);
      EXPECT_EQ(results[1].token, 0);
      EXPECT_LT(results[2].token, kept);
      EXPECT_LT(results[3].token, (vocab + 1) / 2) << "vocabulary " << vocab;
      for (const size_t row : {size_t{0}, size_t{1}})
        for (int rank = 0; rank < results[row].num_top; ++rank)
          ASSERT_EQ(results[row].top[static_cast<size_t>(rank)].token, rank);
    }
  }
}

TEST_P(SampleOpTest, BrokenRowsAreNamedAndLeaveOthersAlone) {
  Random random(72);
  for (const int vocab : sized<std::vector<int>>({9, 33, 20001}, {33}))
    for (const float bad : sized<std::vector<float>>({kNan, -kNan, kInf}, {kNan, kInf}))
      for (const int at : sized<std::vector<int>>({0, vocab / 2, vocab - 1}, {vocab / 2})) {
        SCOPED_TRACE(testing::Message() << "vocabulary " << vocab << " " << bad << " at " << at);
        Draws draws = some_draws(random, vocab, 9);
        const auto whole = draws.run(*ops_);
        const auto width = static_cast<size_t>(vocab);
        for (const size_t row : {size_t{0}, size_t{3}, size_t{6}}) {
          draws.rows[row].valid_vocab = vocab;
          draws.logits[row * width + static_cast<size_t>(at)] = bad;
          draws.logits[row * width + width - 1] = bad;
        }
        std::fill_n(draws.logits.begin() + static_cast<std::ptrdiff_t>(4 * width), width, -kInf);
        const auto results = draws.run(*ops_);
        for (const size_t row : {size_t{0}, size_t{3}, size_t{6}}) {
          ASSERT_EQ(results[row].status, ops::SampleStatus::kBadLogit);
          ASSERT_EQ(results[row].token, at);
          ASSERT_EQ(std::isnan(results[row].bad_logit), std::isnan(bad));
        }
        ASSERT_EQ(results[4].status, ops::SampleStatus::kNoToken);
        for (const size_t row : {size_t{1}, size_t{2}, size_t{5}, size_t{7}, size_t{8}}) {
          ASSERT_EQ(results[row].status, whole[row].status);
          ASSERT_EQ(results[row].token, whole[row].token);
        }
      }
}

TEST_P(SampleOpTest, OverflowOfAnEditIsAnError) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const int vocab : {5, 20001}) {
    Draws draws{.vocab = vocab, .logits = std::vector<float>(static_cast<size_t>(vocab), 0.0F)};
    draws.logits.back() = kLargest;
    draws.edits = {{vocab - 1, kLargest, -1}};
    draws.rows = {{.valid_vocab = vocab, .num_edits = 1}};
    const auto results = draws.run(*ops_);
    EXPECT_EQ(results[0].status, ops::SampleStatus::kBadLogit);
    EXPECT_EQ(results[0].token, vocab - 1);
    EXPECT_EQ(results[0].bad_logit, kInf);
  }
}

/// Alone, in any company, and twice.
TEST_P(SampleOpTest, ARowHasTheSameOutcomeInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  Random random(73);
  for (const int vocab : kVocabs) {
    const Draws draws = some_draws(random, vocab, 24);
    const auto all = draws.run(*ops_);
    const auto expect_same = [&](const std::vector<ops::SampledToken>& some, size_t first) {
      for (size_t row = 0; row < some.size(); ++row)
        ASSERT_EQ(std::memcmp(&some[row], &all[first + row], sizeof some[row]), 0)
            << "vocabulary " << vocab << " row " << first + row;
    };
    ASSERT_NO_FATAL_FAILURE(expect_same(draws.run(*ops_), 0));
    for (const size_t count : {size_t{1}, size_t{5}})
      for (size_t first = 0; first + count <= all.size(); first += count)
        ASSERT_NO_FATAL_FAILURE(expect_same(draws.run(*ops_, first, count), first));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, SampleOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
