// SPDX-License-Identifier: Apache-2.0
// One token of the delta rule on 16 columns of a state matrix that one warp holds in registers.
//   u = beta (v - decay M^T k);  o = decay M^T q + (k . q) u;  M = decay M + k u^T
// Every operation that rounds is spelled out: a row's bits are the same in every kernel that
// includes this, replayed or new, whatever the compiler would like to contract.
#pragma once

#include "cuda/device/ordered_math.cuh"
#include "cuda/device/reduce.cuh"

namespace tessera::cuda::device {

/// Lane l holds columns 4 (l % 4) .. + 3 of the warp's 16, and of every 32 matrix rows (key dims)
/// the four from 4 (l / 4) on: so each load of a warp covers whole 64-byte pieces, and a lane's
/// four keys lie side by side.
struct DeltaTile {
  static constexpr int kColumns = 16;
  static constexpr int kKeyDim = 128;
  static constexpr int kQuads = kKeyDim / 32;  // of four matrix rows, per lane
  static constexpr int kRows = kQuads * 4;     // matrix rows per lane

  float4 cell[kRows];

  __device__ static int first_column() { return lane_id() % 4 * 4; }
  __device__ static int group() { return lane_id() / 4; }
  /// Where this lane's cells begin in a matrix [128, kStride] whose warp tile begins at `first`.
  template <int kStride>
  __device__ static float* origin(float* first) {
    return first + group() * 4 * kStride + first_column();
  }
  static constexpr int key_row(int row) { return row / 4 * kWarp + row % 4; }
  /// Column of the sum that this lane ends up with: lanes below 16 hold key sums, the others query
  /// sums, four lanes apart for neighbouring columns.
  __device__ static int summed_column() {
    const int lane = lane_id();
    return first_column() + ((lane & 8) >> 2) + ((lane & 4) >> 2);
  }
  __device__ static bool holds_key_sums() { return lane_id() < kWarp / 2; }

  template <int kStride>
  __device__ __forceinline__ void load(const float* origin) {
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      cell[row] = __ldcs(reinterpret_cast<const float4*>(origin + key_row(row) * kStride));
  }
  template <int kStride>
  __device__ __forceinline__ void store(float* origin) const {
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      __stcs(reinterpret_cast<float4*>(origin + key_row(row) * kStride), cell[row]);
  }
};

/// What a token brings to one value head, in shared memory: `key` and `query` [128], `value` the
/// warp's 16 columns of v, `output` the place of those of o.
struct DeltaToken {
  const float* key;
  const float* query;
  const float* value;
  float* output;
  float decay;
  float beta;
  float key_query;
};

/// along[c] += sum over this lane's rows of M[row][c] * vector[row], rows ascending.
__device__ __forceinline__ void add_products(const float4& cell, float factor, float (&along)[4]) {
  along[0] = __fmaf_rn(cell.x, factor, along[0]);
  along[1] = __fmaf_rn(cell.y, factor, along[1]);
  along[2] = __fmaf_rn(cell.z, factor, along[2]);
  along[3] = __fmaf_rn(cell.w, factor, along[3]);
}

__device__ __forceinline__ void add_update(float key, const float (&updates)[4], float4& cell) {
  cell.x = __fmaf_rn(key, updates[0], cell.x);
  cell.y = __fmaf_rn(key, updates[1], cell.y);
  cell.z = __fmaf_rn(key, updates[2], cell.z);
  cell.w = __fmaf_rn(key, updates[3], cell.w);
}

/// Decays the cells of rows kFirst .. kEnd - 1.
template <int kFirst, int kEnd>
__device__ __forceinline__ void decay_rows(DeltaTile& tile, float decay) {
#pragma unroll
  for (int row = kFirst; row < kEnd; ++row) {
    multiply_here(tile.cell[row].x, decay);
    multiply_here(tile.cell[row].y, decay);
    multiply_here(tile.cell[row].z, decay);
    multiply_here(tile.cell[row].w, decay);
  }
}

/// Adds up over the eight groups of lanes. First over lanes 16 apart, where low lanes keep the key
/// sums and high lanes the query sums, then each half of the lanes keeps half of the columns,
/// twice. A replayed token has key sums only; the pairs that are added stay the same. The decay of
/// the cells does not wait for the sums: it fills the latency of the exchanges.
template <bool kReplay>
__device__ __forceinline__ float reduce_products(const float (&key)[4], const float (&query)[4],
                                                 float decay, DeltaTile& tile) {
  constexpr int kFirstCut = DeltaTile::kRows * 3 / 8, kSecondCut = DeltaTile::kRows * 11 / 16;
  const int lane = lane_id();
  const auto exchange = [](float keep, float give, int step) {
    return __fadd_rn(keep, __shfl_xor_sync(kAllLanes, give, step));
  };
  float four[4];
#pragma unroll
  for (int column = 0; column < 4; ++column) {
    const bool low = kReplay || lane < 16;
    const float keep = low ? key[column] : query[column];
    const float give = kReplay || !low ? key[column] : query[column];
    four[column] = exchange(keep, give, 16);
  }
  decay_rows<0, kFirstCut>(tile, decay);
  const bool right = (lane & 8) != 0, odd = (lane & 4) != 0;
  const float first = exchange(right ? four[2] : four[0], right ? four[0] : four[2], 8);
  const float second = exchange(right ? four[3] : four[1], right ? four[1] : four[3], 8);
  decay_rows<kFirstCut, kSecondCut>(tile, decay);
  const float sum = exchange(odd ? second : first, odd ? first : second, 4);
  decay_rows<kSecondCut, DeltaTile::kRows>(tile, decay);
  return sum;
}

/// All lanes of the warp take part. kReplay: updates the matrix only.
template <bool kReplay>
__device__ __forceinline__ void delta_step(DeltaTile& tile, const DeltaToken& token) {
  float4 keys[DeltaTile::kQuads];
  float along_key[4] = {}, along_query[4] = {};
#pragma unroll
  for (int quad = 0; quad < DeltaTile::kQuads; ++quad) {
    const int at = quad * kWarp + DeltaTile::group() * 4;
    keys[quad] = *reinterpret_cast<const float4*>(token.key + at);
    const float4& key = keys[quad];
    add_products(tile.cell[4 * quad], key.x, along_key);
    add_products(tile.cell[4 * quad + 1], key.y, along_key);
    add_products(tile.cell[4 * quad + 2], key.z, along_key);
    add_products(tile.cell[4 * quad + 3], key.w, along_key);
    if constexpr (!kReplay) {
      const float4 query = *reinterpret_cast<const float4*>(token.query + at);
      add_products(tile.cell[4 * quad], query.x, along_query);
      add_products(tile.cell[4 * quad + 1], query.y, along_query);
      add_products(tile.cell[4 * quad + 2], query.z, along_query);
      add_products(tile.cell[4 * quad + 3], query.w, along_query);
    }
  }
  const int column = DeltaTile::summed_column();
  const float value = token.value[column];
  const float sum = reduce_products<kReplay>(along_key, along_query, token.decay, tile);
  // Meaningful on the lanes that hold key sums; the others fetch it from there.
  const float update = __fmul_rn(token.beta, __fmaf_rn(-token.decay, sum, value));
  float updates[4];
#pragma unroll
  for (int column_of_four = 0; column_of_four < 4; ++column_of_four)
    updates[column_of_four] = __shfl_sync(kAllLanes, update, column_of_four * 4 + lane_id() % 4);
  if constexpr (!kReplay) {
    const float own = __shfl_xor_sync(kAllLanes, update, 16);
    if (!DeltaTile::holds_key_sums())
      token.output[column] = __fmaf_rn(token.key_query, own, __fmul_rn(token.decay, sum));
  }
#pragma unroll
  for (int quad = 0; quad < DeltaTile::kQuads; ++quad) {
    add_update(keys[quad].x, updates, tile.cell[4 * quad]);
    add_update(keys[quad].y, updates, tile.cell[4 * quad + 1]);
    add_update(keys[quad].z, updates, tile.cell[4 * quad + 2]);
    add_update(keys[quad].w, updates, tile.cell[4 * quad + 3]);
  }
}

}  // namespace tessera::cuda::device
