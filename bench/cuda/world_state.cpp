// SPDX-License-Identifier: Apache-2.0
// Sequences of the benches: spans, slots, page tables, page pools and block lists.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "bench/cuda/world.h"
#include "core/arena.h"
#include "cuda/check.h"

namespace tessera::bench {
namespace {

constexpr size_t kAlign = 256;
constexpr int kMaxDraft = 5;
constexpr uint64_t kSeed = 20;

size_t index_key_bytes(const ops::QsaShape& shape) {
  return static_cast<size_t>(shape.blocks_per_page()) * static_cast<size_t>(shape.index_dim) *
         dtype_bytes(DType::kBF16);
}

/// Draws distinct blocks without a table of its own per row.
class BlockSampler {
 public:
  explicit BlockSampler(int64_t visible) : taken_(static_cast<size_t>(visible), false) {}

  /// `budget` distinct blocks, ascending; the first `keep` of a shuffled `previous` stay.
  std::vector<int32_t> draw(size_t budget, std::vector<int32_t> previous, size_t keep) {
    std::shuffle(previous.begin(), previous.end(), random_);
    previous.resize(std::min(keep, previous.size()));
    for (const int32_t block : previous) taken_[static_cast<size_t>(block)] = true;
    std::uniform_int_distribution<size_t> any(0, taken_.size() - 1);
    while (previous.size() < budget) {
      const size_t block = any(random_);
      if (taken_[block]) continue;
      taken_[block] = true;
      previous.push_back(static_cast<int32_t>(block));
    }
    for (const int32_t block : previous) taken_[static_cast<size_t>(block)] = false;
    std::sort(previous.begin(), previous.end());
    return previous;
  }

 private:
  std::mt19937_64 random_{kSeed};
  std::vector<bool> taken_;
};

}  // namespace

ops::RingRef make_ring(size_t offset, size_t entry_bytes, int reach) {
  const auto rows_alive = static_cast<unsigned>(kMaxDraft + 1 + reach);
  return {.offset = offset,
          .entry_bytes = entry_bytes,
          .slots = static_cast<int>(std::bit_ceil(rows_alive)),
          .reach = reach};
}

Rows::Rows(World& world, const RowsSpec& spec)
    : world_(world), role_(spec.role), end_position_(spec.position + spec.rows_each) {
  const auto sequences = static_cast<size_t>(spec.sequences);
  const auto pages_each =
      static_cast<size_t>((end_position_ + ops::kPageTokens - 1) / ops::kPageTokens);
  num_pages_ = static_cast<int64_t>(pages_each * sequences);
  std::vector<int32_t> ids(static_cast<size_t>(num_pages_));
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937_64 random(kSeed);
  std::shuffle(ids.begin(), ids.end(), random);
  const int32_t* tables = world.copy(ids);
  const size_t slot_stride = align_up(spec.slot_bytes, kAlign);
  std::byte* slots = world.bytes(slot_stride * sequences);
  // Pairs of BF16 are sane floats too.
  world.fill(DType::kBF16, slots, slot_stride * sequences / sizeof(uint16_t), 1);
  for (size_t sequence = 0; sequence < sequences; ++sequence) {
    spans_.push_back({.row_begin = num_rows_,
                      .num_rows = spec.rows_each,
                      .position = spec.position,
                      .slot = slots + sequence * slot_stride,
                      .pages = tables + sequence * pages_each});
    num_rows_ += spec.rows_each;
  }
}

void Rows::begin() {
  const std::vector<int32_t> ids(static_cast<size_t>(num_rows_), 1);
  std::vector<int32_t> positions;
  for (const ops::RowSpan& span : spans_)
    for (int row = 0; row < span.num_rows; ++row)
      positions.insert(positions.end(), 3, static_cast<int32_t>(span.position + row));
  world_.ops().begin({.batch = batch(), .ids = ids, .positions = positions, .logit_rows = {}});
}

size_t qsa_ring_bytes(const ops::QsaShape& shape) {
  const ops::RingRef keys =
      make_ring(0, static_cast<size_t>(shape.index_dim) * sizeof(uint16_t), shape.block - 1);
  const ops::RingRef positions = make_ring(0, 3 * sizeof(int32_t), shape.block - 1);
  const auto slots = static_cast<size_t>(keys.slots);
  return align_up(keys.entry_bytes * slots, kAlign) +
         align_up(positions.entry_bytes * slots, kAlign);
}

ops::QsaCache qsa_cache(World& world, const ops::QsaShape& shape, DType dtype, int64_t num_pages,
                        size_t ring_offset) {
  const auto pages = static_cast<size_t>(num_pages);
  const size_t kv_elements =
      static_cast<size_t>(shape.kv_heads) * ops::kPageTokens * static_cast<size_t>(shape.head_dim);
  const size_t kv_bytes = align_up(kv_elements * dtype_bytes(dtype), kAlign);
  const size_t index_bytes = index_key_bytes(shape);
  const size_t stride = align_up(2 * kv_bytes + index_bytes, kAlign);
  std::byte* pool = world.bytes(stride * pages);
  world.fill(dtype, pool, stride * pages / dtype_bytes(dtype), 1);
  if (dtype != DType::kBF16) {
    void* keys = nullptr;
    cuda::check(cudaMalloc(&keys, index_bytes * pages));
    world.fill(DType::kBF16, keys, index_bytes * pages / sizeof(uint16_t), 1);
    cuda::check(cudaMemcpy2DAsync(pool + 2 * kv_bytes, stride, keys, index_bytes, index_bytes,
                                  pages, cudaMemcpyDeviceToDevice, world.stream()));
    cuda::check(cudaStreamSynchronize(world.stream()));
    cuda::check(cudaFree(keys));
  }
  ops::QsaCache cache;
  cache.keys = {pool, stride, 0, dtype};
  cache.values = {pool, stride, kv_bytes, dtype};
  cache.index_keys = {pool, stride, 2 * kv_bytes, DType::kBF16};
  const size_t key_entry = static_cast<size_t>(shape.index_dim) * sizeof(uint16_t);
  cache.raw_keys = make_ring(ring_offset, key_entry, shape.block - 1);
  cache.positions = make_ring(
      ring_offset + align_up(key_entry * static_cast<size_t>(cache.raw_keys.slots), kAlign),
      3 * sizeof(int32_t), shape.block - 1);
  return cache;
}

BlockLists block_lists(World& world, int spans, int rows_each, int budget, int64_t visible,
                       double overlap) {
  const auto width = static_cast<size_t>(budget);
  const size_t taken = std::min(width, static_cast<size_t>(visible));
  const auto keep = static_cast<size_t>(std::llround(overlap * static_cast<double>(taken)));
  BlockSampler sampler(visible);
  std::vector<int32_t> blocks;
  BlockLists lists;
  for (int span = 0; span < spans; ++span) {
    std::vector<bool> seen(static_cast<size_t>(visible), false);
    std::vector<int32_t> row;
    for (int index = 0; index < rows_each; ++index) {
      row = sampler.draw(taken, row, index == 0 ? 0 : keep);
      for (const int32_t block : row) seen[static_cast<size_t>(block)] = true;
      blocks.insert(blocks.end(), row.begin(), row.end());
      blocks.insert(blocks.end(), width - taken, -1);
    }
    lists.distinct += static_cast<double>(std::count(seen.begin(), seen.end(), true));
  }
  const size_t rows = static_cast<size_t>(spans) * static_cast<size_t>(rows_each);
  lists.blocks = world.copy(blocks);
  lists.counts = world.copy(std::vector<int32_t>(rows, static_cast<int32_t>(taken)));
  return lists;
}

}  // namespace tessera::bench
