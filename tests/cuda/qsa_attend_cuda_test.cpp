// SPDX-License-Identifier: Apache-2.0
// The tensor-core attention kernels at the released head geometry: against the reference and the
// generic kernel, equal bits of a decode row in every launch, indifference to memory that holds no
// token, and patience with late inputs.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "cpu/cpu_ops.h"
#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"
#include "cuda/qsa_attend/qsa_attend.h"
#include "cuda/qsa_attend/qsa_attend_plan.h"

namespace tessera::test {
namespace {

constexpr ops::QsaShape kShape = bench::kQsa;
constexpr size_t kWidth = size_t{24} * 256;
constexpr size_t kGateWidth = 2 * kWidth;
constexpr double kRoundings = 4;  // probabilities, their sum, the gated output
constexpr double kTolerance = kRoundings * 0x1p-8;
constexpr auto kDecode = ops::Role::kDecode, kPrefill = ops::Role::kPrefill;
constexpr DType kTypes[] = {DType::kBF16, DType::kF8E4M3};

std::string type_name(DType dtype) { return dtype == DType::kBF16 ? "BF16" : "E4M3"; }

struct Spec {
  DType dtype = DType::kBF16;
  int sequences = 1;
  int rows_each = 1;
  int64_t position = 0;
  int budget = 512;
  double overlap = 0.9;
};

class QsaAttendCudaTest : public CudaTest {
 protected:
  /// Caches, queries and block lists of some sequences; lists hold complete blocks only.
  void prepare(const Spec& spec) {
    world().clear();
    spec_ = spec;
    rows_.emplace(world(), bench::RowsSpec{.sequences = spec.sequences,
                                           .rows_each = spec.rows_each,
                                           .position = spec.position});
    cache_ = bench::qsa_cache(world(), kShape, spec.dtype, rows_->num_pages());
    const auto count = static_cast<size_t>(rows_->num_rows());
    q_ = static_cast<std::byte*>(world().bf16(count * kWidth));
    q_gate_ = static_cast<std::byte*>(world().bf16(count * kGateWidth));
    out_ = world().bytes(count * kWidth * sizeof(uint16_t));
    const int64_t complete = (spec.position + 1) / kShape.block;
    if (complete > spec.budget) {
      const bench::BlockLists lists = bench::block_lists(world(), spec.sequences, spec.rows_each,
                                                         spec.budget, complete, spec.overlap);
      blocks_ = lists.blocks;
      counts_ = lists.counts;
      return;
    }
    std::vector<int32_t> blocks, counts;  // everything that is complete
    for (int sequence = 0; sequence < spec.sequences; ++sequence)
      for (int row = 0; row < spec.rows_each; ++row) {
        const auto visible = static_cast<int>((spec.position + row + 1) / kShape.block);
        counts.push_back(std::min(visible, spec.budget));
        for (int entry = 0; entry < spec.budget; ++entry)
          blocks.push_back(entry < counts.back() ? entry : -1);
      }
    blocks_ = world().copy(blocks);
    counts_ = world().copy(counts);
  }

  /// The launch of rows `first` .. of `spans`, whose row_begin counts from there.
  ops::QsaAttendArgs args(const std::vector<ops::RowSpan>& spans, int first, ops::Role role) {
    int rows = 0;
    for (const ops::RowSpan& span : spans) rows += span.num_rows;
    const size_t at = static_cast<size_t>(first) * kWidth * sizeof(uint16_t);
    return {.shape = kShape,
            .cache = cache_,
            .q = q_ + at,
            .q_gate = q_gate_ + 2 * at,
            .blocks = blocks_ + first * spec_.budget,
            .counts = counts_ + first,
            .budget_blocks = spec_.budget,
            .batch = {spans, rows, role},
            .out = out_ + at};
  }

  using Launch = void (*)(cuda::Context&, const ops::QsaAttendArgs&);
  std::vector<float> run(const std::vector<ops::RowSpan>& spans, int first, ops::Role role,
                         Launch launch = cuda::launch_qsa_attend) {
    const ops::QsaAttendArgs launched = args(spans, first, role);
    const auto rows = static_cast<size_t>(launched.batch.num_rows);
    begin(launched.batch);
    launch(context(), launched);
    synchronize();
    return read_bf16(launched.out, rows * kWidth);
  }
  void begin(const ops::RowBatch& batch) {
    const auto rows = static_cast<size_t>(batch.num_rows);
    const std::vector<int32_t> ids(rows, 1), positions(3 * rows, 1);
    world().ops().begin({.batch = batch, .ids = ids, .positions = positions, .logit_rows = {}});
  }
  std::vector<ops::RowSpan> all_spans() const {
    const auto spans = rows_->batch().spans;
    return {spans.begin(), spans.end()};
  }
  std::vector<float> run_all(ops::Role role, Launch launch = cuda::launch_qsa_attend) {
    return run(all_spans(), 0, role, launch);
  }

  /// The same launch by the reference on the host.
  std::vector<float> by_reference(ops::Role role) {
    std::vector<ops::RowSpan> spans = all_spans();
    const auto pages = static_cast<size_t>(rows_->num_pages());
    const auto count = static_cast<size_t>(rows_->num_rows());
    const auto table_entries =
        static_cast<size_t>((rows_->end_position() - 1) / ops::kPageTokens + 1);
    std::vector<std::vector<int32_t>> tables;
    for (ops::RowSpan& span : spans) {
      tables.push_back(read(span.pages, table_entries));
      span.pages = tables.back().data();
    }
    auto pool = read(cache_.keys.pool, pages * cache_.keys.page_stride);
    const auto q = read_bf16(q_, count * kWidth), gate = read_bf16(q_gate_, count * kGateWidth);
    const auto budget = static_cast<size_t>(spec_.budget);
    const auto blocks = read(blocks_, count * budget), counts = read(counts_, count);
    ops::QsaAttendArgs host = args(spans, 0, role);
    std::vector<float> out(count * kWidth);
    host.cache.keys.pool = host.cache.values.pool = pool.data();
    host.q = q.data();
    host.q_gate = gate.data();
    host.blocks = blocks.data();
    host.counts = counts.data();
    host.out = out.data();
    cpu::make_reference_ops()->qsa_attend(host);
    return out;
  }

  /// Rows of one span cut into launches that end at multiples of `grid` of the position.
  std::vector<float> run_chunks(const ops::RowSpan& span, int64_t grid, ops::Role role) {
    std::vector<float> all;
    for (int done = 0; done < span.num_rows;) {
      const int64_t position = span.position + done;
      const auto room = static_cast<int>(grid - position % grid);
      ops::RowSpan part = span;
      part.row_begin = 0;
      part.position = position;
      part.num_rows = std::min(room, span.num_rows - done);
      const auto values = run({part}, span.row_begin + done, role);
      all.insert(all.end(), values.begin(), values.end());
      done += part.num_rows;
    }
    return all;
  }

  void expect_rows(const std::vector<float>& got, const std::vector<float>& want) const {
    ASSERT_EQ(got.size(), want.size());
    constexpr size_t kHead = 256;
    for (size_t at = 0; at < want.size(); at += kHead)
      ASSERT_TRUE(
          close(std::span(got).subspan(at, kHead), std::span(want).subspan(at, kHead), kTolerance))
          << "row " << at / kWidth << " head " << at % kWidth / kHead;
  }

  Spec spec_;
  std::optional<bench::Rows> rows_{};
  ops::QsaCache cache_{};
  std::byte* q_ = nullptr;
  std::byte* q_gate_ = nullptr;
  std::byte* out_ = nullptr;
  int32_t* blocks_ = nullptr;
  int32_t* counts_ = nullptr;
};

TEST_F(QsaAttendCudaTest, MatchesTheReference) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  for (const DType dtype : kTypes)
    for (const ops::Role role : kRoles) {
      SCOPED_TRACE(type_name(dtype) + " " + role_name(role));
      prepare({.dtype = dtype, .rows_each = 3, .position = 2101});
      expect_rows(run_all(role), by_reference(role));
    }
}

/// Every plan, lists of several tiles, tails, and more blocks than the ring holds.
std::vector<Spec> specs() {
  const std::vector<Spec> full{{.sequences = 1, .rows_each = 4, .position = 9000},
                               {.sequences = 3, .rows_each = 6, .position = 66},
                               {.sequences = 5, .rows_each = 1, .position = 9001},
                               {.sequences = 2, .rows_each = 5, .position = 2046},
                               {.sequences = 9, .rows_each = 3, .position = 3000, .overlap = 0},
                               {.sequences = 2, .rows_each = 65, .position = 4093, .overlap = 0.5},
                               {.sequences = 1, .rows_each = 70, .position = 0},
                               {.sequences = 2, .rows_each = 9, .position = 5, .budget = 16},
                               {.sequences = 1, .rows_each = 13, .position = 3007, .budget = 100},
                               {.sequences = 2, .rows_each = 4, .position = 9000, .budget = 600}};
  const std::vector<Spec> few{
      {.sequences = 1, .rows_each = 2, .position = 801, .budget = 160},
      {.sequences = 1, .rows_each = 6, .position = 801, .budget = 160},
      {.sequences = 5, .rows_each = 1, .position = 801, .budget = 160},
      {.sequences = 2, .rows_each = 5, .position = 797, .budget = 160, .overlap = 0.5},
      {.sequences = 3, .rows_each = 6, .position = 66},
      {.sequences = 1, .rows_each = 70, .position = 0},
      {.sequences = 2, .rows_each = 9, .position = 5, .budget = 16},
      {.sequences = 1, .rows_each = 9, .position = 801, .budget = 100}};
  return sized(full, few);
}

/// In a reduced run against the reference: the generic kernel reads shared memory for every
/// product, and the op suite runs it.
TEST_F(QsaAttendCudaTest, MatchesTheGenericKernel) {
  for (const DType dtype : kTypes)
    for (const Spec& shape : specs())
      for (const ops::Role role : kRoles) {
        SCOPED_TRACE(testing::Message()
                     << type_name(dtype) << " " << role_name(role) << " " << shape.sequences
                     << " x " << shape.rows_each << " rows at " << shape.position << ", budget "
                     << shape.budget);
        Spec spec = shape;
        spec.dtype = dtype;
        prepare(spec);
        const auto want =
            reduced() ? by_reference(role) : run_all(role, cuda::launch_qsa_attend_any);
        ASSERT_NO_FATAL_FAILURE(expect_rows(run_all(role), want));
      }
}

/// Alone, a few rows and many rows take different splits and share different loads.
TEST_F(QsaAttendCudaTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  constexpr int kRowsEach = 6;
  for (const DType dtype : kTypes)
    for (const double overlap : {0.0, 0.5, 0.9, 1.0})
      for (const int64_t position : {int64_t{9001}, int64_t{700}}) {
        SCOPED_TRACE(testing::Message()
                     << type_name(dtype) << " overlap " << overlap << " position " << position);
        prepare({.dtype = dtype,
                 .sequences = 22,
                 .rows_each = kRowsEach,
                 .position = position,
                 .overlap = overlap});
        const auto together = run_all(kDecode);
        const auto spans = all_spans();
        const auto rows_of = [&](int first, size_t count) {
          return std::span(together).subspan(static_cast<size_t>(first) * kWidth, count * kWidth);
        };
        for (const size_t sequence : {size_t{0}, size_t{13}})
          for (int rows = 1; rows <= kRowsEach; ++rows)
            for (int begin = 0; begin + rows <= kRowsEach; ++begin) {
              ops::RowSpan part = spans[sequence];
              const int first = part.row_begin + begin;
              part.row_begin = 0;
              part.num_rows = rows;
              part.position += begin;
              ASSERT_TRUE(
                  same_bits(run({part}, first, kDecode), rows_of(first, static_cast<size_t>(rows))))
                  << "sequence " << sequence << " rows " << begin << " + " << rows;
            }
        std::vector<ops::RowSpan> pair(spans.begin() + 3, spans.begin() + 5);
        const int first = pair[0].row_begin;
        for (ops::RowSpan& span : pair) span.row_begin -= first;
        ASSERT_TRUE(same_bits(run(pair, first, kDecode), rows_of(first, 2 * kRowsEach)));
      }
}

TEST_F(QsaAttendCudaTest, TwoRunsAgree) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  for (const DType dtype : kTypes)
    for (const ops::Role role : kRoles) {
      prepare({.dtype = dtype, .sequences = 7, .rows_each = 21, .position = 5003});
      const auto first = run_all(role);
      for (int again = 0; again < 3; ++again) ASSERT_TRUE(same_bits(run_all(role), first));
    }
}

/// Chunks cut on the grid of 64 tokens leave the groups of queries whole.
TEST_F(QsaAttendCudaTest, PromptRowsHaveTheSameBitsInEveryChunkOnTheGrid) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  prepare({.sequences = 1, .rows_each = 300, .position = 4032});
  const auto whole = run_all(kPrefill);
  for (const int64_t grid : {64, 128})
    ASSERT_TRUE(same_bits(run_chunks(all_spans()[0], grid, kPrefill), whole));
}

/// Memory behind the last token may hold anything: NaN there must not reach a row.
TEST_F(QsaAttendCudaTest, TokensThatDoNotExistAreNeverUsed) {
  for (const DType dtype : kTypes)
    for (const ops::Role role : kRoles)
      for (const int64_t position : sized<std::vector<int64_t>>({2, 128, 5000}, {2})) {
        SCOPED_TRACE(testing::Message()
                     << type_name(dtype) << " " << role_name(role) << " position " << position);
        prepare({.dtype = dtype, .sequences = 2, .rows_each = 3, .position = position});
        const auto want = run_all(role);
        const auto page_tokens = static_cast<size_t>(ops::kPageTokens);
        const size_t token_bytes = 256 * dtype_bytes(dtype);
        const auto end = static_cast<size_t>(rows_->end_position());
        const std::vector<std::byte> poison(page_tokens * token_bytes, std::byte{0xFF});
        for (const ops::RowSpan& span : all_spans()) {
          const size_t last = (end - 1) / page_tokens, used = (end - 1) % page_tokens + 1;
          const int32_t page = read(span.pages, last + 1)[last];
          for (const ops::PageRef& part : {cache_.keys, cache_.values})
            for (size_t head = 0; head < 2; ++head)
              world().copy_in(part.page(page) + (head * page_tokens + used) * token_bytes,
                              poison.data(), (page_tokens - used) * token_bytes);
        }
        ASSERT_TRUE(same_bits(run_all(role), want));
      }
}

/// In a key or a value of the first K/V head: its query heads show it, the others do not.
TEST_F(QsaAttendCudaTest, NaNInASelectedTokenShows) {
  for (const DType dtype : kTypes)
    for (const ops::Role role : kRoles)
      for (const bool in_keys : {true, false}) {
        SCOPED_TRACE(testing::Message()
                     << type_name(dtype) << " " << role_name(role) << " key " << in_keys);
        constexpr size_t kRows = 2, kHalf = kWidth / 2;
        prepare({.dtype = dtype, .sequences = 1, .rows_each = kRows, .position = sized(600, 200)});
        const ops::PageRef& part = in_keys ? cache_.keys : cache_.values;
        const std::vector<std::byte> poison(256 * dtype_bytes(dtype), std::byte{0xFF});
        world().copy_in(part.page(read(all_spans()[0].pages, 2)[1]), poison.data(), poison.size());
        const auto got = run_all(role);
        for (size_t at = 0; at < kRows * kWidth; ++at)
          ASSERT_EQ(std::isnan(got[at]), at % kWidth < kHalf) << at;
      }
}

TEST_F(QsaAttendCudaTest, WaitsForItsInputs) {
  for (const DType dtype : kTypes)
    for (const ops::Role role : kRoles)
      for (const int sequences : {1, 3, 20}) {
        SCOPED_TRACE(testing::Message()
                     << type_name(dtype) << " " << role_name(role) << " " << sequences);
        prepare({.dtype = dtype, .sequences = sequences, .rows_each = 4, .position = 5000});
        const auto want = run_all(role);
        const auto spans = all_spans();
        const ops::QsaAttendArgs late = args(spans, 0, role);
        const auto rows = static_cast<size_t>(rows_->num_rows());
        begin(late.batch);
        DelayedProducer producer(context());
        producer.late(q_, rows * kWidth * sizeof(uint16_t));
        producer.late(q_gate_, rows * kGateWidth * sizeof(uint16_t));
        producer.late(blocks_, rows * static_cast<size_t>(spec_.budget) * sizeof(int32_t));
        producer.late(counts_, rows * sizeof(int32_t));
        producer.late(cache_.keys.pool,
                      static_cast<size_t>(rows_->num_pages()) * cache_.keys.page_stride);
        producer.untouched(out_, rows * kWidth * sizeof(uint16_t));
        EXPECT_TRUE(producer.run([&] { cuda::launch_qsa_attend(context(), late); }));
        ASSERT_TRUE(same_bits(read_bf16(out_, rows * kWidth), want));
      }
}

}  // namespace
}  // namespace tessera::test
