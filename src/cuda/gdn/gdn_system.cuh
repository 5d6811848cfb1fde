// SPDX-License-Identifier: Apache-2.0
// Second stage of a GDN prompt launch (sm_90a): what a chunk and value head need besides the state.
// With G the running sum of the log decays, the updates u of a chunk solve (1 + A) u = r,
//   A_ij = beta_i e^(G_i - G_j) (k_i . k_j) for j < i;   T = (1 + A)^-1, all entries within [-1,
//   1]; P_ij = e^(G_i - G_j) (q_i . k_j) for j <= i: what row i reads of update j.
// Exponents are differences, at most 0 each: nothing is divided by a decay that may be zero.
#pragma once

#include "cuda/device/copy.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/gdn/gdn_math.cuh"
#include "cuda/gdn/gdn_tiles.cuh"

namespace tessera::cuda::device {

struct GdnSystem {
  static constexpr int kChunk = ops::kGdnChunk;
  static constexpr int kBlock = 16;  // rows of a warp; rows eliminated one by one
  static constexpr int kWarps = kChunk / kBlock;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kStride = kChunk + 4;  // floats: rows four apart fall into different banks
  static constexpr float kLowestLogDecay = -110;  // e^it is zero; sums stay small
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

struct GdnSystemShared {
  struct alignas(128) Inputs {
    std::byte keys[KeyTile::kBytes];
    std::byte queries[KeyTile::kBytes];
  };
  struct Matrices {
    float system[GdnSystem::kChunk][GdnSystem::kStride];   // A
    float inverse[GdnSystem::kChunk][GdnSystem::kStride];  // T
  };
  union {
    Inputs in;        // until the products are done
    Matrices matrix;  // after that
  };
  alignas(128) std::byte attention[SquareTile::kBytes];  // P
  alignas(16) float sum[GdnSystem::kChunk];              // G
  alignas(16) float beta[GdnSystem::kChunk];
  float first_half;  // sum of the first warp's log decays
  Barrier loaded;
};

/// Threads 0..63: a row each. The sums run in one order whatever the rows of the chunk.
template <class Config>
__device__ __forceinline__ void set_gates(const ops::GdnArgs& args, const GdnSlotChunk& chunk,
                                          int head, float a_log, float dt_bias,
                                          GdnSystemShared& shared) {
  const int row = static_cast<int>(threadIdx.x);
  float sum = 0;
  if (row < Config::kChunk) {
    float beta = 0;
    if (row < chunk.at.rows) {
      const size_t at = gate_index(args, chunk.launch_row(row), head);
      const float g = log_decay(a_log, args.a[at], dt_bias);
      sum = g < Config::kLowestLogDecay ? Config::kLowestLogDecay : g;
      beta = quick_sigmoid(args.b[at]);
    }
    shared.beta[row] = beta;
  }
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const float below = __shfl_up_sync(kAllLanes, sum, step);
    if (lane_id() >= step) sum += below;
  }
  if (row == kWarp - 1) shared.first_half = sum;
  __syncthreads();  // the first half's sum is there
  if (row < Config::kChunk) shared.sum[row] = row < kWarp ? sum : sum + shared.first_half;
  __syncthreads();  // sums and betas are there
}

/// The warp's 16 rows of k k^T and q k^T, strips of 8 columns up to the diagonal.
template <class Config>
__device__ __forceinline__ void multiply_rows(const GdnSystemShared& shared, float (&key_key)[8][4],
                                              float (&query_key)[8][4]) {
  const int warp = warp_id();
#pragma unroll
  for (int unit = 0; unit < KeyTile::kUnits; unit += 4) {
    uint32_t keys[2][4], queries[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_matrix_x4(keys[half],
                     KeyTile::square(shared.in.keys, warp * Config::kBlock, unit + 2 * half));
      load_matrix_x4(queries[half],
                     KeyTile::square(shared.in.queries, warp * Config::kBlock, unit + 2 * half));
    }
#pragma unroll
    for (int strip = 0; strip < 8; ++strip) {
      if (strip > 2 * warp + 1) continue;
      uint32_t right[4];
      load_matrix_x4(right, KeyTile::strip(shared.in.keys, strip * 8, unit));
      mma_m16n8k16(key_key[strip], keys[0], {right[0], right[1]});
      mma_m16n8k16(query_key[strip], queries[0], {right[0], right[1]});
      mma_m16n8k16(key_key[strip], keys[1], {right[2], right[3]});
      mma_m16n8k16(query_key[strip], queries[1], {right[2], right[3]});
    }
  }
}

/// Decays, then A as FP32 and P as BF16 into shared memory. A is set below the diagonal only as far
/// as the solver reads it; P is whole.
template <class Config>
__device__ __forceinline__ void store_products(const float (&key_key)[8][4],
                                               const float (&query_key)[8][4],
                                               GdnSystemShared& shared) {
  const int lane = lane_id();
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    const int row = warp_id() * Config::kBlock + lane / 4 + 8 * lower;
    const float sum = shared.sum[row], beta = shared.beta[row];
#pragma unroll
    for (int strip = 0; strip < 8; ++strip) {
      const int column = strip * 8 + lane % 4 * 2;
      const float2 before = *reinterpret_cast<const float2*>(&shared.sum[column]);
      const float left = column <= row ? __expf(sum - before.x) : 0.0F;
      const float right = column + 1 <= row ? __expf(sum - before.y) : 0.0F;
      *reinterpret_cast<float2*>(&shared.matrix.system[row][column]) = {
          beta * left * key_key[strip][2 * lower], beta * right * key_key[strip][2 * lower + 1]};
      std::byte* unit = shared.attention + SquareTile::offset(row, strip);
      reinterpret_cast<uint32_t*>(unit)[lane % 4] =
          pack_bf16(left * query_key[strip][2 * lower], right * query_key[strip][2 * lower + 1]);
    }
  }
}

/// Forward substitution for the warp's 16 columns of T, two lanes a column: 16 rows at a time,
/// first what the rows above contribute (the lanes take turns of four rows and add up), then row by
/// row. Rows above a column's own block are zero and are not touched.
template <class Config>
__device__ __forceinline__ void invert(GdnSystemShared& shared) {
  const int lane = lane_id(), half = lane % 2;
  const int first = warp_id() * Config::kBlock, column = first + lane / 2;
  for (int block = first; block < Config::kChunk; block += Config::kBlock) {
    float above[Config::kBlock] = {};
    for (int from = first + 4 * half; from < block; from += 8) {
      float known[4];
#pragma unroll
      for (int index = 0; index < 4; ++index)
        known[index] = shared.matrix.inverse[from + index][column];
#pragma unroll
      for (int row = 0; row < Config::kBlock; ++row) {
        const float4 factors =
            *reinterpret_cast<const float4*>(&shared.matrix.system[block + row][from]);
        above[row] = fmaf(factors.w, known[3],
                          fmaf(factors.z, known[2],
                               fmaf(factors.y, known[1], fmaf(factors.x, known[0], above[row]))));
      }
    }
    float solved[Config::kBlock];
#pragma unroll
    for (int row = 0; row < Config::kBlock; ++row) {
      const float* factors = &shared.matrix.system[block + row][block];
      float value = block + row == column ? 1.0F : 0.0F;
      value -= above[row] + __shfl_xor_sync(kAllLanes, above[row], 1);
#pragma unroll
      for (int before = 0; before < row; ++before)
        value = fmaf(-factors[before], solved[before], value);
      solved[row] = value;
    }
#pragma unroll
    for (int row = 0; row < Config::kBlock; ++row)
      if (row / 8 == half) shared.matrix.inverse[block + row][column] = solved[row];
    __syncwarp();  // both lanes of a column read what each wrote
  }
}

#endif

/// Grid: slots of the window x value heads.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    gdn_system(const ops::GdnArgs args, const Batch batch, const GdnWorkspace work) {
#if __CUDA_ARCH__ >= 900
  __shared__ GdnSystemShared shared;
  const int slot = work.first_slot + static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int key_head = head / (args.shape.value_heads / args.shape.key_heads);
  const int thread = static_cast<int>(threadIdx.x);
  const float a_log = __ldg(args.a_log + head), dt_bias = __ldg(args.dt_bias + head);
  if (thread == 0) {
    init_barrier(&shared.loaded, 1);
    fence_barrier_init();
  }
  __syncthreads();  // the barrier is there
  wait_for_inputs();
  const GdnSlotChunk chunk = find_chunk(batch, slot);
  if (chunk.at.rows <= 0) return;
  if (thread == 0) {
    arrive_expect(&shared.loaded, sizeof shared.in);
    copy_bulk(shared.in.keys, work.keys(slot, key_head), KeyTile::kBytes, &shared.loaded);
    copy_bulk(shared.in.queries, work.queries(slot, key_head), KeyTile::kBytes, &shared.loaded);
  }
  set_gates<Config>(args, chunk, head, a_log, dt_bias, shared);
  if (thread < Config::kChunk) {
    GdnChunkGates* gates = work.gates(slot, head);
    const float sum = shared.sum[thread];
    gates->from_entry[thread] = __expf(sum);
    gates->to_exit[thread] = __expf(shared.sum[Config::kChunk - 1] - sum);
    gates->beta[thread] = shared.beta[thread];
  }
  wait_barrier(&shared.loaded, 0);
  float key_key[8][4] = {}, query_key[8][4] = {};
  multiply_rows<Config>(shared, key_key, query_key);
  __syncthreads();  // keys and queries are read: the matrices take their place
  store_products<Config>(key_key, query_key, shared);
  __syncthreads();  // A is there
  invert<Config>(shared);
  __syncthreads();  // T is there

  auto* out = reinterpret_cast<uint4*>(work.systems(slot, head));
  constexpr int kUnits = static_cast<int>(SquareTile::kBytes) / SquareTile::kUnitBytes;
  for (int at = thread; at < kUnits; at += Config::kThreads) {
    const int row = at / SquareTile::kUnits, unit = at % SquareTile::kUnits;
    float values[SquareTile::kUnitElements] = {};
    if (unit * SquareTile::kUnitElements / Config::kBlock <= row / Config::kBlock) {
#pragma unroll
      for (int element = 0; element < SquareTile::kUnitElements; ++element)
        values[element] = shared.matrix.inverse[row][unit * SquareTile::kUnitElements + element];
    }
    out[SquareTile::offset(row, unit) / SquareTile::kUnitBytes] = pack_bf16x8(values);
    out[kUnits + at] = reinterpret_cast<const uint4*>(shared.attention)[at];
  }
#endif
}

}  // namespace tessera::cuda::device
