// SPDX-License-Identifier: Apache-2.0
// The n-gram memory at the released sizes: decode and prompt kernels against the CPU reference and
// each other, equal bits of a row in every launch, addresses and table rows exactly, late inputs.
#include <algorithm>

#include "cpu/cpu_ops.h"
#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"
#include "cuda/ple/ple_plan.h"

namespace tessera::test {
namespace {

using bench::kBranches;
using bench::kHidden;

using Bytes = std::vector<uint8_t>;

constexpr int kTaps = 4, kDilation = 3;
constexpr int kReach = (kTaps - 1) * kDilation;
constexpr size_t kWide = size_t{kBranches} * kHidden;
constexpr size_t kWideBytes = kWide * sizeof(uint16_t);
constexpr double kRounding = 0x1p-8;
constexpr double kRoundings = 4;  // gated value, conv input, delta, branches

/// What a launch left behind.
struct Left {
  Bytes wide, delta, ring;
  bool operator==(const Left&) const = default;
};

/// Rows first .. first + rows of one sequence.
struct Piece {
  int sequence;
  int first;
  int rows;
};

class PleCudaTest : public CudaTest {
 protected:
  /// Sequences of `rows_each` rows, rings filled with what came before.
  void prepare(int sequences, int rows_each, int64_t position) {
    world().clear();
    ring_ = bench::make_ring(0, kWideBytes, kReach);
    slot_bytes_ = ring_.entry_bytes * static_cast<size_t>(ring_.slots);
    rows_ = std::make_unique<bench::Rows>(world(), bench::RowsSpec{.sequences = sequences,
                                                                   .rows_each = rows_each,
                                                                   .position = position,
                                                                   .slot_bytes = slot_bytes_});
    count_ = static_cast<size_t>(rows_->num_rows());
    args_ = {.key = world().bf16(count_ * kWide, 2),
             .value = world().bf16(count_ * kHidden),
             .norm_key = world().floats(kWide, 0.3),
             .norm_query = world().floats(kWide, 0.3),
             .norm_conv = world().floats(kWide, 0.3),
             .conv_weight = world().floats(kWide * kTaps, 0.5),
             .wide = world().bf16(count_ * kWide),
             .delta = world().bytes(count_ * kWideBytes),
             .batch = rows_->batch(),
             .conv_ring = ring_,
             .branches = kBranches,
             .hidden = kHidden,
             .conv_kernel = kTaps,
             .dilation = kDilation,
             .eps = kEps};
    slots_ = rows_->batch().spans.front().slot;
    wide_before_ = read_bytes(args_.wide, count_ * kWideBytes);
    ring_before_ = read_bytes(slots_, slot_bytes_ * static_cast<size_t>(sequences));
  }

  Bytes read_bytes(const void* device, size_t bytes) {
    return read(static_cast<const uint8_t*>(device), bytes);
  }
  void restore() {
    world().copy_in(args_.wide, wide_before_.data(), wide_before_.size());
    world().copy_in(slots_, ring_before_.data(), ring_before_.size());
  }
  Left left() {
    return {read_bytes(args_.wide, wide_before_.size()),
            read_bytes(args_.delta, wide_before_.size()), read_bytes(slots_, ring_before_.size())};
  }

  /// One launch over neighbouring rows, a span per piece.
  void launch(const std::vector<Piece>& pieces, ops::Role role) {
    const auto spans = rows_->batch().spans;
    const Piece& front = pieces.front();
    const int first = spans[static_cast<size_t>(front.sequence)].row_begin + front.first;
    std::vector<ops::RowSpan> own;
    int rows = 0;
    for (const Piece& piece : pieces) {
      ops::RowSpan span = spans[static_cast<size_t>(piece.sequence)];
      span.row_begin = rows;
      span.num_rows = piece.rows;
      span.position += piece.first;
      own.push_back(span);
      rows += piece.rows;
    }
    const auto skipped = static_cast<size_t>(first) * kWideBytes;
    const auto shift = [](const void* data, size_t bytes) {
      return const_cast<std::byte*>(static_cast<const std::byte*>(data)) + bytes;
    };
    ops::PleMixArgs args = args_;
    args.key = shift(args_.key, skipped);
    args.value = shift(args_.value, skipped / kBranches);
    args.wide = shift(args_.wide, skipped);
    args.delta = shift(args_.delta, skipped);
    args.batch = {own, rows, role};
    world().ops().begin({.batch = args.batch});
    cuda::launch_ple_mix(context(), args);
    synchronize();  // `own` goes away
  }
  Left run(const std::vector<std::vector<Piece>>& schedule, ops::Role role) {
    restore();
    for (const std::vector<Piece>& pieces : schedule) launch(pieces, role);
    return left();
  }
  std::vector<Piece> everything() const {
    std::vector<Piece> pieces;
    for (const ops::RowSpan& span : rows_->batch().spans)
      pieces.push_back({static_cast<int>(pieces.size()), 0, span.num_rows});
    return pieces;
  }

  static std::vector<float> floats_of(const Bytes& bytes) {
    std::vector<float> values(bytes.size() / sizeof(uint16_t));
    for (size_t at = 0; at < values.size(); ++at)
      values[at] = bf16_to_float(
          static_cast<uint16_t>(bytes[2 * at] | static_cast<unsigned>(bytes[2 * at + 1]) << 8));
    return values;
  }

  /// The CPU reference over the same rows.
  void expect_reference(const Left& got) {
    std::vector<float> key = read_bf16(args_.key, count_ * kWide);
    std::vector<float> value = read_bf16(args_.value, count_ * kHidden);
    std::vector<float> wide = floats_of(wide_before_), delta(count_ * kWide);
    std::vector<float> ring = floats_of(ring_before_);
    const auto norm_key = read_floats(args_.norm_key, kWide);
    const auto norm_query = read_floats(args_.norm_query, kWide);
    const auto norm_conv = read_floats(args_.norm_conv, kWide);
    const auto conv = read_floats(args_.conv_weight, kWide * kTaps);
    std::vector<ops::RowSpan> spans(rows_->batch().spans.begin(), rows_->batch().spans.end());
    const size_t slot_floats = slot_bytes_ / sizeof(uint16_t);
    for (size_t index = 0; index < spans.size(); ++index)
      spans[index].slot = reinterpret_cast<std::byte*>(ring.data() + index * slot_floats);
    ops::PleMixArgs args = args_;
    args.key = key.data(), args.value = value.data();
    args.norm_key = norm_key.data(), args.norm_query = norm_query.data();
    args.norm_conv = norm_conv.data(), args.conv_weight = conv.data();
    args.wide = wide.data(), args.delta = delta.data();
    args.conv_ring.entry_bytes = kWide * sizeof(float);
    args.batch = {spans, static_cast<int>(count_), ops::Role::kDecode};
    cpu::make_reference_ops()->ple_mix(args);
    const double limit = kRoundings * kRounding + sum_tolerance(kHidden);
    for (size_t row = 0; row < count_; ++row) {
      const auto at = [row](std::span<const float> values) {
        return values.subspan(row * kWide, kWide);
      };
      ASSERT_TRUE(close(at(floats_of(got.wide)), at(wide), limit, 1)) << "row " << row;
      ASSERT_TRUE(close(at(floats_of(got.delta)), at(delta), limit, 1)) << "row " << row;
    }
    ASSERT_TRUE(close(floats_of(got.ring), ring, limit, 1));
  }

  ops::RingRef ring_;
  size_t slot_bytes_ = 0, count_ = 0;
  std::unique_ptr<bench::Rows> rows_;
  ops::PleMixArgs args_;
  std::byte* slots_ = nullptr;
  Bytes wide_before_, ring_before_;
};

TEST_F(PleCudaTest, DecodeMatchesTheReference) {
  for (const int64_t position : {int64_t{0}, int64_t{2}, int64_t{7}, int64_t{100003}})
    for (const int rows : {1, 2, 3, 4, 5, 6}) {
      SCOPED_TRACE(testing::Message() << rows << " rows at " << position);
      prepare(3, rows, position);
      const Left got = run({everything()}, ops::Role::kDecode);
      ASSERT_NO_FATAL_FAILURE(expect_reference(got));
    }
}

TEST_F(PleCudaTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  constexpr int kSequences = 5, kRows = 6;
  prepare(kSequences, kRows, 4099);
  const Left all = run({everything()}, ops::Role::kDecode);
  EXPECT_EQ(run({everything()}, ops::Role::kDecode), all) << "two runs differ";
  for (const int chunk : {1, 2, 3, 4, 5}) {
    std::vector<std::vector<Piece>> schedule;
    for (int sequence = 0; sequence < kSequences; ++sequence)
      for (int first = 0; first < kRows; first += chunk)
        schedule.push_back({{sequence, first, std::min(chunk, kRows - first)}});
    EXPECT_EQ(run(schedule, ops::Role::kDecode), all) << "in launches of " << chunk;
  }
}

TEST_F(PleCudaTest, PromptMatchesTheReferenceAndDecode) {
  for (const int rows : {1, 5, 70}) {
    SCOPED_TRACE(rows);
    prepare(2, rows, 640);
    const Left prompt = run({everything()}, ops::Role::kPrefill);
    ASSERT_NO_FATAL_FAILURE(expect_reference(prompt));
    if (rows > bench::make_ring(0, 1, kReach).slots - kReach) continue;
    const Left decode = run({everything()}, ops::Role::kDecode);
    const double limit = kRoundings * kRounding;
    EXPECT_TRUE(close(floats_of(decode.wide), floats_of(prompt.wide), limit));
    EXPECT_TRUE(close(floats_of(decode.ring), floats_of(prompt.ring), limit));
  }
}

TEST_F(PleCudaTest, PromptRowHasTheSameBitsInEveryChunk) {
  constexpr int kRows = 200;
  prepare(1, kRows, 640);
  const Left all = run({everything()}, ops::Role::kPrefill);
  EXPECT_EQ(run({everything()}, ops::Role::kPrefill), all) << "two runs differ";
  for (const std::vector<int>& cuts : {std::vector{64, 64, 72}, {128, 1, 1, 70}, {7, 193}}) {
    std::vector<std::vector<Piece>> schedule;
    int first = 0;
    for (const int rows : cuts) {
      schedule.push_back({{0, first, rows}});
      first += rows;
    }
    EXPECT_EQ(run(schedule, ops::Role::kPrefill), all) << cuts.front();
  }
}

/// An output off alignment goes element by element.
TEST_F(PleCudaTest, ElementKernelsAgree) {
  for (const int rows : {1, 6, 40}) {
    SCOPED_TRACE(rows);
    prepare(2, rows, 77);
    const Left vectors = run({everything()}, ops::Role::kPrefill);
    void* aligned = args_.delta;
    args_.delta = world().bytes((count_ + 1) * kWideBytes) + sizeof(uint16_t);
    ASSERT_FALSE(cuda::supports_ple_vectors(args_).empty());
    const Left elements = run({everything()}, ops::Role::kPrefill);
    args_.delta = aligned;
    const double limit = kRoundings * kRounding;
    EXPECT_TRUE(close(floats_of(elements.wide), floats_of(vectors.wide), limit));
    EXPECT_TRUE(close(floats_of(elements.delta), floats_of(vectors.delta), limit));
    EXPECT_TRUE(close(floats_of(elements.ring), floats_of(vectors.ring), limit));
  }
}

TEST_F(PleCudaTest, WaitsForItsInputs) {
  for (const ops::Role role : kRoles)
    for (const int rows : {1, 4}) {
      SCOPED_TRACE(testing::Message() << role_name(role) << rows);
      prepare(3, rows, 50);
      const Left want = run({everything()}, role);
      restore();
      ops::PleMixArgs args = args_;
      args.batch.role = role;
      world().ops().begin({.batch = args.batch});
      DelayedProducer producer(context());
      producer.late(const_cast<void*>(args.key), count_ * kWideBytes);
      producer.late(const_cast<void*>(args.value), count_ * kWideBytes / kBranches);
      producer.late(args.wide, count_ * kWideBytes);
      producer.late(slots_, ring_before_.size());
      producer.untouched(args.delta, count_ * kWideBytes);
      EXPECT_TRUE(producer.run([&] { cuda::launch_ple_mix(context(), args); }));
      EXPECT_EQ(left(), want);
    }
}

/// Sixteen heads, bigrams and trigrams, primes around 20 million as released.
NgramHash released_hash(Random& random) {
  constexpr int kHeads = 16;
  constexpr int64_t kBase = 20'000'000;
  const auto is_prime = [](int64_t value) {
    for (int64_t divisor = 2; divisor * divisor <= value; ++divisor)
      if (value % divisor == 0) return false;
    return true;
  };
  NgramHash hash{.ngram_size = 3, .heads_per_ngram = 8, .eos = 17};
  for (int lag = 0; lag < hash.ngram_size; ++lag)
    hash.multipliers.push_back(2 * static_cast<int64_t>(random.unit() * 0x1p44) + 1);
  for (int64_t candidate = kBase; hash.heads() < kHeads; ++candidate) {
    if (!is_prime(candidate)) continue;
    hash.primes.push_back(candidate);
    hash.offsets.push_back(hash.num_rows);
    hash.num_rows += candidate;
  }
  return hash;
}

TEST_F(PleCudaTest, AddressesAreTheDefinitions) {
  Random random(81);
  NgramHash hash = released_hash(random);
  std::vector<int64_t> constants = hash.multipliers;
  constants.insert(constants.end(), hash.primes.begin(), hash.primes.end());
  constants.insert(constants.end(), hash.offsets.begin(), hash.offsets.end());
  hash.device_constants = world().copy(constants);
  constexpr int kSequences = 7, kRowsEach = 6;
  const auto heads = static_cast<size_t>(hash.heads());
  const ops::RingRef ring = bench::make_ring(0, sizeof(int64_t), hash.ngram_size - 1);
  const size_t ring_bytes = ring.entry_bytes * static_cast<size_t>(ring.slots);
  for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{100001}}) {
    SCOPED_TRACE(position);
    bench::Rows rows(world(), {.sequences = kSequences,
                               .rows_each = kRowsEach,
                               .position = position,
                               .slot_bytes = ring_bytes});
    std::vector<int32_t> ids;
    std::vector<int64_t> want;
    for (const ops::RowSpan& span : rows.batch().spans) {
      std::vector<int64_t> entries(static_cast<size_t>(ring.slots), -1);
      std::vector<int32_t> text;
      const int64_t known = std::min<int64_t>(position, hash.ngram_size - 1);
      for (int64_t token = 0; token < known + kRowsEach; ++token)
        text.push_back(random.below(4) == 0 ? hash.eos : random.below(248320));
      for (int64_t token = 0; token < known; ++token)
        entries[static_cast<size_t>((position - known + token) % ring.slots)] =
            text[static_cast<size_t>(token)];
      world().copy_in(span.slot, entries.data(), ring_bytes);
      ids.insert(ids.end(), text.begin() + known, text.end());
      for (int row = 0; row < kRowsEach; ++row) {
        const auto end = static_cast<size_t>(known + row + 1);
        const size_t first = end - std::min(end, static_cast<size_t>(hash.ngram_size));
        want.resize(want.size() + heads);
        ngram_rows(hash, std::span(text).subspan(first, end - first),
                   want.data() + want.size() - heads);
      }
    }
    rows.begin();
    int32_t* device_ids = world().copy(ids);
    auto* table_rows = reinterpret_cast<int64_t*>(world().bytes(want.size() * sizeof(int64_t)));
    const ops::NgramIdsArgs args{.ids = device_ids,
                                 .batch = rows.batch(),
                                 .token_ring = ring,
                                 .hash = &hash,
                                 .table_rows = table_rows};
    DelayedProducer producer(context());
    producer.late(device_ids, ids.size() * sizeof(int32_t));
    producer.late(rows.batch().spans.front().slot, ring_bytes);
    producer.untouched(table_rows, want.size() * sizeof(int64_t));
    EXPECT_TRUE(producer.run([&] { cuda::launch_ngram_ids(context(), args); }));
    EXPECT_EQ(read(table_rows, want.size()), want);
  }
}

TEST_F(PleCudaTest, TableRowsArriveExactly) {
  Random random(82);
  constexpr int kTableRows = 5000, kHeads = 16, kRowDim = 160, kRows = 131;
  constexpr size_t kEntries = size_t{kRows} * kHeads;
  for (const DType dtype : kWeightTypes) {
    SCOPED_TRACE(dtype_name(dtype));
    std::byte* data = world().bytes(size_t{kTableRows} * kRowDim * dtype_bytes(dtype));
    world().fill(dtype, data, size_t{kTableRows} * kRowDim, 1);
    const ops::NgramTable table{.shards = {data},
                                .dtype = dtype,
                                .scale = 0.37F,
                                .rows_per_shard = kTableRows,
                                .num_rows = kTableRows,
                                .row_dim = kRowDim};
    // Read as a weight whose blocks all have the table's scale.
    const std::vector<float> scales(((kTableRows + 127) / 128) * ((kRowDim + 127) / 128),
                                    table.scale);
    const std::vector<float> values = read_weight({.data = data,
                                                   .dtype = dtype,
                                                   .scale = world().copy(scales),
                                                   .out_features = kTableRows,
                                                   .in_features = kRowDim});
    std::vector<int64_t> ids(kEntries);
    for (int64_t& id : ids) id = random.below(kTableRows);
    ids[0] = kTableRows - 1;
    int64_t* device_ids = world().copy(ids);
    void* out = world().bytes(kEntries * kRowDim * sizeof(uint16_t));
    const ops::NgramGatherArgs args{
        .table_rows = device_ids, .table = &table, .out = out, .rows = kRows, .heads = kHeads};
    ASSERT_TRUE(cuda::supports_gather_vectors(args).empty());
    DelayedProducer producer(context());
    producer.late(device_ids, ids.size() * sizeof(int64_t));
    producer.untouched(out, kEntries * kRowDim * sizeof(uint16_t));
    // Who reads too early finds row -1.
    EXPECT_TRUE(producer.run([&] { cuda::launch_ngram_gather(context(), args); }));
    const std::vector<float> got = read_bf16(out, kEntries * kRowDim);
    for (size_t at = 0; at < got.size(); ++at) {
      const size_t row = static_cast<size_t>(ids[at / kRowDim]);
      ASSERT_EQ(got[at], as_bf16(values[row * kRowDim + at % kRowDim])) << "element " << at;
    }
  }
}

}  // namespace
}  // namespace tessera::test
