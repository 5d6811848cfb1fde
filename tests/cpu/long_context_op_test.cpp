// SPDX-License-Identifier: Apache-2.0
// The end of a 262144-token context in a pool larger than 4 GiB: 64-bit offsets, 65537 blocks,
// large positions. Most pages are shared, so equal scores at the cut are the rule.
#include <sys/mman.h>

#include <array>

#include "cpu/cpu_ops.h"
#include "cpu/qsa_world.h"

namespace tessera::test {
namespace {

constexpr ops::QsaShape kShape = kSmallQsa;
constexpr int64_t kContext = 262144;
constexpr int64_t kFirst = kContext - 5;  // the launch crosses the end of a page
constexpr int kRows = 9;
constexpr int kSharedPages = 4;
constexpr int kPhysicalPages = kSharedPages + 2;  // the last two logical pages are their own
constexpr size_t kStride = size_t{1} << 30;
constexpr int kBudget = 512;

/// Address space for the pool; only the touched pages of it take memory.
class SparsePool {
 public:
  SparsePool()
      : base_(mmap(nullptr, kStride * kPhysicalPages, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparsePool() {
    if (valid()) munmap(base_, kStride * kPhysicalPages);
  }
  SparsePool(const SparsePool&) = delete;
  SparsePool& operator=(const SparsePool&) = delete;
  bool valid() const { return base_ != MAP_FAILED; }
  std::byte* data() const { return static_cast<std::byte*>(base_); }

 private:
  void* base_;
};

void fill(std::byte* at, std::span<const float> values) {
  std::memcpy(at, values.data(), values.size_bytes());
}

struct Result {
  std::vector<float> out;
  std::vector<int32_t> blocks, counts;
  std::vector<float> last_pages;
  std::vector<float> index_q;
};

class LongContext {
 public:
  explicit LongContext(std::byte* pool) : rope_(kShape.rotary_dim) {
    const size_t kv = kvs() * sizeof(float);
    cache_.keys = {pool, kStride, 0, DType::kF32};
    cache_.values = {pool, kStride, kv, DType::kF32};
    cache_.index_keys = {pool, kStride, 2 * kv, DType::kF32};
    cache_.raw_keys = make_ring(0, kShape.index_dim * sizeof(float), kShape.block - 1);
    cache_.positions =
        make_ring(cache_.raw_keys.entry_bytes * static_cast<size_t>(cache_.raw_keys.slots),
                  3 * sizeof(int32_t), kShape.block - 1);
    Random random(91);
    for (int page = 0; page < kPhysicalPages; ++page) {
      fill(cache_.keys.page(page), random.normals(kvs()));
      fill(cache_.values.page(page), random.normals(kvs()));
      fill(cache_.index_keys.page(page), random.normals(index_keys()));
    }
    for (int32_t page = 0; page <= kContext / ops::kPageTokens; ++page)
      pages_.push_back(page % kSharedPages);
    pages_[pages_.size() - 2] = kSharedPages;
    pages_.back() = kSharedPages + 1;
    fill_slot(random);
    q_gate_ = random.normals(kRows * 2 * queries());
    k_ = random.normals(kRows * kShape.kv_heads * kShape.head_dim);
    v_ = random.normals(k_.size());
    index_ = random.normals(kRows * (kShape.index_heads + 1) * kShape.index_dim);
    norm_ = random.normals(kShape.head_dim, 0.2);
    for (int32_t row = 0; row < kRows; ++row)
      positions_.insert(positions_.end(), 3, static_cast<int32_t>(kFirst) + row);
  }

  Result run(ops::Ops& backend, ops::Role role);
  /// Selection and attention by `judge` from the queries and pages that `run` left.
  Result judged(ops::Ops& judge, const Result& after);

 private:
  static constexpr size_t kvs() {
    return static_cast<size_t>(kShape.kv_heads) * ops::kPageTokens * kShape.head_dim;
  }
  static constexpr size_t index_keys() {
    return ops::kPageTokens / kShape.block * size_t{kShape.index_dim};
  }
  static constexpr size_t queries() { return size_t{kShape.heads} * kShape.head_dim; }
  void select_and_attend(ops::Ops& backend, const ops::RowBatch& batch, Result& result);

  void fill_slot(Random& random) {
    slot_.resize(cache_.positions.offset +
                 cache_.positions.entry_bytes * static_cast<size_t>(cache_.positions.slots));
    for (int64_t token = kFirst - (kShape.block - 1); token < kFirst; ++token) {
      fill(cache_.raw_keys.entry(slot_.data(), token), random.normals(kShape.index_dim));
      const std::array<int32_t, 3> position{
          static_cast<int32_t>(token), static_cast<int32_t>(token), static_cast<int32_t>(token)};
      std::memcpy(cache_.positions.entry(slot_.data(), token), position.data(), sizeof(position));
    }
  }

  Rope rope_;
  ops::QsaCache cache_{};
  std::vector<int32_t> pages_{}, positions_{};
  std::vector<std::byte> slot_{};
  std::vector<float> q_gate_{}, k_{}, v_{}, index_{}, norm_{}, q_{};
};

void LongContext::select_and_attend(ops::Ops& backend, const ops::RowBatch& batch, Result& result) {
  result.out.resize(q_.size());
  result.blocks.resize(kRows * kBudget);
  result.counts.resize(kRows);
  backend.qsa_select({.shape = kShape,
                      .cache = cache_,
                      .index_q = result.index_q.data(),
                      .budget_blocks = kBudget,
                      .batch = batch,
                      .blocks = result.blocks.data(),
                      .counts = result.counts.data()});
  backend.qsa_attend({.shape = kShape,
                      .cache = cache_,
                      .q = q_.data(),
                      .q_gate = q_gate_.data(),
                      .blocks = result.blocks.data(),
                      .counts = result.counts.data(),
                      .budget_blocks = kBudget,
                      .batch = batch,
                      .out = result.out.data()});
}

Result LongContext::judged(ops::Ops& judge, const Result& after) {
  const ops::RowSpan span{0, kRows, kFirst, slot_.data(), pages_.data()};
  Result result;
  result.index_q = after.index_q;
  select_and_attend(judge, {{&span, 1}, kRows, ops::Role::kDecode}, result);
  return result;
}

Result LongContext::run(ops::Ops& backend, ops::Role role) {
  const ops::RowSpan span{0, kRows, kFirst, slot_.data(), pages_.data()};
  const ops::RowBatch batch{{&span, 1}, kRows, role};
  Result result;
  q_.resize(kRows * queries());
  result.index_q.resize(kRows * size_t{kShape.index_heads} * kShape.index_dim);
  backend.qsa_front({.shape = kShape,
                     .rope = rope_.view(),
                     .cache = cache_,
                     .q_gate = q_gate_.data(),
                     .k = k_.data(),
                     .v = v_.data(),
                     .index_qk = index_.data(),
                     .positions = positions_.data(),
                     .q_norm = norm_.data(),
                     .k_norm = norm_.data(),
                     .index_q_norm = norm_.data(),
                     .index_k_norm = norm_.data(),
                     .eps = kEps,
                     .batch = batch,
                     .q = q_.data(),
                     .index_q = result.index_q.data()});
  select_and_attend(backend, batch, result);
  for (int page = kSharedPages; page < kPhysicalPages; ++page) {
    const auto* floats = reinterpret_cast<const float*>(cache_.keys.page(page));
    result.last_pages.insert(result.last_pages.end(), floats, floats + 2 * kvs() + index_keys());
  }
  return result;
}

class LongContextOpTest : public OpTest {};

TEST_P(LongContextOpTest, EndOfTheContextAgreesWithTheOracle) {
  constexpr double kTolerance = 1e-5;
  constexpr double kPageRoundings = 2, kRoundings = 4;
  const SparsePool oracle_pool, pool;
  if (!oracle_pool.valid() || !pool.valid())
    GTEST_SKIP() << "this machine gives no address space for a sparse pool";
  const Result want =
      LongContext(oracle_pool.data()).run(*cpu::make_reference_ops(), ops::Role::kDecode);
  for (const ops::Role role : kRoles) {
    LongContext data(pool.data());
    const Result got = data.run(*ops_, role);
    const Result judged = data.judged(*cpu::make_reference_ops(), got);
    EXPECT_EQ(got.counts, std::vector<int32_t>(kRows, kBudget));
    EXPECT_EQ(got.blocks, judged.blocks) << role_name(role);
    EXPECT_TRUE(close(got.out, judged.out, tolerance(kTolerance, kRoundings)));
    EXPECT_TRUE(close(got.last_pages, want.last_pages, tolerance(kTolerance, kPageRoundings)));
    if (rounding() > 0) continue;  // rounded queries and keys may swap blocks near the cut
    EXPECT_EQ(got.blocks, want.blocks) << role_name(role);
    EXPECT_TRUE(close(got.out, want.out, kTolerance));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, LongContextOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
