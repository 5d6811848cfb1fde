// SPDX-License-Identifier: Apache-2.0
// Page pool, slots and launches of the QSA op tests.
#include "cpu/qsa_world.h"

#include <algorithm>

#include "core/arena.h"

namespace tessera::test {
namespace {

constexpr double kTheta = 1e4;
constexpr int kSparePages = 3;  // pages of the pool that belong to nobody

}  // namespace

float load_cache(DType dtype, const std::byte* base, size_t index) {
  if (dtype == DType::kBF16) {
    uint16_t bits;
    std::memcpy(&bits, base + index * sizeof(bits), sizeof(bits));
    return bf16_to_float(bits);
  }
  float value;
  std::memcpy(&value, base + index * sizeof(value), sizeof(value));
  return value;
}

void store_cache(DType dtype, std::byte* base, size_t index, float value) {
  const uint16_t bits = float_to_bf16(value);
  if (dtype == DType::kBF16)
    std::memcpy(base + index * sizeof(bits), &bits, sizeof(bits));
  else
    std::memcpy(base + index * sizeof(value), &value, sizeof(value));
}

QsaWorld::QsaWorld(const ops::QsaShape& shape, DType dtype, const std::vector<int64_t>& capacity,
                   uint64_t seed)
    : shape_(shape), dtype_(dtype) {
  const size_t element = dtype_bytes(dtype), page_tokens = ops::kPageTokens;
  const size_t kv_bytes = static_cast<size_t>(shape.kv_heads) * page_tokens *
                          static_cast<size_t>(shape.head_dim) * element;
  const size_t index_bytes =
      static_cast<size_t>(shape.blocks_per_page()) * static_cast<size_t>(shape.index_dim) * element;
  const size_t values_at = 2 * kGapBytes + kv_bytes, index_at = values_at + kv_bytes + kGapBytes;
  const size_t stride = align_up(index_at + index_bytes + kGapBytes, sizeof(float));

  int pages = kSparePages;
  for (const int64_t tokens : capacity) pages += static_cast<int>(tokens / ops::kPageTokens) + 1;
  pool_.assign(static_cast<size_t>(pages) * stride, kPoison);
  written_.assign(pool_.size(), false);
  cache_.keys = {pool_.data(), stride, kGapBytes, dtype};
  cache_.values = {pool_.data(), stride, values_at, dtype};
  cache_.index_keys = {pool_.data(), stride, index_at, dtype};
  const size_t raw_entry = static_cast<size_t>(shape.index_dim) * sizeof(float);
  cache_.raw_keys = make_ring(kGapBytes, raw_entry, shape.block - 1);
  cache_.positions =
      make_ring(2 * kGapBytes + raw_entry * static_cast<size_t>(cache_.raw_keys.slots),
                3 * sizeof(int32_t), shape.block - 1);
  const size_t slot_bytes =
      cache_.positions.offset +
      cache_.positions.entry_bytes * static_cast<size_t>(cache_.positions.slots) + kGapBytes;

  Random random(seed);
  const auto order = random.permutation(pages);
  auto next = order.begin();
  for (const int64_t tokens : capacity) {
    Sequence sequence;
    sequence.slot.assign(slot_bytes, kPoison);
    for (int64_t page = 0; page <= tokens / ops::kPageTokens; ++page)
      sequence.pages.push_back(*next++);
    sequences_.push_back(std::move(sequence));
  }
}

std::byte* QsaWorld::page(size_t sequence, int64_t token, const ops::PageRef& ref) const {
  const int32_t id = sequences_[sequence].pages[static_cast<size_t>(token / ops::kPageTokens)];
  return ref.pool + static_cast<size_t>(id) * ref.page_stride + ref.offset;
}

std::byte* QsaWorld::key_at(size_t sequence, int64_t token, size_t kv_head) const {
  const size_t cell = kv_head * ops::kPageTokens + static_cast<size_t>(token % ops::kPageTokens);
  return page(sequence, token, cache_.keys) +
         cell * static_cast<size_t>(shape_.head_dim) * dtype_bytes(dtype_);
}

std::byte* QsaWorld::value_at(size_t sequence, int64_t token, size_t kv_head) const {
  return key_at(sequence, token, kv_head) - cache_.keys.offset + cache_.values.offset;
}

std::byte* QsaWorld::index_key_at(size_t sequence, int64_t block) const {
  return page(sequence, block * shape_.block, cache_.index_keys) +
         static_cast<size_t>(block % shape_.blocks_per_page()) *
             static_cast<size_t>(shape_.index_dim) * dtype_bytes(dtype_);
}

std::vector<float> QsaWorld::read(const std::byte* vector, size_t count) const {
  std::vector<float> values(count);
  for (size_t index = 0; index < count; ++index) values[index] = load_cache(dtype_, vector, index);
  return values;
}

void QsaWorld::write(std::byte* vector, std::span<const float> values) {
  for (size_t index = 0; index < values.size(); ++index)
    store_cache(dtype_, vector, index, values[index]);
}

const std::byte* QsaWorld::raw_key_ring(size_t sequence, int64_t token) const {
  return sequences_[sequence].slot.data() + cache_.raw_keys.offset +
         static_cast<size_t>(token % cache_.raw_keys.slots) * cache_.raw_keys.entry_bytes;
}

const std::byte* QsaWorld::position_ring(size_t sequence, int64_t token) const {
  return sequences_[sequence].slot.data() + cache_.positions.offset +
         static_cast<size_t>(token % cache_.positions.slots) * cache_.positions.entry_bytes;
}

void QsaWorld::mark_written(const std::byte* vector, size_t count) {
  const auto begin = written_.begin() + (vector - pool_.data());
  std::fill_n(begin, count * dtype_bytes(dtype_), true);
}

bool QsaWorld::rest_is_poison() const {
  for (size_t index = 0; index < pool_.size(); ++index)
    if (!written_[index] && pool_[index] != kPoison) return false;
  return true;
}

Rope::Rope(int rotary_dim, float scale) : attention_scale(scale) {
  for (int pair = 0; pair < rotary_dim / 2; ++pair) {
    inv_freq.push_back(static_cast<float>(std::pow(kTheta, -2.0 * pair / rotary_dim)));
    axis.push_back(pair % 3);
  }
}

void Rope::rotate(std::vector<double>& x, const int32_t* position) const {
  const size_t half = inv_freq.size();
  for (size_t pair = 0; pair < half; ++pair) {
    const double angle = double{inv_freq[pair]} * position[axis[pair]];
    const double low = x[pair], high = x[pair + half], scale = double{attention_scale};
    x[pair] = scale * (low * std::cos(angle) - high * std::sin(angle));
    x[pair + half] = scale * (high * std::cos(angle) + low * std::sin(angle));
  }
}

ops::RowSpan single_row(QsaWorld& world, int64_t position) {
  Sequence& sequence = world.sequences()[0];
  return {.row_begin = 0,
          .num_rows = 1,
          .position = position,
          .slot = sequence.slot.data(),
          .pages = sequence.pages.data()};
}

}  // namespace tessera::test
