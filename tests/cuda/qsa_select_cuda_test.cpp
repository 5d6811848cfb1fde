// SPDX-License-Identifier: Apache-2.0
// Block selection at the released index geometry: exact sets at long contexts, the same lists in
// any launch, and patience with late inputs.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpu/cpu_ops.h"
#include "cpu/qsa_world.h"
#include "cuda/cuda_backend.h"
#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"
#include "cuda/staged_ops.h"

namespace tessera::test {
namespace {

/// K and V are as small as they can be: the selection does not look at them.
constexpr ops::QsaShape kIndexOnly{.heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = 1,
                                   .index_heads = 4,
                                   .index_dim = 128,
                                   .block = 4,
                                   .rotary_dim = 0};
constexpr size_t kDim = kIndexOnly.index_dim;
constexpr size_t kQuery = kIndexOnly.index_heads * kDim;
constexpr int kBudget = 512;
const auto kLongest = sized<int64_t>(262144, 32768);

/// Rows of one sequence, the first of them at index `position`.
struct Piece {
  int64_t position = 0;
  int rows = 0;
};
using Draw = std::function<float()>;

/// Sequences with their keys, and queries of their last rows.
class SelectCase {
 public:
  SelectCase(std::vector<Piece> pieces, const Draw& draw)
      : pieces_(std::move(pieces)), world_(kIndexOnly, DType::kBF16, capacities(pieces_), 91) {
    std::vector<float> key(kDim);
    for (size_t sequence = 0; sequence < pieces_.size(); ++sequence) {
      const int64_t blocks = end_of(pieces_[sequence]) / kIndexOnly.block;
      for (int64_t block = 0; block < blocks; ++block) {
        std::generate(key.begin(), key.end(), draw);
        world_.write(world_.index_key_at(sequence, block), key);
      }
    }
    queries_.resize(static_cast<size_t>(num_rows()) * kQuery);
    std::generate(queries_.begin(), queries_.end(), draw);
  }

  QsaWorld& world() { return world_; }
  std::vector<float>& queries() { return queries_; }
  int num_rows() const {
    return std::accumulate(pieces_.begin(), pieces_.end(), 0,
                           [](int sum, const Piece& piece) { return sum + piece.rows; });
  }

  /// The lists of all rows, from launches that take up to `chunk` rows of each sequence;
  /// `together`: one launch for all sequences, else one for each.
  BlockLists run(ops::Ops& backend, ops::Role role, int chunk, bool together,
                 int64_t max_context = 0) {
    BlockLists lists(static_cast<size_t>(num_rows()));
    const size_t launches = together ? 1 : pieces_.size();
    for (int done = 0; done < widest(); done += chunk)
      for (size_t launch = 0; launch < launches; ++launch) {
        std::vector<Piece> part;
        std::vector<size_t> sequences;
        for (size_t sequence = together ? 0 : launch;
             sequence < (together ? pieces_.size() : launch + 1); ++sequence) {
          const Piece& piece = pieces_[sequence];
          const int rows = std::clamp(piece.rows - done, 0, chunk);
          if (rows > 0)
            part.push_back({piece.position + done, rows}), sequences.push_back(sequence);
        }
        if (!part.empty()) run_launch(backend, role, part, sequences, done, max_context, lists);
      }
    return lists;
  }
  BlockLists run(ops::Ops& backend, ops::Role role, int64_t max_context = 0) {
    return run(backend, role, widest(), true, max_context);
  }

 private:
  static int64_t end_of(const Piece& piece) { return piece.position + piece.rows; }
  static std::vector<int64_t> capacities(const std::vector<Piece>& pieces) {
    std::vector<int64_t> tokens;
    for (const Piece& piece : pieces) tokens.push_back(end_of(piece));
    return tokens;
  }
  int widest() const {
    int rows = 0;
    for (const Piece& piece : pieces_) rows = std::max(rows, piece.rows);
    return rows;
  }
  size_t first_row(size_t sequence) const {
    size_t row = 0;
    for (size_t before = 0; before < sequence; ++before)
      row += static_cast<size_t>(pieces_[before].rows);
    return row;
  }

  void run_launch(ops::Ops& backend, ops::Role role, const std::vector<Piece>& part,
                  const std::vector<size_t>& sequences, int done, int64_t max_context,
                  BlockLists& lists) {
    std::vector<ops::RowSpan> spans;
    std::vector<float> queries;
    std::vector<size_t> rows;
    for (size_t at = 0; at < part.size(); ++at) {
      Sequence& sequence = world_.sequences()[sequences[at]];
      spans.push_back({.row_begin = static_cast<int>(rows.size()),
                       .num_rows = part[at].rows,
                       .position = part[at].position,
                       .slot = sequence.slot.data(),
                       .pages = sequence.pages.data()});
      for (int inner = 0; inner < part[at].rows; ++inner) {
        const size_t row = first_row(sequences[at]) + static_cast<size_t>(done + inner);
        const auto query = queries_.begin() + static_cast<ptrdiff_t>(row * kQuery);
        queries.insert(queries.end(), query, query + kQuery);
        rows.push_back(row);
      }
    }
    std::vector<int32_t> blocks(rows.size() * kBudget, -1), counts(rows.size(), -1);
    backend.qsa_select({.shape = kIndexOnly,
                        .cache = world_.cache(),
                        .index_q = queries.data(),
                        .budget_blocks = kBudget,
                        .batch = {spans, static_cast<int>(rows.size()), role},
                        .blocks = blocks.data(),
                        .counts = counts.data(),
                        .max_context = max_context});
    for (size_t at = 0; at < rows.size(); ++at) {
      const auto first = blocks.begin() + static_cast<ptrdiff_t>(at * kBudget);
      ASSERT_GE(counts[at], 0);
      ASSERT_LE(counts[at], kBudget);
      lists[rows[at]].assign(first, first + counts[at]);
    }
  }

  std::vector<Piece> pieces_;
  QsaWorld world_;
  std::vector<float> queries_{};
};

class QsaSelectCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = cuda::why_unusable(cuda::Options{}.device);
    if (!reason.empty()) GTEST_SKIP() << reason;
    ops_ = make_staged_ops(cuda::make_ops({}));
  }

  /// Small integers: every score is exact in FP32, and ties are common.
  Draw integers() {
    return [this] { return static_cast<float>(random_.below(7) - 3); };
  }
  Draw normals() {
    return [this] { return as_bf16(random_.normal()); };
  }

  std::unique_ptr<ops::Ops> ops_{};
  Random random_{92};
};

/// Wrong blocks are counted before the lists are compared: a bare mismatch would say little.
void expect_lists(const BlockLists& got, const BlockLists& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t row = 0; row < want.size(); ++row) {
    std::vector<int32_t> wrong;
    std::set_difference(got[row].begin(), got[row].end(), want[row].begin(), want[row].end(),
                        std::back_inserter(wrong));
    ASSERT_TRUE(wrong.empty()) << wrong.size() << " wrong blocks in row " << row << ", first "
                               << wrong.front();
    ASSERT_EQ(got[row], want[row]) << "row " << row;
  }
}

TEST_F(QsaSelectCudaTest, DecodeSetsAreExactAtAnyLength) {
  SelectCase data({{65534, 4}, {2040, 6}, {kLongest - 6, 6}, {9001, 1}, {3000, 70}, {120, 2}},
                  integers());
  const BlockLists want = data.run(*cpu::make_fast_ops(), ops::Role::kDecode);
  expect_lists(data.run(*ops_, ops::Role::kDecode), want);
  expect_lists(data.run(*ops_, ops::Role::kDecode, kLongest), want);
  expect_lists(data.run(*ops_, ops::Role::kDecode, 6, false), want);
}

TEST_F(QsaSelectCudaTest, PromptSetsAreExactAtAnyLength) {
  SelectCase data({{sized(60000, 9000), sized(200, 70)},
                   {2000, sized(130, 70)},
                   {5, 3},
                   {kLongest - 65, 65},
                   {8190, 1}},
                  integers());
  const BlockLists want = data.run(*cpu::make_fast_ops(), ops::Role::kPrefill);
  expect_lists(data.run(*ops_, ops::Role::kPrefill), want);
  expect_lists(data.run(*ops_, ops::Role::kPrefill, 50, false), want);
}

/// Enough rows at this length for several passes of bounded memory.
TEST_F(QsaSelectCudaTest, PromptPassesAreSeamless) {
  if (reduced()) GTEST_SKIP() << "reduced run: needs 600 rows at the longest context";
  SelectCase data({{kLongest - 600, 600}}, integers());
  expect_lists(data.run(*ops_, ops::Role::kPrefill),
               data.run(*cpu::make_fast_ops(), ops::Role::kPrefill));
}

/// Twelve groups of rows share the warps: each of them walks more pages than it has lanes for ids.
TEST_F(QsaSelectCudaTest, LongRunsOfPagesAreSeamless) {
  SelectCase data({{kLongest - 70, 70}}, integers());
  expect_lists(data.run(*ops_, ops::Role::kDecode),
               data.run(*cpu::make_fast_ops(), ops::Role::kDecode));
}

/// The best block of all completes within the launch: the rows before it share its group and its
/// page but do not see it. Lengths end at every place of a group, with a few and with many groups.
TEST_F(QsaSelectCudaTest, UnseenBlocksOfAGroupAreNotTaken) {
  std::vector<Piece> pieces;
  for (const int64_t blocks : {513, 527, 528, 529, 8191, 8192, 8193, 9007, 9008, 20480})
    pieces.push_back({blocks * kIndexOnly.block - 4, 6});
  SelectCase data(pieces, integers());
  const std::vector<float> best(kDim, 3.0F);
  for (size_t sequence = 0; sequence < pieces.size(); ++sequence)
    data.world().write(data.world().index_key_at(sequence, (pieces[sequence].position + 4) / 4 - 1),
                       best);
  std::transform(data.queries().begin(), data.queries().end(), data.queries().begin(),
                 [](float value) { return std::abs(value); });
  for (const ops::Role role : kRoles)
    expect_lists(data.run(*ops_, role), data.run(*cpu::make_fast_ops(), role));
}

TEST_F(QsaSelectCudaTest, EqualScoresGoToTheLowestBlocks) {
  std::vector<int32_t> lowest(kBudget);
  std::iota(lowest.begin(), lowest.end(), 0);
  SelectCase data({{4000, 2}, {40000, 1}, {kLongest - 1, 1}}, [] { return 1.0F; });
  for (const ops::Role role : kRoles) expect_lists(data.run(*ops_, role), BlockLists(4, lowest));
  std::fill(data.queries().begin(), data.queries().end(), -1.0F);  // all scores are zero
  for (const ops::Role role : kRoles) expect_lists(data.run(*ops_, role), BlockLists(4, lowest));
}

TEST_F(QsaSelectCudaTest, MoreBlocksThanTheFastChoiceHolds) {
  SelectCase data({{280000, 3}, {5000, 2}}, integers());
  for (const ops::Role role : kRoles)
    expect_lists(data.run(*ops_, role), data.run(*cpu::make_fast_ops(), role));
}

/// Scores in [1, 1.245) at full FP32 precision: half of them share the first digits of the key at
/// the cut. A key holds its score as a sum of three BF16 values.
TEST_F(QsaSelectCudaTest, CrowdedScoresAreToldApartToTheLastBit) {
  const int kBlocks = static_cast<int>(kLongest) / kIndexOnly.block;
  constexpr size_t kParts = 3;
  SelectCase data({{kLongest - 1, 1}}, [] { return 0.0F; });
  std::vector<float> scores, key(kDim, 0.0F);
  for (int block = 0; block < kBlocks; ++block) {
    scores.push_back(random_.uniform(1, 1.245));
    float rest = scores.back();
    for (size_t part = 0; part < kParts; ++part) {
      key[part] = as_bf16(rest);
      rest -= key[part];
    }
    data.world().write(data.world().index_key_at(0, block), key);
  }
  std::fill_n(data.queries().begin(), kParts, 1.0F);
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t left, int32_t right) {
    return scores[static_cast<size_t>(left)] > scores[static_cast<size_t>(right)];
  });
  order.resize(kBudget);
  std::sort(order.begin(), order.end());
  for (const ops::Role role : kRoles) expect_lists(data.run(*ops_, role), {order});
}

TEST_F(QsaSelectCudaTest, ADecodeRowHasTheSameListInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  SelectCase data({{30000, 6}, {2100, 6}, {9999, 5}, {70, 3}}, normals());
  const BlockLists alone = data.run(*ops_, ops::Role::kDecode, 1, false);
  for (int chunk = 1; chunk <= kMaxDecodeRows; ++chunk)
    for (const bool together : {false, true})
      expect_lists(data.run(*ops_, ops::Role::kDecode, chunk, together), alone);
}

TEST_F(QsaSelectCudaTest, TwoRunsAgree) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  SelectCase data({{30000, 130}, {2100, 70}}, normals());
  for (const ops::Role role : kRoles) {
    const BlockLists first = data.run(*ops_, role);
    expect_lists(data.run(*ops_, role), first);
  }
}

class QsaSelectLateTest : public CudaTest {};

TEST_F(QsaSelectLateTest, WaitsForItsInputs) {
  for (const ops::Role role : kRoles) {
    bench::Rows rows(world(), {.sequences = 3, .rows_each = 4, .position = 5000, .role = role});
    const ops::QsaCache cache =
        bench::qsa_cache(world(), kIndexOnly, DType::kBF16, rows.num_pages());
    const auto count = static_cast<size_t>(rows.num_rows());
    void* queries = world().bf16(count * kQuery);
    auto* blocks = reinterpret_cast<int32_t*>(world().bytes(count * kBudget * sizeof(int32_t)));
    auto* counts = reinterpret_cast<int32_t*>(world().bytes(count * sizeof(int32_t)));
    rows.begin();
    const auto select = [&] {
      cuda::launch_qsa_select(context(), {.shape = kIndexOnly,
                                          .cache = cache,
                                          .index_q = queries,
                                          .budget_blocks = kBudget,
                                          .batch = rows.batch(),
                                          .blocks = blocks,
                                          .counts = counts,
                                          .max_context = kLongest});
    };
    select();
    const auto want = read(blocks, count * kBudget);
    DelayedProducer producer(context());
    producer.late(queries, count * kQuery * sizeof(uint16_t));
    producer.late(cache.index_keys.pool,
                  static_cast<size_t>(rows.num_pages()) * cache.index_keys.page_stride);
    producer.untouched(blocks, count * kBudget * sizeof(int32_t));
    producer.untouched(counts, count * sizeof(int32_t));
    EXPECT_TRUE(producer.run(select)) << role_name(role);
    EXPECT_EQ(read(blocks, count * kBudget), want) << role_name(role);
    EXPECT_EQ(read(counts, count), std::vector<int32_t>(count, kBudget));
  }
}

}  // namespace
}  // namespace tessera::test
