// SPDX-License-Identifier: Apache-2.0
// QSA front by definition: norms, three-axis RoPE, cache writes, pooled keys over any split.
#include "cpu/qsa_world.h"

namespace tessera::test {
namespace {

// A head is short, so one rounding may err by its most, 2^-8: twice OpTest::rounding().
constexpr double kQueryRoundings = 2;     // the output
constexpr double kKeyRoundings = 2;       // before it is stored
constexpr double kIndexKeyRoundings = 4;  // the mean, the stored key
constexpr int kMaxPosition = 262144;      // angles of many turns

/// Inputs of whole sequences and everything the front must produce from them.
class FrontCase {
 public:
  FrontCase(const OpTest& test, const ops::QsaShape& shape, DType dtype, std::vector<int> lengths,
            uint64_t seed)
      : test_(test),
        shape_(shape),
        dtype_(dtype),
        lengths_(std::move(lengths)),
        random_(seed),
        rope_(shape.rotary_dim, 1.1F),
        dim_(static_cast<size_t>(shape.head_dim)),
        index_dim_(static_cast<size_t>(shape.index_dim)),
        heads_(static_cast<size_t>(shape.heads)),
        kv_heads_(static_cast<size_t>(shape.kv_heads)),
        index_heads_(static_cast<size_t>(shape.index_heads)),
        q_norm_(random_.normals(dim_, 0.3)),
        k_norm_(random_.normals(dim_, 0.3)),
        index_q_norm_(random_.normals(index_dim_, 0.3)),
        index_k_norm_(random_.normals(index_dim_, 0.3)) {
    for (const int length : lengths_) {
      const auto tokens = static_cast<size_t>(length);
      q_gate_.push_back(random_.normals(tokens * heads_ * 2 * dim_));
      k_.push_back(random_.normals(tokens * kv_heads_ * dim_));
      v_.push_back(random_.normals(tokens * kv_heads_ * dim_));
      index_.push_back(random_.normals(tokens * (index_heads_ + 1) * index_dim_));
      positions_.emplace_back();
      for (int entry = 0; entry < 3 * length; ++entry)
        positions_.back().push_back(random_.below(kMaxPosition));
    }
  }

  void run(ops::Ops& backend, const Schedule& schedule, ops::Role role, bool queries = true) {
    queries_ = queries;
    world_ = std::make_unique<QsaWorld>(shape_, dtype_,
                                        std::vector<int64_t>(lengths_.begin(), lengths_.end()), 51);
    q_.assign(lengths_.size(), {});
    index_q_.assign(lengths_.size(), {});
    for (const Launch& launch : schedule) run_launch(backend, launch, role);
  }

  /// Everything written, in one row of floats per sequence, for bit comparisons.
  std::vector<float> outputs(size_t sequence) const;
  void expect_definition(size_t sequence);
  void expect_cache(size_t sequence);
  void expect_rings(size_t sequence) const;
  void expect_rest_is_poison() const { EXPECT_TRUE(world_->rest_is_poison()); }
  const std::vector<int>& lengths() const { return lengths_; }

 private:
  void run_launch(ops::Ops& backend, const Launch& launch, ops::Role role);
  std::vector<float> norm_rope(std::span<const float> x, const Values& weight,
                               const int32_t* position) const {
    auto out = rms_by_definition(to_double(x), weight.all(), double{kEps});
    rope_.rotate(out, position);
    return to_float(out);
  }
  const int32_t* position(size_t sequence, int64_t token) const {
    return &positions_[sequence][static_cast<size_t>(token) * 3];
  }
  std::span<const float> raw_key(size_t sequence, int64_t token) const {
    const size_t row = static_cast<size_t>(token) * (index_heads_ + 1) + index_heads_;
    return std::span(index_[sequence]).subspan(row * index_dim_, index_dim_);
  }
  std::vector<float> pooled_key(size_t sequence, int64_t block) const;
  double tolerance(size_t dim, double roundings) const {
    return test_.tolerance(4 * sum_tolerance(static_cast<double>(dim)), roundings);
  }
  double cache_tolerance(size_t dim, double roundings) const {
    return tolerance(dim, roundings) + (dtype_ == DType::kBF16 ? 0x1p-8 : 0);
  }
  void expect_queries(size_t sequence) const;

  const OpTest& test_;
  ops::QsaShape shape_;
  DType dtype_;
  std::vector<int> lengths_;
  Random random_;
  Rope rope_;
  size_t dim_, index_dim_, heads_, kv_heads_, index_heads_;
  Values q_norm_, k_norm_, index_q_norm_, index_k_norm_;
  std::vector<Rows> q_gate_{}, k_{}, v_{}, index_{};
  std::vector<std::vector<int32_t>> positions_{};
  std::unique_ptr<QsaWorld> world_{};
  std::vector<Rows> q_{}, index_q_{};
  bool queries_ = true;
};

void FrontCase::run_launch(ops::Ops& backend, const Launch& launch, ops::Role role) {
  Batch batch(world_->sequences(), launch, role);
  const Values q_gate(batch.gather(q_gate_, heads_ * 2 * dim_));
  const Values k(batch.gather(k_, kv_heads_ * dim_)), v(batch.gather(v_, kv_heads_ * dim_));
  const Values index(batch.gather(index_, (index_heads_ + 1) * index_dim_));
  const std::vector<int32_t> positions = batch.gather(positions_, 3);
  Values q(batch.rows() * heads_ * dim_), index_q(batch.rows() * index_heads_ * index_dim_);
  backend.qsa_front({.shape = shape_,
                     .rope = rope_.view(),
                     .cache = world_->cache(),
                     .q_gate = queries_ ? q_gate.data() : nullptr,
                     .k = k.data(),
                     .v = v.data(),
                     .index_qk = index.data(),
                     .positions = positions.data(),
                     .q_norm = q_norm_.data(),
                     .k_norm = k_norm_.data(),
                     .index_q_norm = index_q_norm_.data(),
                     .index_k_norm = index_k_norm_.data(),
                     .eps = kEps,
                     .batch = batch.view(),
                     .q = queries_ ? q.data() : nullptr,
                     .index_q = queries_ ? index_q.data() : nullptr});
  EXPECT_TRUE(q.guards_intact());
  EXPECT_TRUE(index_q.guards_intact());
  batch.scatter(q.all(), heads_ * dim_, q_);
  batch.scatter(index_q.all(), index_heads_ * index_dim_, index_q_);
  batch.advance();
}

std::vector<float> FrontCase::pooled_key(size_t sequence, int64_t block) const {
  std::vector<double> mean(index_dim_, 0.0);
  for (int64_t token = block * shape_.block; token < (block + 1) * shape_.block; ++token)
    for (size_t col = 0; col < index_dim_; ++col)
      mean[col] += double{raw_key(sequence, token)[col]} / shape_.block;
  return norm_rope(to_float(mean), index_k_norm_, position(sequence, block * shape_.block));
}

void FrontCase::expect_queries(size_t sequence) const {
  for (size_t token = 0; token * heads_ * dim_ < q_[sequence].size(); ++token) {
    const int32_t* at = position(sequence, static_cast<int64_t>(token));
    for (size_t head = 0; head < heads_; ++head) {
      const size_t row = token * heads_ + head;
      const auto want =
          norm_rope(std::span(q_gate_[sequence]).subspan(row * 2 * dim_, dim_), q_norm_, at);
      ASSERT_TRUE(close(std::span(q_[sequence]).subspan(row * dim_, dim_), want,
                        tolerance(dim_, kQueryRoundings)))
          << "q token " << token << " head " << head;
    }
    for (size_t head = 0; head < index_heads_; ++head) {
      const size_t source = token * (index_heads_ + 1) + head;
      const auto want = norm_rope(
          std::span(index_[sequence]).subspan(source * index_dim_, index_dim_), index_q_norm_, at);
      const size_t row = token * index_heads_ + head;
      ASSERT_TRUE(close(std::span(index_q_[sequence]).subspan(row * index_dim_, index_dim_), want,
                        tolerance(index_dim_, kQueryRoundings)))
          << "index q token " << token << " head " << head;
    }
  }
}

void FrontCase::expect_cache(size_t sequence) {
  const int64_t tokens = world_->sequences()[sequence].absorbed;
  for (int64_t token = 0; token < tokens; ++token)
    for (size_t head = 0; head < kv_heads_; ++head) {
      const size_t at = (static_cast<size_t>(token) * kv_heads_ + head) * dim_;
      const auto key =
          norm_rope(std::span(k_[sequence]).subspan(at, dim_), k_norm_, position(sequence, token));
      auto value = std::vector<float>(v_[sequence].begin() + static_cast<ptrdiff_t>(at),
                                      v_[sequence].begin() + static_cast<ptrdiff_t>(at + dim_));
      for (float& element : value) element = as_stored(dtype_, element);
      ASSERT_TRUE(close(world_->read(world_->key_at(sequence, token, head), dim_), key,
                        cache_tolerance(dim_, kKeyRoundings)))
          << "key of token " << token;
      ASSERT_TRUE(same_bits(world_->read(world_->value_at(sequence, token, head), dim_), value))
          << "value of token " << token;
      world_->mark_written(world_->key_at(sequence, token, head), dim_);
      world_->mark_written(world_->value_at(sequence, token, head), dim_);
    }
  for (int64_t block = 0; block < tokens / shape_.block; ++block) {
    const std::byte* stored = world_->index_key_at(sequence, block);
    ASSERT_TRUE(close(world_->read(stored, index_dim_), pooled_key(sequence, block),
                      cache_tolerance(index_dim_, kIndexKeyRoundings)))
        << "index key of block " << block;
    world_->mark_written(stored, index_dim_);
  }
}

void FrontCase::expect_rings(size_t sequence) const {
  const int64_t tokens = world_->sequences()[sequence].absorbed;
  for (int64_t token = std::max<int64_t>(0, tokens - (shape_.block - 1)); token < tokens; ++token) {
    EXPECT_EQ(std::memcmp(world_->raw_key_ring(sequence, token), raw_key(sequence, token).data(),
                          index_dim_ * sizeof(float)),
              0)
        << "raw key of token " << token;
    EXPECT_EQ(std::memcmp(world_->position_ring(sequence, token), position(sequence, token),
                          3 * sizeof(int32_t)),
              0)
        << "position of token " << token;
  }
}

void FrontCase::expect_definition(size_t sequence) {
  ASSERT_NO_FATAL_FAILURE(expect_queries(sequence));
  ASSERT_NO_FATAL_FAILURE(expect_cache(sequence));
  expect_rings(sequence);
}

std::vector<float> FrontCase::outputs(size_t sequence) const {
  std::vector<float> all = q_[sequence];
  const auto append = [&all](const std::vector<float>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  append(index_q_[sequence]);
  const int64_t tokens = world_->sequences()[sequence].absorbed;
  for (int64_t token = 0; token < tokens; ++token)
    for (size_t head = 0; head < kv_heads_; ++head)
      append(world_->read(world_->key_at(sequence, token, head), dim_));
  for (int64_t block = 0; block < tokens / shape_.block; ++block)
    append(world_->read(world_->index_key_at(sequence, block), index_dim_));
  return all;
}

class QsaFrontOpTest : public OpTest {};

TEST_P(QsaFrontOpTest, MatchesTheDefinitionForAnySplit) {
  for (const ops::QsaShape& shape : {kSmallQsa, kOddQsa, kBigBlockQsa})
    for (const DType dtype : kCacheTypes)
      for (const ops::Role role : kRoles) {
        FrontCase data(*this, shape, dtype, {1, 3, 130, 0, 66}, 52);
        for (const int chunk : sized<std::vector<int>>({1, 2, 3, 4, 5, 15, 63, 64, 200}, {3, 64})) {
          SCOPED_TRACE(testing::Message() << "block " << shape.block << " chunk " << chunk << " "
                                          << dtype_name(dtype) << " " << role_name(role));
          data.run(*ops_, in_chunks(data.lengths(), chunk), role);
          for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence)
            ASSERT_NO_FATAL_FAILURE(data.expect_definition(sequence));
          data.expect_rest_is_poison();
        }
      }
}

/// Rows of the draft layer that nobody asks anything.
TEST_P(QsaFrontOpTest, RowsWithoutQueriesLeaveTheSameCache) {
  if (!ops_->traits().drafts) GTEST_SKIP() << "no draft layer here";
  for (const DType dtype : kCacheTypes)
    for (const ops::Role role : kRoles) {
      FrontCase data(*this, kOddQsa, dtype, {1, 3, 130, 0, 66}, 54);
      for (const int chunk : {1, 3, 64}) {
        data.run(*ops_, in_chunks(data.lengths(), chunk), role, false);
        for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence) {
          ASSERT_NO_FATAL_FAILURE(data.expect_cache(sequence)) << chunk;
          ASSERT_NO_FATAL_FAILURE(data.expect_rings(sequence)) << chunk;
        }
        data.expect_rest_is_poison();
      }
    }
}

TEST_P(QsaFrontOpTest, MatchesTheDefinitionAtTheReleasedHeadSize) {
  for (const DType dtype : kCacheTypes)
    for (const ops::Role role : kRoles) {
      FrontCase data(*this, kWideQsa, dtype, {67, 9}, 53);
      for (const int chunk : sized<std::vector<int>>({1, 5, 30, 67}, {5, 67})) {
        data.run(*ops_, in_chunks(data.lengths(), chunk), role);
        for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence)
          ASSERT_NO_FATAL_FAILURE(data.expect_definition(sequence)) << chunk;
        data.expect_rest_is_poison();
      }
    }
}

TEST_P(QsaFrontOpTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  for (const ops::QsaShape& shape : {kSmallQsa, kOddQsa, kWideQsa})
    for (const DType dtype : kCacheTypes) {
      FrontCase data(*this, shape, dtype, {13, 6, 17}, 54);
      data.run(*ops_, one_by_one(data.lengths(), 1), ops::Role::kDecode);
      std::vector<std::vector<float>> alone;
      for (size_t sequence = 0; sequence < 3; ++sequence) alone.push_back(data.outputs(sequence));
      for (int rows = 1; rows <= kMaxDecodeRows; ++rows)
        for (const Schedule& schedule :
             {one_by_one(data.lengths(), rows), in_chunks(data.lengths(), rows)}) {
          data.run(*ops_, schedule, ops::Role::kDecode);
          for (size_t sequence = 0; sequence < 3; ++sequence)
            ASSERT_TRUE(same_bits(data.outputs(sequence), alone[sequence])) << rows;
        }
    }
}

/// A block that a rejected draft completed is written again when its tokens come for good.
TEST_P(QsaFrontOpTest, RejectedRowsLeaveNoTrace) {
  for (int rejected = 1; rejected <= kMaxDraft; ++rejected)
    for (int start = 1; start <= 4; ++start) {
      FrontCase data(*this, kSmallQsa, DType::kF32, {60}, 55);
      Schedule schedule{{{0, start}}};
      for (int round = 0; round < 5; ++round) schedule.push_back({{0, kMaxDraft + 1, rejected}});
      data.run(*ops_, schedule, ops::Role::kDecode);
      ASSERT_NO_FATAL_FAILURE(data.expect_definition(0)) << rejected << " rejected of 6";
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, QsaFrontOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
