// SPDX-License-Identifier: Apache-2.0
// QSA front at the released sizes: the fast kernel against the generic one, which the op suite
// judges, for both cache types, launches longer than the ring, and late inputs.
#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"
#include "cuda/qsa_front/qsa_front_plan.h"

namespace tessera::test {
namespace {

using bench::kQsa;

constexpr size_t kPositionBytes = 3 * sizeof(int32_t);
constexpr size_t kAligned = 256, kMisaligned = 260;  // ring offsets: the second suits floats only
constexpr size_t kSlotBytes = 16384;
constexpr int kMaxPosition = 262144;

struct FrontRun {
  bench::RowsSpec rows;
  DType dtype = DType::kBF16;
};

/// Everything a front launch left behind.
struct Left {
  std::vector<float> q{}, index_q{};
  std::vector<uint8_t> keys{}, values{}, index_keys{}, rings{};
};

class QsaFrontCudaTest : public CudaTest {
 protected:
  void prepare(const FrontRun& run) {
    bench::RowsSpec spec = run.rows;
    spec.slot_bytes = kSlotBytes;
    rows_ = std::make_unique<bench::Rows>(world(), spec);
    const auto count = static_cast<size_t>(rows_->num_rows());
    const auto head = static_cast<size_t>(kQsa.head_dim);
    const auto index = static_cast<size_t>(kQsa.index_dim);
    queries_ = count * static_cast<size_t>(kQsa.heads) * head;
    kvs_ = count * static_cast<size_t>(kQsa.kv_heads) * head;
    index_queries_ = count * static_cast<size_t>(kQsa.index_heads) * index;
    cache_ = bench::qsa_cache(world(), kQsa, run.dtype, rows_->num_pages(), kAligned);
    args_ = {.shape = kQsa,
             .rope = {.inv_freq = world().floats(32, 0.1, 0.3), .axis = axes()},
             .cache = cache_,
             .q_gate = world().bf16(2 * queries_),
             .k = world().bf16(kvs_),
             .v = world().bf16(kvs_),
             .index_qk = world().bf16(index_queries_ + count * index),
             .positions = positions(count * 3),
             .q_norm = world().floats(head, 0.3),
             .k_norm = world().floats(head, 0.3),
             .index_q_norm = world().floats(index, 0.3),
             .index_k_norm = world().floats(index, 0.3),
             .eps = kEps,
             .batch = rows_->batch(),
             .q = world().bytes(queries_ * sizeof(uint16_t)),
             .index_q = world().bytes(index_queries_ * sizeof(uint16_t))};
    pool_bytes_ = cache_.keys.page_stride * static_cast<size_t>(rows_->num_pages());
    const auto ring_slots = static_cast<size_t>(cache_.raw_keys.slots);
    for (size_t sequence = 0; sequence < args_.batch.spans.size(); ++sequence) {
      raw_.push_back(random_.normals(ring_slots * index));
      ring_positions_.emplace_back();
      for (size_t at = 0; at < 3 * ring_slots; ++at)
        ring_positions_.back().push_back(random_.below(kMaxPosition));
    }
    rows_->begin();
  }

  const int32_t* axes() {
    std::vector<int32_t> axes;
    for (int frequency = 0; frequency < kQsa.rotary_dim / 2; ++frequency)
      axes.push_back(frequency % 3);
    return world().copy(axes);
  }
  const int32_t* positions(size_t count) {
    std::vector<int32_t> values(count);
    for (int32_t& value : values) value = random_.below(kMaxPosition);
    return world().copy(values);
  }

  /// Poisoned pages, and rings of known content from `ring_offset` on.
  void reset(size_t ring_offset) {
    const std::vector<uint8_t> poison(std::max(pool_bytes_, kSlotBytes), 0xFF);
    world().copy_in(cache_.keys.pool, poison.data(), pool_bytes_);
    args_.cache.raw_keys.offset = ring_offset;
    args_.cache.positions.offset = ring_offset + cache_.positions.offset - kAligned;
    for (size_t sequence = 0; sequence < raw_.size(); ++sequence) {
      std::byte* slot = args_.batch.spans[sequence].slot;
      world().copy_in(slot, poison.data(), kSlotBytes);
      std::vector<uint16_t> raw;
      for (const float value : raw_[sequence]) raw.push_back(float_to_bf16(value));
      world().copy_in(slot + ring_offset, raw.data(), raw.size() * sizeof(uint16_t));
      world().copy_in(slot + args_.cache.positions.offset, ring_positions_[sequence].data(),
                      ring_positions_[sequence].size() * sizeof(int32_t));
    }
  }

  void drop_queries() {
    args_.q_gate = args_.q = args_.index_q = nullptr, queries_ = index_queries_ = 0;
  }

  Left left() {
    Left left{.q = read_bf16(args_.q, queries_),
              .index_q = read_bf16(args_.index_q, index_queries_)};
    const auto pool = read(reinterpret_cast<const uint8_t*>(cache_.keys.pool), pool_bytes_);
    const auto cut = [&](const ops::PageRef& part, size_t end, std::vector<uint8_t>& out) {
      for (size_t page = 0; page < pool.size(); page += part.page_stride)
        out.insert(out.end(), pool.begin() + static_cast<ptrdiff_t>(page + part.offset),
                   pool.begin() + static_cast<ptrdiff_t>(page + end));
    };
    cut(cache_.keys, cache_.values.offset, left.keys);
    cut(cache_.values, cache_.index_keys.offset, left.values);
    cut(cache_.index_keys, cache_.keys.page_stride, left.index_keys);
    for (const ops::RowSpan& span : args_.batch.spans) {
      const std::byte* rings = span.slot + args_.cache.raw_keys.offset;
      const size_t bytes = cache_.positions.offset - kAligned +
                           static_cast<size_t>(cache_.positions.slots) * kPositionBytes;
      const auto read_rings = read(reinterpret_cast<const uint8_t*>(rings), bytes);
      left.rings.insert(left.rings.end(), read_rings.begin(), read_rings.end());
    }
    return left;
  }

  Left run(size_t ring_offset) {
    reset(ring_offset);
    cuda::launch_qsa_front(context(), args_);
    synchronize();
    return left();
  }

  std::unique_ptr<bench::Rows> rows_{};
  ops::QsaCache cache_{};
  ops::QsaFrontArgs args_{};
  std::vector<std::vector<float>> raw_{};
  std::vector<std::vector<int32_t>> ring_positions_{};
  size_t queries_ = 0, kvs_ = 0, index_queries_ = 0, pool_bytes_ = 0;
  Random random_{93};
};

/// Stored numbers as floats; what nobody wrote is NaN in both types and reads as 0 here.
std::vector<float> numbers(const std::vector<uint8_t>& stored, DType dtype) {
  std::vector<float> values;
  if (dtype == DType::kF8E4M3) {
    for (const uint8_t code : stored) values.push_back(f8e4m3_to_float(code));
  } else {
    for (size_t at = 0; at < stored.size(); at += sizeof(uint16_t))
      values.push_back(
          bf16_to_float(static_cast<uint16_t>(stored[at] | unsigned{stored[at + 1]} << 8)));
  }
  for (float& value : values) value = std::isnan(value) ? 0 : value;
  return values;
}

constexpr int kRowsEach[] = {1, 4, 6, 40};
constexpr DType kStored[] = {DType::kBF16, DType::kF8E4M3};

TEST_F(QsaFrontCudaTest, FastAgreesWithGeneric) {
  constexpr double kBf16 = 0x1p-7, kF8 = 0x1p-3;  // a unit in the last place: ties round either way
  for (const ops::Role role : kRoles)
    for (const int rows : kRowsEach)
      for (const int64_t position : {int64_t{0}, int64_t{6}, int64_t{63}})
        for (const DType dtype : kStored) {
          SCOPED_TRACE(testing::Message() << role_name(role) << " " << rows << " rows at "
                                          << position << " " << dtype_name(dtype));
          raw_.clear(), ring_positions_.clear();
          prepare({{.sequences = 3, .rows_each = rows, .position = position, .role = role}, dtype});
          ASSERT_TRUE(cuda::supports_fast_front(kQsa, args_.cache).empty());
          const Left fast = run(kAligned);
          const Left generic = run(kMisaligned);
          ASSERT_FALSE(cuda::supports_fast_front(kQsa, args_.cache).empty());
          EXPECT_TRUE(close(fast.q, generic.q, kBf16));
          EXPECT_TRUE(close(fast.index_q, generic.index_q, kBf16));
          EXPECT_TRUE(close(numbers(fast.keys, dtype), numbers(generic.keys, dtype),
                            dtype == DType::kBF16 ? kBf16 : kF8));
          EXPECT_TRUE(close(numbers(fast.index_keys, DType::kBF16),
                            numbers(generic.index_keys, DType::kBF16), kBf16));
          EXPECT_EQ(fast.values, generic.values);
          EXPECT_EQ(fast.rings, generic.rings);
          const Left again = run(kAligned);
          EXPECT_TRUE(same_bits(again.q, fast.q));
          EXPECT_EQ(again.keys, fast.keys);
          EXPECT_EQ(again.index_keys, fast.index_keys);
          EXPECT_EQ(again.rings, fast.rings);
          world().clear();
        }
}

/// A value lands on the nearest E4M3 code; beyond the range, on the largest.
TEST_F(QsaFrontCudaTest, ValuesAreRoundedToTheNearestCode) {
  constexpr float kLargest = 448;
  prepare({{.sequences = 1, .rows_each = 5, .position = 0}, DType::kF8E4M3});
  auto want = random_.normals(kvs_, 100);
  for (size_t at = 0; at < want.size(); at += 3) want[at] *= 1e-4F;
  args_.v = upload_bf16(want);
  const Left got = run(kAligned);
  const auto stored = numbers(got.values, DType::kF8E4M3);
  const auto head = static_cast<size_t>(kQsa.head_dim);
  const auto kv_heads = static_cast<size_t>(kQsa.kv_heads);
  for (size_t at = 0; at < want.size(); ++at) {
    const size_t token = at / head / kv_heads, kv_head = at / head % kv_heads;
    const float code = stored[(kv_head * ops::kPageTokens + token) * head + at % head];
    const float exact = as_bf16(want[at]);
    const float nearest = std::clamp(exact, -kLargest, kLargest);
    const float half_unit = std::max(std::abs(nearest) * 0x1p-4F, 0x1p-10F);
    ASSERT_LE(std::abs(code - nearest), half_unit) << "value " << exact;
  }
}

/// Rows that only fill caches leave what rows with queries leave there.
TEST_F(QsaFrontCudaTest, CachesDoNotDependOnQueries) {
  for (const ops::Role role : kRoles)
    for (const int rows : kRowsEach)
      for (const DType dtype : kStored)
        for (const size_t ring_offset : {kAligned, kMisaligned}) {
          SCOPED_TRACE(testing::Message() << role_name(role) << " " << rows << " rows, "
                                          << dtype_name(dtype) << " ring at " << ring_offset);
          raw_.clear(), ring_positions_.clear();
          prepare({{.sequences = 3, .rows_each = rows, .position = 62, .role = role}, dtype});
          const Left with = run(ring_offset);
          drop_queries();
          const Left without = run(ring_offset);
          EXPECT_EQ(without.keys, with.keys);
          EXPECT_EQ(without.values, with.values);
          EXPECT_EQ(without.index_keys, with.index_keys);
          EXPECT_EQ(without.rings, with.rings);
          world().clear();
        }
}

TEST_F(QsaFrontCudaTest, RowsWithoutQueriesWaitForTheirInputs) {
  for (const ops::Role role : kRoles) {
    raw_.clear(), ring_positions_.clear();
    prepare({{.sequences = 3, .rows_each = 6, .position = 7, .role = role}});
    const size_t index_count = index_queries_ / 4 * 5;
    drop_queries();
    const Left want = run(kAligned);
    reset(kAligned);
    DelayedProducer producer(context());
    producer.late(const_cast<void*>(args_.k), kvs_ * sizeof(uint16_t));
    producer.late(const_cast<void*>(args_.v), kvs_ * sizeof(uint16_t));
    producer.late(const_cast<void*>(args_.index_qk), index_count * sizeof(uint16_t));
    for (const ops::RowSpan& span : args_.batch.spans) producer.late(span.slot, kSlotBytes);
    producer.untouched(cache_.keys.pool, pool_bytes_);
    EXPECT_TRUE(producer.run([&] { cuda::launch_qsa_front(context(), args_); }));
    const Left got = left();
    EXPECT_EQ(got.keys, want.keys);
    EXPECT_EQ(got.values, want.values);
    EXPECT_EQ(got.index_keys, want.index_keys);
    EXPECT_EQ(got.rings, want.rings);
    world().clear();
  }
}

TEST_F(QsaFrontCudaTest, WaitsForItsInputs) {
  for (const ops::Role role : kRoles) {
    raw_.clear(), ring_positions_.clear();
    prepare({{.sequences = 3, .rows_each = 6, .position = 7, .role = role}});
    const Left want = run(kAligned);
    reset(kAligned);
    DelayedProducer producer(context());
    const auto late = [&](const void* data, size_t count) {
      producer.late(const_cast<void*>(data), count * sizeof(uint16_t));
    };
    late(args_.q_gate, 2 * queries_);
    late(args_.k, kvs_);
    late(args_.v, kvs_);
    late(args_.index_qk, index_queries_ / 4 * 5);
    for (const ops::RowSpan& span : args_.batch.spans) producer.late(span.slot, kSlotBytes);
    producer.untouched(args_.q, queries_ * sizeof(uint16_t));
    producer.untouched(args_.index_q, index_queries_ * sizeof(uint16_t));
    producer.untouched(cache_.keys.pool, pool_bytes_);
    EXPECT_TRUE(producer.run([&] { cuda::launch_qsa_front(context(), args_); }));
    const Left got = left();
    EXPECT_TRUE(same_bits(got.q, want.q));
    EXPECT_TRUE(same_bits(got.index_q, want.index_q));
    EXPECT_EQ(got.keys, want.keys);
    EXPECT_EQ(got.values, want.values);
    EXPECT_EQ(got.index_keys, want.index_keys);
    EXPECT_EQ(got.rings, want.rings);
    world().clear();
  }
}

}  // namespace
}  // namespace tessera::test
