// SPDX-License-Identifier: Apache-2.0
// Attention over a round in which a text has ended: its rows stay in the launch, without pages, and
// touch nothing; those of other texts have the bits of a launch of their own.
#include <algorithm>

#include "cuda/cuda_fixture.h"

namespace tessera::test {
namespace {

constexpr int kRows = 2, kTexts = 2;  // of each text; the first one has ended
constexpr int kBudget = 16;
constexpr int64_t kPosition = 5000, kMaxContext = 8192;  // far beyond the budget: blocks are scored
constexpr uint8_t kPoison = 0x3C;
constexpr ops::QsaShape kAnyShape{.heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 32,
                                  .index_heads = 2,
                                  .index_dim = 16,
                                  .block = 4,
                                  .rotary_dim = 8};

class EndedRowsTest : public CudaTest {
 protected:
  void prepare(const ops::QsaShape& shape) {
    world().clear();
    const size_t slot_bytes = bench::qsa_ring_bytes(shape);
    bench::Rows rows(
        world(),
        {.sequences = kTexts, .rows_each = kRows, .position = kPosition, .slot_bytes = slot_bytes});
    spans_.assign(rows.batch().spans.begin(), rows.batch().spans.end());
    spans_[0].pages = nullptr;
    slot_bytes_ = slot_bytes;
    const ops::QsaCache cache = bench::qsa_cache(world(), shape, DType::kBF16, rows.num_pages());
    pool_bytes_ = cache.keys.page_stride * static_cast<size_t>(rows.num_pages());
    q_ = size_of(shape.heads, shape.head_dim);
    index_q_ = size_of(shape.index_heads, shape.index_dim);
    kv_ = size_of(shape.kv_heads, shape.head_dim);
    const std::vector<int32_t> axes(static_cast<size_t>(shape.rotary_dim) / 2, 0);
    const auto head = static_cast<size_t>(shape.head_dim);
    const auto index = static_cast<size_t>(shape.index_dim);
    front_ = {
        .shape = shape,
        .rope = {.inv_freq = world().floats(axes.size(), 0.1, 0.3), .axis = world().copy(axes)},
        .cache = cache,
        .q_gate = activations(2 * q_),
        .k = activations(kv_),
        .v = activations(kv_),
        .index_qk = activations(index_q_ + index),
        .q_norm = world().floats(head, 0.3),
        .k_norm = world().floats(head, 0.3),
        .index_q_norm = world().floats(index, 0.3),
        .index_k_norm = world().floats(index, 0.3),
        .eps = kEps,
        .q = activations(q_),
        .index_q = activations(index_q_)};
    blocks_ = reinterpret_cast<int32_t*>(world().bytes(kTexts * kRows * kBudget * sizeof(int32_t)));
    counts_ = reinterpret_cast<int32_t*>(world().bytes(kTexts * kRows * sizeof(int32_t)));
    out_ = static_cast<std::byte*>(activations(q_));
  }

  /// Front, selection and attention of the rows of a launch, from row `first` of the buffers on.
  void run(const ops::RowBatch& batch, const int32_t* positions, size_t first) {
    const auto from = [first](const void* data, size_t width) {
      return static_cast<const std::byte*>(data) + first * width * sizeof(uint16_t);
    };
    const auto to = [&](void* data, size_t width) {
      return const_cast<std::byte*>(from(data, width));
    };
    ops::QsaFrontArgs front = front_;
    front.q_gate = from(front_.q_gate, 2 * q_);
    front.k = from(front_.k, kv_);
    front.v = from(front_.v, kv_);
    front.index_qk = from(front_.index_qk, index_q_ + static_cast<size_t>(front_.shape.index_dim));
    front.positions = positions;
    front.batch = batch;
    front.q = to(front_.q, q_);
    front.index_q = to(front_.index_q, index_q_);
    world().ops().qsa_front(front);
    world().ops().qsa_select({.shape = front_.shape,
                              .cache = front_.cache,
                              .index_q = front.index_q,
                              .budget_blocks = kBudget,
                              .batch = batch,
                              .blocks = blocks_ + first * kBudget,
                              .counts = counts_ + first,
                              .max_context = kMaxContext});
    world().ops().qsa_attend({.shape = front_.shape,
                              .cache = front_.cache,
                              .q = front.q,
                              .q_gate = front.q_gate,
                              .blocks = blocks_ + first * kBudget,
                              .counts = counts_ + first,
                              .budget_blocks = kBudget,
                              .batch = batch,
                              .out = to(out_, q_)});
    synchronize();
  }

  std::vector<std::byte> pool() { return read(front_.cache.keys.pool, pool_bytes_); }
  std::vector<std::byte> slot(size_t text) { return read(spans_[text].slot, slot_bytes_); }
  std::vector<float> out() { return read_bf16(out_, kTexts * kRows * q_); }
  void poison_out() {
    const std::vector<uint8_t> poison(kTexts * kRows * q_ * sizeof(uint16_t), kPoison);
    world().copy_in(out_, poison.data(), poison.size());
  }

  std::vector<ops::RowSpan> spans_{};
  ops::QsaFrontArgs front_{};
  int32_t *blocks_ = nullptr, *counts_ = nullptr;
  std::byte* out_ = nullptr;
  size_t q_ = 0, index_q_ = 0, kv_ = 0, pool_bytes_ = 0, slot_bytes_ = 0;

 private:
  static size_t size_of(int heads, int dim) {
    return static_cast<size_t>(heads) * static_cast<size_t>(dim);
  }
  void* activations(size_t width) { return world().bf16(kTexts * kRows * width); }
};

TEST_F(EndedRowsTest, TouchNothing) {
  for (const ops::QsaShape& shape : {bench::kQsa, kAnyShape}) {
    SCOPED_TRACE(testing::Message() << "heads of " << shape.head_dim);
    prepare(shape);
    const std::vector<std::byte> pool_before = pool(), slot_before = slot(1), ended_slot = slot(0);
    poison_out();
    const std::vector<float> poison = out();

    ops::RowSpan alone = spans_[1];
    alone.row_begin = 0;
    std::vector<int32_t> positions;
    for (int row = 0; row < kRows; ++row)
      positions.insert(positions.end(), 3, static_cast<int32_t>(kPosition + row));
    const std::vector<int32_t> ids(kTexts * kRows, 1);
    const ops::RowBatch own{.spans = {&alone, 1}, .num_rows = kRows, .role = ops::Role::kDecode};
    const ops::LaunchBuffers buffers = world().ops().begin(
        {.batch = own, .ids = std::span(ids).first(kRows), .positions = positions});
    run(own, buffers.positions, kRows);
    const std::vector<float> want = out();
    const std::vector<std::byte> want_pool = pool(), want_slot = slot(1);

    world().copy_in(front_.cache.keys.pool, pool_before.data(), pool_before.size());
    world().copy_in(spans_[1].slot, slot_before.data(), slot_before.size());
    poison_out();
    const std::vector<ops::RoundSequence> sequences{{.left = 0}, {.left = 100}};
    world().ops().begin_round(
        {.batch = {.spans = spans_, .num_rows = kTexts * kRows, .role = ops::Role::kDecode},
         .ids = ids,
         .sequences = sequences});
    const ops::RoundRows rows =
        world().ops().use_rows(ops::RoundPart::kTrunk, kTexts, kTexts * kRows);
    run(rows.batch, rows.buffers.positions, 0);
    EXPECT_TRUE(pool() == want_pool);
    EXPECT_TRUE(slot(1) == want_slot);
    EXPECT_TRUE(slot(0) == ended_slot);
    const std::vector<float> got = out();
    const size_t ended = kRows * q_;
    EXPECT_TRUE(same_bits(std::span(got).first(ended), std::span(poison).first(ended)));
    EXPECT_TRUE(same_bits(std::span(got).subspan(ended), std::span(want).subspan(ended)));
    EXPECT_EQ(read(counts_, kTexts * kRows), (std::vector<int32_t>{0, 0, kBudget, kBudget}));
  }
}

}  // namespace
}  // namespace tessera::test
