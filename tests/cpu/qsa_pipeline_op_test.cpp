// SPDX-License-Identifier: Apache-2.0
// Front, select and attend in a row: any split gives the same sets, and dense equals sparse while
// every block fits the budget. The oracle judges each stage on what the stages before it wrote.
#include <algorithm>

#include "cpu/cpu_ops.h"
#include "cpu/qsa_world.h"

namespace tessera::test {
namespace {

constexpr double kRoundings = 4;  // of the attention, as in its own suite
constexpr double kTolerance = 1e-5;

struct Result {
  std::vector<Rows> out;
  std::vector<BlockLists> selected;
  // With a judge, in the order of the launches: what it made of the same inputs, and the backend.
  std::vector<float> judged{}, packed{};
  std::vector<int32_t> judged_blocks{}, packed_blocks{};
};

class Pipeline {
 public:
  Pipeline(const ops::QsaShape& shape, DType dtype, std::vector<int> lengths, uint64_t seed)
      : shape_(shape),
        dtype_(dtype),
        lengths_(std::move(lengths)),
        random_(seed),
        rope_(shape.rotary_dim),
        queries_(static_cast<size_t>(shape.heads * shape.head_dim)),
        keys_(static_cast<size_t>(shape.kv_heads * shape.head_dim)),
        index_queries_(static_cast<size_t>(shape.index_heads * shape.index_dim)),
        index_width_(index_queries_ + static_cast<size_t>(shape.index_dim)),
        norm_(
            random_.normals(static_cast<size_t>(std::max(shape.head_dim, shape.index_dim)), 0.2)) {
    for (const int length : lengths_) {
      const auto tokens = static_cast<size_t>(length);
      q_gate_.push_back(random_.normals(tokens * 2 * queries_));
      k_.push_back(random_.normals(tokens * keys_));
      v_.push_back(random_.normals(tokens * keys_));
      index_.push_back(random_.normals(tokens * index_width_));
      positions_.emplace_back();
      for (int token = 0; token < length; ++token)
        positions_.back().insert(positions_.back().end(), 3, token);
    }
  }

  /// `judge`: selects and attends as well, from the same queries and pages.
  Result run(ops::Ops& backend, const Schedule& schedule, int budget, ops::Role role,
             ops::Ops* judge = nullptr) {
    QsaWorld world(shape_, dtype_, std::vector<int64_t>(lengths_.begin(), lengths_.end()), 81);
    Result result{.out = std::vector<Rows>(lengths_.size()),
                  .selected = std::vector<BlockLists>(lengths_.size())};
    for (const Launch& launch : schedule)
      run_launch(backend, world, launch, budget, role, judge, result);
    return result;
  }
  const std::vector<int>& lengths() const { return lengths_; }

 private:
  void run_launch(ops::Ops& backend, QsaWorld& world, const Launch& launch, int budget,
                  ops::Role role, ops::Ops* judge, Result& result);

  ops::QsaShape shape_;
  DType dtype_;
  std::vector<int> lengths_;
  Random random_;
  Rope rope_;
  size_t queries_, keys_, index_queries_, index_width_;
  Values norm_;
  std::vector<Rows> q_gate_{}, k_{}, v_{}, index_{};
  std::vector<std::vector<int32_t>> positions_{};
};

void Pipeline::run_launch(ops::Ops& backend, QsaWorld& world, const Launch& launch, int budget,
                          ops::Role role, ops::Ops* judge, Result& result) {
  Batch batch(world.sequences(), launch, role);
  const Values q_gate(batch.gather(q_gate_, 2 * queries_));
  const Values k(batch.gather(k_, keys_)), v(batch.gather(v_, keys_));
  const Values index(batch.gather(index_, index_width_));
  const auto positions = batch.gather(positions_, 3);
  Values q(batch.rows() * queries_), index_q(batch.rows() * index_queries_),
      out(batch.rows() * queries_);
  const auto width = static_cast<size_t>(budget);
  std::vector<int32_t> blocks(batch.rows() * width, -1), counts(batch.rows(), -1);
  backend.qsa_front({.shape = shape_,
                     .rope = rope_.view(),
                     .cache = world.cache(),
                     .q_gate = q_gate.data(),
                     .k = k.data(),
                     .v = v.data(),
                     .index_qk = index.data(),
                     .positions = positions.data(),
                     .q_norm = norm_.data(),
                     .k_norm = norm_.data(),
                     .index_q_norm = norm_.data(),
                     .index_k_norm = norm_.data(),
                     .eps = kEps,
                     .batch = batch.view(),
                     .q = q.data(),
                     .index_q = index_q.data()});
  const auto select_and_attend = [&](ops::Ops& ops) {
    ops.qsa_select({.shape = shape_,
                    .cache = world.cache(),
                    .index_q = index_q.data(),
                    .budget_blocks = budget,
                    .batch = batch.view(),
                    .blocks = blocks.data(),
                    .counts = counts.data()});
    ops.qsa_attend({.shape = shape_,
                    .cache = world.cache(),
                    .q = q.data(),
                    .q_gate = q_gate.data(),
                    .blocks = blocks.data(),
                    .counts = counts.data(),
                    .budget_blocks = budget,
                    .batch = batch.view(),
                    .out = out.data()});
  };
  if (judge != nullptr) {
    select_and_attend(*judge);
    result.judged.insert(result.judged.end(), out.all().begin(), out.all().end());
    result.judged_blocks.insert(result.judged_blocks.end(), blocks.begin(), blocks.end());
  }
  select_and_attend(backend);
  if (judge != nullptr) {
    result.packed.insert(result.packed.end(), out.all().begin(), out.all().end());
    result.packed_blocks.insert(result.packed_blocks.end(), blocks.begin(), blocks.end());
  }
  batch.scatter(out.all(), queries_, result.out);
  size_t row = 0;
  for (const Piece& piece : launch)
    for (int token = 0; token < piece.tokens; ++token, ++row) {
      const auto first = blocks.begin() + static_cast<ptrdiff_t>(row * width);
      result.selected[piece.sequence].emplace_back(first, first + counts[row]);
    }
  batch.advance();
}

class QsaPipelineOpTest : public OpTest {};

TEST_P(QsaPipelineOpTest, AnySplitSelectsTheSameBlocks) {
  constexpr int kBudget = 6;
  for (const ops::QsaShape& shape : {kSmallQsa, kOddQsa, kWideQsa})
    for (const DType dtype : kCacheTypes)
      for (const ops::Role role : kRoles) {
        Pipeline data(shape, dtype, {131, 9, 70}, 82);
        const Result whole = data.run(*ops_, at_once(data.lengths()), kBudget, role);
        for (const int chunk : sized<std::vector<int>>({1, 2, 3, 4, 5, 63, 64}, {5, 64})) {
          const Result cut = data.run(*ops_, in_chunks(data.lengths(), chunk), kBudget, role);
          ASSERT_EQ(cut.selected, whole.selected) << chunk;
          for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence)
            ASSERT_TRUE(
                close(cut.out[sequence], whole.out[sequence], tolerance(kTolerance, kRoundings)))
                << chunk;
        }
      }
}

TEST_P(QsaPipelineOpTest, AgreesWithTheOracleBlockForBlock) {
  constexpr int kBudget = 6;
  const auto oracle = cpu::make_reference_ops();
  for (const ops::QsaShape& shape : {kSmallQsa, kWideQsa})
    for (const ops::Role role : kRoles) {
      Pipeline data(shape, DType::kF32, {131, 9, 70}, 83);
      const Result want = data.run(*oracle, at_once(data.lengths()), kBudget, role);
      const Result got =
          data.run(*ops_, in_chunks(data.lengths(), 50), kBudget, role, oracle.get());
      ASSERT_EQ(got.packed_blocks, got.judged_blocks);
      ASSERT_TRUE(close(got.packed, got.judged, tolerance(kTolerance, kRoundings)));
      if (rounding() > 0) continue;  // rounded queries and keys may swap blocks near the cut
      ASSERT_EQ(got.selected, want.selected);
      for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence)
        ASSERT_TRUE(close(got.out[sequence], want.out[sequence], kTolerance));
    }
}

/// While every block fits, a larger budget changes nothing (how the softmax is cut may follow the
/// budget in a backend that rounds); above it, it must.
TEST_P(QsaPipelineOpTest, SparseEqualsDenseWhileBlocksFit) {
  constexpr int kBudget = 8, kDense = 100;
  for (const ops::Role role : kRoles) {
    Pipeline data(kSmallQsa, DType::kF32, {60}, 84);
    const Result sparse = data.run(*ops_, at_once(data.lengths()), kBudget, role);
    const Result dense = data.run(*ops_, at_once(data.lengths()), kDense, role);
    const size_t width = sparse.out[0].size() / 60;
    const size_t first_sparse = (kBudget + 1) * static_cast<size_t>(kSmallQsa.block) - 1;
    const std::span<const float> left(sparse.out[0]), right(dense.out[0]);
    const auto dense_left = left.first(first_sparse * width);
    const auto dense_right = right.first(first_sparse * width);
    EXPECT_TRUE(rounding() == 0 ? same_bits(dense_left, dense_right)
                                : close(dense_left, dense_right, tolerance(0, kRoundings)));
    EXPECT_FALSE(same_bits(left.subspan(first_sparse * width, width),
                           right.subspan(first_sparse * width, width)));
  }
}

TEST_P(QsaPipelineOpTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  constexpr int kBudget = 4;
  for (const DType dtype : kCacheTypes) {
    Pipeline data(kSmallQsa, dtype, {50, 6, 31}, 85);
    const Result alone =
        data.run(*ops_, one_by_one(data.lengths(), 1), kBudget, ops::Role::kDecode);
    for (int rows = 1; rows <= kMaxDecodeRows; ++rows) {
      const Result got =
          data.run(*ops_, in_chunks(data.lengths(), rows), kBudget, ops::Role::kDecode);
      ASSERT_EQ(got.selected, alone.selected);
      for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence)
        ASSERT_TRUE(same_bits(got.out[sequence], alone.out[sequence])) << rows;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, QsaPipelineOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
