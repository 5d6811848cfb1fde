// SPDX-License-Identifier: Apache-2.0
// Exact block selection: index sets, never values, on the score rows that broke other engines.
#include <algorithm>
#include <numeric>

#include "cpu/qsa_world.h"

namespace tessera::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Index dimension 16: 1 / sqrt(16) is a power of two, so planted scores are exact.
constexpr ops::QsaShape kShape{.heads = 2,
                               .kv_heads = 1,
                               .head_dim = 1,
                               .index_heads = 2,
                               .index_dim = 16,
                               .block = 4,
                               .rotary_dim = 0};

/// Blocks by the total order: NaN last, higher relu score first, then the lower id; ascending.
std::vector<int32_t> best_by_definition(const std::vector<float>& scores, size_t budget) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  if (scores.size() <= budget) return order;
  const auto rank = [&](int32_t id) {
    const float score = scores[static_cast<size_t>(id)];
    return std::isnan(score) ? -1.0 : std::max(0.0, double{score});
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t left, int32_t right) { return rank(left) > rank(right); });
  order.resize(budget);
  std::sort(order.begin(), order.end());
  return order;
}

/// A sequence whose block scores are exactly the given ones (up to a common power of two): a key
/// holds its score as a sum of three BF16 values, which add up exactly in any order.
class PlantedScores {
 public:
  explicit PlantedScores(const std::vector<float>& scores, DType dtype = DType::kF32,
                         const ops::QsaShape& shape = kShape)
      : scores_(scores),
        shape_(shape),
        world_(shape, dtype, {static_cast<int64_t>(scores.size()) * shape.block + shape.block}, 61),
        query_(static_cast<size_t>(shape.index_heads * shape.index_dim)) {
    const auto dim = static_cast<size_t>(shape.index_dim);
    std::vector<float> key(dim, 0.0F);
    for (size_t block = 0; block < scores.size(); ++block) {
      float rest = scores[block];
      for (size_t part = 0; part < kParts; ++part) {
        key[part] = as_bf16(rest);
        rest -= key[part];
      }
      world_.write(world_.index_key_at(0, static_cast<int64_t>(block)), key);
      scores_[block] -= rest;  // nothing is left but below the smallest BF16 value
    }
    std::fill_n(query_.data(), query_.size(), 0.0F);
    std::fill_n(query_.data(), kParts, 1.0F);
  }

  /// Selection of the row that sees all planted blocks and `tail` open tokens.
  std::vector<int32_t> select(ops::Ops& backend, int budget, int64_t num_blocks, int64_t tail,
                              ops::Role role) {
    const ops::RowSpan span = single_row(world_, num_blocks * shape_.block + tail - 1);
    std::vector<int32_t> blocks(static_cast<size_t>(budget), -1);
    int32_t count = -1;
    backend.qsa_select({.shape = shape_,
                        .cache = world_.cache(),
                        .index_q = query_.data(),
                        .budget_blocks = budget,
                        .batch = {{&span, 1}, 1, role},
                        .blocks = blocks.data(),
                        .counts = &count});
    EXPECT_EQ(count, std::min<int64_t>(num_blocks, budget));
    blocks.resize(static_cast<size_t>(std::max(0, count)));
    return blocks;
  }

  void expect_exact(ops::Ops& backend, int budget) {
    const auto num_blocks = static_cast<int64_t>(scores_.size());
    const auto want = best_by_definition(scores_, static_cast<size_t>(budget));
    for (const ops::Role role : kRoles) {
      const auto got = select(backend, budget, num_blocks, num_blocks % shape_.block, role);
      std::vector<int32_t> wrong;
      std::set_difference(got.begin(), got.end(), want.begin(), want.end(),
                          std::back_inserter(wrong));
      ASSERT_TRUE(wrong.empty()) << wrong.size() << " of " << budget << " blocks are wrong, first "
                                 << wrong.front() << ", " << num_blocks << " blocks";
      ASSERT_EQ(got, want);
    }
  }

 private:
  static constexpr size_t kParts = 3;  // of 8 significant bits: a float has 24

  std::vector<float> scores_;
  ops::QsaShape shape_;
  QsaWorld world_;
  Values query_;
};

constexpr size_t kLengths[] = {1, 2, 3, 511, 512, 513, 4097, 16385, 65504, 65536};
constexpr int kReleasedBudget = 512;

std::vector<float> generate(size_t count, const std::function<float(size_t)>& score) {
  std::vector<float> scores(count);
  for (size_t block = 0; block < count; ++block) scores[block] = score(block);
  return scores;
}

class QsaSelectOpTest : public OpTest {
 protected:
  void expect_exact(const std::vector<float>& scores, int budget = kReleasedBudget,
                    DType dtype = DType::kF32) {
    PlantedScores planted(scores, index_key_type(dtype));
    planted.expect_exact(*ops_, budget);
  }
};

TEST_P(QsaSelectOpTest, OrderedAndEqualRows) {
  for (const size_t count : kLengths) {
    const auto last = static_cast<float>(count);
    for (const float level : {0.0F, 1.0F, -3.0F})
      ASSERT_NO_FATAL_FAILURE(expect_exact(std::vector<float>(count, level)));
    ASSERT_NO_FATAL_FAILURE(
        expect_exact(generate(count, [](size_t block) { return static_cast<float>(block); })));
    ASSERT_NO_FATAL_FAILURE(expect_exact(
        generate(count, [last](size_t block) { return last - static_cast<float>(block); })));
  }
}

TEST_P(QsaSelectOpTest, ScoresInsideOneCoarseBin) {
  for (const size_t count : kLengths) {
    Random random(62);
    ASSERT_NO_FATAL_FAILURE(
        expect_exact(generate(count, [&](size_t) { return random.uniform(1.0, 1.245); })));
    ASSERT_NO_FATAL_FAILURE(expect_exact(generate(count, [&](size_t) {
      return 1 + static_cast<float>(random.below(1 << 10)) * std::numeric_limits<float>::epsilon();
    })));
  }
}

TEST_P(QsaSelectOpTest, TiesAtTheCutGoToTheLowerBlock) {
  Random random(63);
  for (const size_t count : kLengths)
    for (const int levels : {2, 3, 40}) {
      const int middle = levels / 2;
      ASSERT_NO_FATAL_FAILURE(expect_exact(generate(
          count, [&](size_t) { return static_cast<float>(random.below(levels) - middle); })));
    }
}

TEST_P(QsaSelectOpTest, NanRanksBelowEveryNumber) {
  Random random(64);
  for (const size_t count : {size_t{1}, size_t{513}, size_t{4097}})
    for (const double share : {0.001, 0.5, 0.99, 1.0})
      ASSERT_NO_FATAL_FAILURE(expect_exact(generate(count, [&](size_t) {
        const float score = random.uniform(-1, 1);
        return random.unit() < share ? kNan : score;
      })));
  ASSERT_NO_FATAL_FAILURE(expect_exact({kNan, -1, kNan, 0, kNan, 5, -0.0F}, 3));
}

TEST_P(QsaSelectOpTest, MinusZeroEqualsZero) {
  for (const size_t count : {size_t{513}, size_t{4097}})
    ASSERT_NO_FATAL_FAILURE(
        expect_exact(generate(count, [](size_t block) { return block % 3 == 0 ? 0.0F : -0.0F; })));
}

TEST_P(QsaSelectOpTest, ExtremeMagnitudes) {
  Random random(65);
  // Below 2^-126 / 2^-18 the last part of a planted score is subnormal, which tensor cores may not
  // keep.
  const double tiny = rounding() == 0 ? 1e-36 : 1e-32;
  for (const double scale : {tiny, 1e-20, 1e30})
    ASSERT_NO_FATAL_FAILURE(expect_exact(generate(4097, [&](size_t) {
      return static_cast<float>(scale * static_cast<double>(random.below(1 << 20)));
    })));
}

TEST_P(QsaSelectOpTest, AnyBudget) {
  Random random(66);
  for (const int budget : {1, 2, 3, 5, 31, 32, 33, 1000, 4096})
    for (const int64_t count : {budget - 1, budget, budget + 1, 2 * budget + 3, 5000}) {
      if (count < 1) continue;
      ASSERT_NO_FATAL_FAILURE(expect_exact(
          generate(static_cast<size_t>(count), [&](size_t) { return random.uniform(-1, 3); }),
          budget));
    }
}

TEST_P(QsaSelectOpTest, Bf16KeysTieMoreOften) {
  Random random(67);
  ASSERT_NO_FATAL_FAILURE(expect_exact(
      generate(5000, [&](size_t) { return as_bf16(random.uniform(0, 2)); }), 100, DType::kBF16));
}

TEST_P(QsaSelectOpTest, FirstPositionsAndTheBudgetBoundary) {
  constexpr int64_t kBudgetTokens = 2048, kMaxSlots = 2051;
  PlantedScores planted(std::vector<float>(kReleasedBudget + 8, 1.0F));
  std::vector<int64_t> positions(10);
  std::iota(positions.begin(), positions.end(), 0);
  for (int64_t position = kBudgetTokens - 1; position <= kBudgetTokens + 8; ++position)
    positions.push_back(position);
  for (const int64_t position : positions) {
    const int64_t blocks = (position + 1) / kShape.block, tail = (position + 1) % kShape.block;
    for (const ops::Role role : kRoles) {
      const auto got = planted.select(*ops_, kReleasedBudget, blocks, tail, role);
      const int64_t taken = std::min<int64_t>(blocks, kReleasedBudget);
      ASSERT_EQ(static_cast<int64_t>(got.size()), taken) << "position " << position;
      for (int64_t block = 0; block < taken; ++block)
        ASSERT_EQ(got[static_cast<size_t>(block)], block);
      EXPECT_LE(taken * kShape.block + tail, kMaxSlots);
      if (position <= kBudgetTokens + 2) {
        EXPECT_EQ(taken * kShape.block + tail, position + 1) << "not dense at " << position;
      }
    }
  }
}

/// Small integers make every product and sum exact in float, so the sets must be equal.
struct IntegerCase {
  IntegerCase(const ops::QsaShape& shape, const std::vector<int>& lengths, DType dtype,
              uint64_t seed)
      : world(shape, dtype, std::vector<int64_t>(lengths.begin(), lengths.end()), seed),
        random(seed) {
    const auto dim = static_cast<size_t>(shape.index_dim);
    const auto query = static_cast<size_t>(shape.index_heads) * dim;
    for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
      for (int64_t block = 0; block < lengths[sequence] / shape.block; ++block) {
        keys.resize(sequence + 1);
        const auto key = integers(dim);
        keys[sequence].insert(keys[sequence].end(), key.begin(), key.end());
        world.write(world.index_key_at(sequence, block), key);
      }
      queries.push_back(integers(static_cast<size_t>(lengths[sequence]) * query));
    }
  }

  std::vector<float> integers(size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(random.below(7) - 3);
    return values;
  }

  std::vector<int32_t> by_definition(size_t sequence, size_t token, size_t budget) const {
    const auto dim = static_cast<size_t>(world.shape().index_dim);
    const auto heads = static_cast<size_t>(world.shape().index_heads);
    std::vector<float> scores;
    const size_t visible = (token + 1) / static_cast<size_t>(world.shape().block);
    for (size_t block = 0; block < visible; ++block) {
      double sum = 0;
      for (size_t head = 0; head < heads; ++head) {
        double product = 0;
        for (size_t col = 0; col < dim; ++col)
          product += double{queries[sequence][(token * heads + head) * dim + col]} *
                     double{keys[sequence][block * dim + col]};
        sum += std::max(0.0, product);
      }
      scores.push_back(static_cast<float>(sum));
    }
    return best_by_definition(scores, budget);
  }

  std::vector<BlockLists> by_definition(size_t budget) const {
    std::vector<BlockLists> lists(queries.size());
    const auto query = static_cast<size_t>(world.shape().index_heads * world.shape().index_dim);
    for (size_t sequence = 0; sequence < queries.size(); ++sequence)
      for (size_t token = 0; token < queries[sequence].size() / query; ++token)
        lists[sequence].push_back(by_definition(sequence, token, budget));
    return lists;
  }

  std::vector<BlockLists> run(ops::Ops& backend, const Schedule& schedule, int budget,
                              ops::Role role) {
    const auto query = static_cast<size_t>(world.shape().index_heads) *
                       static_cast<size_t>(world.shape().index_dim);
    std::vector<BlockLists> lists(queries.size());
    for (Sequence& sequence : world.sequences()) sequence.absorbed = 0;
    for (const Launch& launch : schedule) {
      Batch batch(world.sequences(), launch, role);
      const Values index_q(batch.gather(queries, query));
      std::vector<int32_t> blocks(batch.rows() * static_cast<size_t>(budget), -1);
      std::vector<int32_t> counts(batch.rows(), -1);
      backend.qsa_select({.shape = world.shape(),
                          .cache = world.cache(),
                          .index_q = index_q.data(),
                          .budget_blocks = budget,
                          .batch = batch.view(),
                          .blocks = blocks.data(),
                          .counts = counts.data()});
      size_t row = 0;
      for (const Piece& piece : launch)
        for (int token = 0; token < piece.tokens; ++token, ++row) {
          const auto first = blocks.begin() + static_cast<ptrdiff_t>(row) * budget;
          lists[piece.sequence].emplace_back(first, first + std::max(0, counts[row]));
        }
      batch.advance();
    }
    return lists;
  }

  QsaWorld world;
  Random random;
  std::vector<Rows> keys{}, queries{};
};

TEST_P(QsaSelectOpTest, AllHeadsAddUpAndNoSplitChangesTheSets) {
  constexpr int kBudget = 7;
  const std::vector<int> lengths{150, 3, 0, 97};
  for (const ops::QsaShape& shape : {kSmallQsa, kOddQsa, kWideQsa})
    for (const DType dtype : kCacheTypes)
      for (const ops::Role role : kRoles) {
        IntegerCase data(shape, lengths, dtype, 68);
        const auto want = data.by_definition(kBudget);
        for (const int chunk : sized<std::vector<int>>({1, 2, 3, 4, 5, 6, 63, 64, 200}, {5, 64}))
          ASSERT_EQ(data.run(*ops_, in_chunks(lengths, chunk), kBudget, role), want) << chunk;
      }
}

INSTANTIATE_TEST_SUITE_P(Cpu, QsaSelectOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
