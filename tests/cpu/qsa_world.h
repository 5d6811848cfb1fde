// SPDX-License-Identifier: Apache-2.0
// Page pool, slots and launches of the QSA op tests: gaps between the parts of a page, shuffled
// page ids, poison (NaN) wherever nothing was written.
#pragma once

#include <set>
#include <vector>

#include "cpu/state_fixture.h"

namespace tessera::test {

inline constexpr ops::QsaShape kSmallQsa{.heads = 6,
                                         .kv_heads = 2,
                                         .head_dim = 32,
                                         .index_heads = 4,
                                         .index_dim = 16,
                                         .block = 4,
                                         .rotary_dim = 16};
inline constexpr ops::QsaShape kOddQsa{.heads = 3,
                                       .kv_heads = 3,
                                       .head_dim = 10,
                                       .index_heads = 1,
                                       .index_dim = 9,
                                       .block = 2,
                                       .rotary_dim = 6};
inline constexpr ops::QsaShape kWideQsa{.heads = 12,
                                        .kv_heads = 1,
                                        .head_dim = 256,
                                        .index_heads = 4,
                                        .index_dim = 128,
                                        .block = 4,
                                        .rotary_dim = 64};
inline constexpr ops::QsaShape kBigBlockQsa{.heads = 2,
                                            .kv_heads = 1,
                                            .head_dim = 8,
                                            .index_heads = 2,
                                            .index_dim = 8,
                                            .block = 16,
                                            .rotary_dim = 8};
inline constexpr DType kCacheTypes[] = {DType::kF32, DType::kBF16};

using BlockLists = std::vector<std::vector<int32_t>>;  // selected blocks of each token

/// One element of a cache, of either type.
float load_cache(DType dtype, const std::byte* base, size_t index);
void store_cache(DType dtype, std::byte* base, size_t index, float value);

/// What the cache keeps of a value.
inline float as_stored(DType dtype, float value) {
  return dtype == DType::kBF16 ? bf16_to_float(float_to_bf16(value)) : value;
}

class QsaWorld {
 public:
  /// Room for `capacity[s]` tokens of sequence s.
  QsaWorld(const ops::QsaShape& shape, DType dtype, const std::vector<int64_t>& capacity,
           uint64_t seed);

  const ops::QsaShape& shape() const { return shape_; }
  const ops::QsaCache& cache() const { return cache_; }
  std::vector<Sequence>& sequences() { return sequences_; }

  /// Address of the vector of a token or block, as the header lays it out.
  std::byte* key_at(size_t sequence, int64_t token, size_t kv_head) const;
  std::byte* value_at(size_t sequence, int64_t token, size_t kv_head) const;
  std::byte* index_key_at(size_t sequence, int64_t block) const;
  std::vector<float> read(const std::byte* vector, size_t count) const;
  void write(std::byte* vector, std::span<const float> values);
  const std::byte* raw_key_ring(size_t sequence, int64_t token) const;
  const std::byte* position_ring(size_t sequence, int64_t token) const;

  /// Bytes of the pool that no vector reported as written occupies must still be poison.
  void mark_written(const std::byte* vector, size_t count);
  bool rest_is_poison() const;

 private:
  std::byte* page(size_t sequence, int64_t token, const ops::PageRef& ref) const;

  ops::QsaShape shape_;
  DType dtype_;
  std::vector<std::byte> pool_{};
  std::vector<bool> written_{};
  std::vector<Sequence> sequences_{};
  ops::QsaCache cache_{};
};

/// RoPE parameters with three axes that alternate.
struct Rope {
  explicit Rope(int rotary_dim, float scale = 1);
  ops::RopeTable view() const { return {inv_freq.data(), axis.data(), attention_scale}; }
  /// Rotates in place, half-split form.
  void rotate(std::vector<double>& x, const int32_t* position) const;

  std::vector<float> inv_freq{};
  std::vector<int32_t> axis{};
  float attention_scale;
};

/// A launch of one row at index `position` of sequence 0.
ops::RowSpan single_row(QsaWorld& world, int64_t position);

}  // namespace tessera::test
