// SPDX-License-Identifier: Apache-2.0
// Sparse attention against a masked softmax over all tokens in double.
#include <algorithm>

#include "cpu/qsa_world.h"

namespace tessera::test {
namespace {

constexpr double kRoundings = 4;  // probabilities, their sum, the gated output

/// Filled caches, queries for every token and a random ascending block list for every row.
class AttendCase {
 public:
  AttendCase(const ops::QsaShape& shape, DType dtype, std::vector<int> lengths, int budget,
             uint64_t seed, double spread = 1)
      : shape_(shape),
        lengths_(std::move(lengths)),
        budget_(static_cast<size_t>(budget)),
        random_(seed),
        dim_(static_cast<size_t>(shape.head_dim)),
        heads_(static_cast<size_t>(shape.heads)),
        kv_heads_(static_cast<size_t>(shape.kv_heads)),
        world_(shape, dtype, std::vector<int64_t>(lengths_.begin(), lengths_.end()), seed) {
    for (size_t sequence = 0; sequence < lengths_.size(); ++sequence) {
      const auto tokens = static_cast<size_t>(lengths_[sequence]);
      for (size_t token = 0; token < tokens; ++token)
        for (size_t head = 0; head < kv_heads_; ++head) {
          const auto at = static_cast<int64_t>(token);
          world_.write(world_.key_at(sequence, at, head), random_.normals(dim_, spread));
          world_.write(world_.value_at(sequence, at, head), random_.normals(dim_));
        }
      q_.push_back(random_.normals(tokens * heads_ * dim_));
      q_gate_.push_back(random_.normals(tokens * heads_ * 2 * dim_));
      blocks_.emplace_back();
      counts_.emplace_back();
      for (size_t token = 0; token < tokens; ++token) draw_blocks(sequence, token);
    }
  }

  std::vector<Rows> run(ops::Ops& backend, const Schedule& schedule, ops::Role role) {
    std::vector<Rows> out(lengths_.size());
    for (Sequence& sequence : world_.sequences()) sequence.absorbed = 0;
    for (const Launch& launch : schedule) {
      Batch batch(world_.sequences(), launch, role);
      const Values q(batch.gather(q_, heads_ * dim_)),
          gate(batch.gather(q_gate_, heads_ * 2 * dim_));
      const auto blocks = batch.gather(blocks_, budget_);
      const auto counts = batch.gather(counts_, 1);
      Values result(batch.rows() * heads_ * dim_);
      backend.qsa_attend({.shape = shape_,
                          .cache = world_.cache(),
                          .q = q.data(),
                          .q_gate = gate.data(),
                          .blocks = blocks.data(),
                          .counts = counts.data(),
                          .budget_blocks = static_cast<int>(budget_),
                          .batch = batch.view(),
                          .out = result.data()});
      EXPECT_TRUE(result.guards_intact());
      batch.scatter(result.all(), heads_ * dim_, out);
      batch.advance();
    }
    return out;
  }

  std::vector<float> by_definition(size_t sequence, size_t token) const;
  void poison_value(size_t sequence, int64_t token) {
    world_.write(world_.value_at(sequence, token, 0),
                 std::vector<float>(dim_, std::numeric_limits<float>::quiet_NaN()));
  }
  const std::vector<int>& lengths() const { return lengths_; }
  size_t row_width() const { return heads_ * dim_; }
  double tolerance() const { return 8 * sum_tolerance(static_cast<double>(dim_ + budget_ * 4)); }
  bool attends(size_t sequence, size_t token, int64_t to) const {
    const std::vector<bool> mask = mask_of(sequence, token);
    return static_cast<size_t>(to) < mask.size() && mask[static_cast<size_t>(to)];
  }

 private:
  void draw_blocks(size_t sequence, size_t token) {
    const int visible = (static_cast<int>(token) + 1) / shape_.block;
    auto chosen = random_.permutation(visible);
    chosen.resize(std::min(chosen.size(), budget_));
    std::sort(chosen.begin(), chosen.end());
    counts_[sequence].push_back(static_cast<int32_t>(chosen.size()));
    chosen.resize(budget_, -1);
    blocks_[sequence].insert(blocks_[sequence].end(), chosen.begin(), chosen.end());
  }
  std::vector<bool> mask_of(size_t sequence, size_t token) const {
    const auto block = static_cast<size_t>(shape_.block);
    std::vector<bool> mask(token + 1, false);
    for (size_t open = (token + 1) / block * block; open <= token; ++open) mask[open] = true;
    const auto count = static_cast<size_t>(counts_[sequence][token]);
    for (size_t entry = 0; entry < count; ++entry) {
      const auto id = static_cast<size_t>(blocks_[sequence][token * budget_ + entry]);
      std::fill_n(mask.begin() + static_cast<ptrdiff_t>(id * block), block, true);
    }
    return mask;
  }

  ops::QsaShape shape_;
  std::vector<int> lengths_;
  size_t budget_;
  Random random_;
  size_t dim_, heads_, kv_heads_;
  QsaWorld world_;
  std::vector<Rows> q_{}, q_gate_{};
  std::vector<std::vector<int32_t>> blocks_{}, counts_{};
};

std::vector<float> AttendCase::by_definition(size_t sequence, size_t token) const {
  const std::vector<bool> mask = mask_of(sequence, token);
  std::vector<double> out(row_width(), 0.0);
  for (size_t head = 0; head < heads_; ++head) {
    const size_t row = token * heads_ + head, kv_head = head / (heads_ / kv_heads_);
    std::vector<double> logits(mask.size(), -std::numeric_limits<double>::infinity());
    for (size_t other = 0; other < mask.size(); ++other) {
      if (!mask[other]) continue;
      const auto key =
          world_.read(world_.key_at(sequence, static_cast<int64_t>(other), kv_head), dim_);
      double product = 0;
      for (size_t col = 0; col < dim_; ++col)
        product += double{q_[sequence][row * dim_ + col]} * double{key[col]};
      logits[other] = product / std::sqrt(static_cast<double>(dim_));
    }
    const double top = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (const double logit : logits) total += std::exp(logit - top);
    for (size_t other = 0; other < mask.size(); ++other) {
      if (!mask[other]) continue;
      const auto value =
          world_.read(world_.value_at(sequence, static_cast<int64_t>(other), kv_head), dim_);
      for (size_t col = 0; col < dim_; ++col)
        out[head * dim_ + col] += std::exp(logits[other] - top) / total * double{value[col]};
    }
    for (size_t col = 0; col < dim_; ++col)
      out[head * dim_ + col] *= sigmoid(double{q_gate_[sequence][(2 * row + 1) * dim_ + col]});
  }
  return to_float(out);
}

std::vector<Rows> definition(const AttendCase& data) {
  std::vector<Rows> want(data.lengths().size());
  for (size_t sequence = 0; sequence < want.size(); ++sequence)
    for (size_t token = 0; token < static_cast<size_t>(data.lengths()[sequence]); ++token) {
      const auto row = data.by_definition(sequence, token);
      want[sequence].insert(want[sequence].end(), row.begin(), row.end());
    }
  return want;
}

class QsaAttendOpTest : public OpTest {
 protected:
  void expect_rows(const AttendCase& data, const std::vector<Rows>& got,
                   const std::vector<Rows>& want) const;
};

void QsaAttendOpTest::expect_rows(const AttendCase& data, const std::vector<Rows>& got,
                                  const std::vector<Rows>& want) const {
  for (size_t sequence = 0; sequence < want.size(); ++sequence)
    for (size_t at = 0; at < want[sequence].size(); at += data.row_width())
      ASSERT_TRUE(close(std::span(got[sequence]).subspan(at, data.row_width()),
                        std::span(want[sequence]).subspan(at, data.row_width()),
                        tolerance(data.tolerance(), kRoundings)))
          << "sequence " << sequence << " token " << at / data.row_width();
}

TEST_P(QsaAttendOpTest, MatchesMaskedSoftmaxForAnySplit) {
  for (const ops::QsaShape& shape : {kSmallQsa, kOddQsa, kBigBlockQsa})
    for (const DType dtype : kCacheTypes)
      for (const int budget : {1, 5, 100}) {
        AttendCase data(shape, dtype, {1, 2, 3, 0, 90, 65}, budget, 71);
        const auto want = definition(data);
        for (const ops::Role role : kRoles)
          for (const int chunk : sized<std::vector<int>>({1, 5, 64, 100}, {5, 100})) {
            SCOPED_TRACE(testing::Message()
                         << "block " << shape.block << " budget " << budget << " chunk " << chunk
                         << " " << dtype_name(dtype) << " " << role_name(role));
            ASSERT_NO_FATAL_FAILURE(
                expect_rows(data, data.run(*ops_, in_chunks(data.lengths(), chunk), role), want));
          }
      }
}

TEST_P(QsaAttendOpTest, MatchesMaskedSoftmaxAtTheReleasedHeadSize) {
  for (const DType dtype : kCacheTypes) {
    AttendCase data(kWideQsa, dtype, {70}, 9, 72);
    const auto want = definition(data);
    for (const ops::Role role : kRoles)
      ASSERT_NO_FATAL_FAILURE(
          expect_rows(data, data.run(*ops_, at_once(data.lengths()), role), want));
  }
}

TEST_P(QsaAttendOpTest, LargeLogitsStayFinite) {
  for (const ops::Role role : kRoles) {
    AttendCase data(kSmallQsa, DType::kF32, {40}, 6, 73, 1e4);
    const auto got = data.run(*ops_, at_once(data.lengths()), role);
    for (const float value : got[0]) ASSERT_TRUE(std::isfinite(value));
  }
}

/// Everything not selected, and every page beyond the sequence, holds NaN or is never read.
TEST_P(QsaAttendOpTest, UnselectedTokensAreNeverUsed) {
  constexpr int64_t kPoisoned = 5;
  for (const ops::Role role : kRoles) {
    AttendCase data(kOddQsa, DType::kF32, {60}, 4, 74);
    const auto clean = data.run(*ops_, at_once(data.lengths()), role);
    data.poison_value(0, kPoisoned);
    const auto poisoned = data.run(*ops_, at_once(data.lengths()), role);
    int touched = 0, untouched = 0;
    for (size_t token = 0; token < 60; ++token) {
      const auto row = std::span(poisoned[0]).subspan(token * data.row_width(), data.row_width());
      const auto before = std::span(clean[0]).subspan(token * data.row_width(), data.row_width());
      const bool uses = data.attends(0, token, kPoisoned);
      const bool has_nan =
          std::any_of(row.begin(), row.end(), [](float value) { return std::isnan(value); });
      ASSERT_EQ(has_nan, uses) << "token " << token;
      if (!uses) {
        ASSERT_TRUE(same_bits(row, before)) << "token " << token;
      }
      ++(uses ? touched : untouched);
    }
    EXPECT_GT(touched, 0);
    EXPECT_GT(untouched, 0);
  }
}

TEST_P(QsaAttendOpTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  for (const ops::QsaShape& shape : {kSmallQsa, kOddQsa, kWideQsa})
    for (const DType dtype : kCacheTypes) {
      AttendCase data(shape, dtype, {40, 6, 75}, 8, 75);
      const auto alone = data.run(*ops_, one_by_one(data.lengths(), 1), ops::Role::kDecode);
      for (int rows = 1; rows <= kMaxDecodeRows; ++rows)
        for (const Schedule& schedule :
             {one_by_one(data.lengths(), rows), in_chunks(data.lengths(), rows)}) {
          const auto got = data.run(*ops_, schedule, ops::Role::kDecode);
          for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence)
            ASSERT_TRUE(same_bits(got[sequence], alone[sequence])) << rows;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, QsaAttendOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
