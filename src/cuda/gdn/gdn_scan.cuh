// SPDX-License-Identifier: Apache-2.0
// Third stage of a GDN prompt launch (sm_90a): chunk after chunk, 64 value dims of a head a block.
// With S the state at the entry of a chunk (columns do not interact):
//   r = beta (v - e^G S^T k);  u = T r;  o = e^G S^T q + P u;  S' = e^(G_last) S + k (e^(G_last -
//   G) u)^T
// A warp keeps 16 columns of S as FP32 accumulators of S^T: what a product leaves in registers is
// the left operand of the next, so that warps meet at the copies of the inputs only.
#pragma once

#include "cuda/device/copy.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/gdn/gdn_math.cuh"
#include "cuda/gdn/gdn_tiles.cuh"

namespace tessera::cuda::device {

struct GdnScan {
  static constexpr int kColumns = 64;  // value dims of a block
  static constexpr int kWarps = kColumns / 16;
  static constexpr int kThreads = (kWarps + 1) * kWarp;  // the last warp copies
  static constexpr int kStages = 3;
  static constexpr int kStrips = ops::kGdnChunk / 8;  // of 8 tokens
  static constexpr int kSteps = ops::kGdnChunk / 16;  // of 16 tokens
  static constexpr int kKeyStrips = kGdnDim / 8;      // of 8 key dims
};

struct alignas(128) GdnScanStage {
  std::byte keys[KeyTile::kBytes];
  std::byte queries[KeyTile::kBytes];
  std::byte solve[SquareTile::kBytes];      // T
  std::byte attention[SquareTile::kBytes];  // P
  std::byte values[SquareTile::kBytes];     // v, replaced by o
  GdnChunkGates gates;
};

struct GdnScanShared {
  GdnScanStage stage[GdnScan::kStages];
  // Barriers (the host, which knows no Barrier, needs the size).
  uint64_t full[GdnScan::kStages];   // the copies of a stage have landed
  uint64_t empty[GdnScan::kStages];  // every warp is done with it
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// The chunks of one span that lie in the window, and whose columns this block holds.
struct GdnScanPiece {
  ops::RowSpan span;
  int head, key_head, half;
  int first_slot;  // of the span
  int begin, end;  // chunks
};

/// The copying lane: waits until a stage is free, then asks for the next chunk.
template <class Config>
__device__ __forceinline__ void copy_chunks(const GdnWorkspace& work, const GdnScanPiece& piece,
                                            GdnScanShared& shared) {
  for (int chunk = piece.begin; chunk < piece.end; ++chunk) {
    const int index = chunk - piece.begin, at = index % Config::kStages;
    const uint32_t round = static_cast<uint32_t>(index / Config::kStages);
    if (round > 0) wait_barrier(&shared.empty[at], (round - 1) % 2);
    GdnScanStage& stage = shared.stage[at];
    Barrier* full = &shared.full[at];
    const int slot = piece.first_slot + chunk;
    arrive_expect(full, sizeof(GdnScanStage));
    copy_bulk(stage.keys, work.keys(slot, piece.key_head), sizeof stage.keys, full);
    copy_bulk(stage.queries, work.queries(slot, piece.key_head), sizeof stage.queries, full);
    copy_bulk(stage.solve, work.systems(slot, piece.head),
              sizeof stage.solve + sizeof stage.attention, full);
    copy_bulk(stage.values, work.values(slot, piece.head, piece.half), sizeof stage.values, full);
    copy_bulk(&stage.gates, work.gates(slot, piece.head), sizeof stage.gates, full);
  }
}

/// Accumulators of two neighbouring strips as the left operand of one step, in BF16.
__device__ __forceinline__ void as_operand(const float (&first)[4], const float (&second)[4],
                                           uint32_t (&out)[4]) {
  out[0] = pack_bf16(first[0], first[1]);
  out[1] = pack_bf16(first[2], first[3]);
  out[2] = pack_bf16(second[0], second[1]);
  out[3] = pack_bf16(second[2], second[3]);
}

/// out[16 columns x 64 tokens] += S^T tile^T for a tile of keys or queries.
template <class Config>
__device__ __forceinline__ void multiply_state(const uint32_t (&state)[Config::kKeyStrips / 2][4],
                                               const std::byte* tile,
                                               float (&out)[Config::kStrips][4]) {
#pragma unroll
  for (int unit = 0; unit < KeyTile::kUnits; unit += 4) {
#pragma unroll
    for (int strip = 0; strip < Config::kStrips; ++strip) {
      uint32_t right[4];
      load_matrix_x4(right, KeyTile::strip(tile, strip * 8, unit));
      mma_m16n8k16(out[strip], state[unit / 2], {right[0], right[1]});
      mma_m16n8k16(out[strip], state[unit / 2 + 1], {right[2], right[3]});
    }
  }
}

/// out[16 columns x 64 tokens] += left[16 x 64] triangle^T; steps beyond the diagonal are zero.
template <class Config>
__device__ __forceinline__ void multiply_triangle(const uint32_t (&left)[Config::kSteps][4],
                                                  const std::byte* triangle,
                                                  float (&out)[Config::kStrips][4]) {
#pragma unroll
  for (int unit = 0; unit < SquareTile::kUnits; unit += 4) {
#pragma unroll
    for (int strip = 0; strip < Config::kStrips; ++strip) {
      if (unit > strip) continue;
      uint32_t right[4];
      load_matrix_x4(right, SquareTile::strip(triangle, strip * 8, unit));
      mma_m16n8k16(out[strip], left[unit / 2], {right[0], right[1]});
      if (unit + 2 <= strip) mma_m16n8k16(out[strip], left[unit / 2 + 1], {right[2], right[3]});
    }
  }
}

/// This lane's factors of the two tokens of a strip.
__device__ __forceinline__ float2 pair_of(const float* factors, int strip) {
  return *reinterpret_cast<const float2*>(factors + strip * 8 + lane_id() % 4 * 2);
}

/// r of two strips as a left operand; `known` holds S^T k.
__device__ __forceinline__ void residual(const float (&known)[2][4], GdnScanStage& stage, int strip,
                                         int value_unit, uint32_t (&out)[4]) {
  uint32_t values[4];
  load_matrix_x4_transposed(values, SquareTile::transposed(stage.values, strip * 8, value_unit));
  float rest[2][4];
#pragma unroll
  for (int index = 0; index < 2; ++index) {
    const float2 decay = pair_of(stage.gates.from_entry, strip + index);
    const float2 beta = pair_of(stage.gates.beta, strip + index);
    const float2 upper = unpack_bf16(values[2 * index]);
    const float2 lower = unpack_bf16(values[2 * index + 1]);
    rest[index][0] = beta.x * fmaf(-decay.x, known[index][0], upper.x);
    rest[index][1] = beta.y * fmaf(-decay.y, known[index][1], upper.y);
    rest[index][2] = beta.x * fmaf(-decay.x, known[index][2], lower.x);
    rest[index][3] = beta.y * fmaf(-decay.y, known[index][3], lower.y);
  }
  as_operand(rest[0], rest[1], out);
}

/// Scales the token columns of accumulators.
template <class Config>
__device__ __forceinline__ void scale_tokens(const float* factors,
                                             float (&out)[Config::kStrips][4]) {
#pragma unroll
  for (int strip = 0; strip < Config::kStrips; ++strip) {
    const float2 factor = pair_of(factors, strip);
    out[strip][0] *= factor.x;
    out[strip][1] *= factor.y;
    out[strip][2] *= factor.x;
    out[strip][3] *= factor.y;
  }
}

template <class Config>
__device__ __forceinline__ void as_operands(const float (&in)[Config::kStrips][4],
                                            uint32_t (&out)[Config::kSteps][4]) {
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step)
    as_operand(in[2 * step], in[2 * step + 1], out[step]);
}

/// o of the warp's columns through shared memory (in place of v, which this warp alone reads) to
/// `out`: 32 bytes a row.
template <class Config>
__device__ __forceinline__ void store_outputs(const ops::GdnArgs& args, const GdnScanPiece& piece,
                                              const GdnChunkRows& at, int value_unit,
                                              const float (&o)[Config::kStrips][4],
                                              GdnScanStage& stage) {
  const int lane = lane_id();
#pragma unroll
  for (int strip = 0; strip < Config::kStrips; strip += 2) {
    uint32_t packed[4];
    as_operand(o[strip], o[strip + 1], packed);
    store_matrix_x4_transposed(SquareTile::transposed(stage.values, strip * 8, value_unit), packed);
  }
  __syncwarp();  // rows of all lanes are there
  const int unit = value_unit + lane % 2;
#pragma unroll
  for (int first = 0; first < ops::kGdnChunk; first += kWarp / 2) {
    const int row = first + lane / 2;
    if (row >= at.rows) continue;
    Bf16* out = static_cast<Bf16*>(args.out) +
                gate_index(args, piece.span.row_begin + at.first + row, piece.head) * kGdnDim +
                piece.half * Config::kColumns + unit * SquareTile::kUnitElements;
    *reinterpret_cast<uint4*>(out) =
        *reinterpret_cast<const uint4*>(stage.values + SquareTile::offset(row, unit));
  }
}

/// One chunk of one warp: state [key strips] is S^T of its 16 columns.
template <class Config>
__device__ __forceinline__ void run_chunk(const ops::GdnArgs& args, const GdnScanPiece& piece,
                                          const GdnChunkRows& at, GdnScanStage& stage,
                                          float (&state)[Config::kKeyStrips][4]) {
  const int value_unit = warp_id() * 2;
  uint32_t entry[Config::kKeyStrips / 2][4];
#pragma unroll
  for (int step = 0; step < Config::kKeyStrips / 2; ++step)
    as_operand(state[2 * step], state[2 * step + 1], entry[step]);

  uint32_t updates[Config::kSteps][4], kept[Config::kSteps][4];
  {
    float known[Config::kStrips][4] = {};
    multiply_state<Config>(entry, stage.keys, known);
    uint32_t rest[Config::kSteps][4];
#pragma unroll
    for (int step = 0; step < Config::kSteps; ++step) {
      float pair[2][4];
#pragma unroll
      for (int element = 0; element < 4; ++element) {
        pair[0][element] = known[2 * step][element];
        pair[1][element] = known[2 * step + 1][element];
      }
      residual(pair, stage, 2 * step, value_unit, rest[step]);
    }
    float update[Config::kStrips][4] = {};
    multiply_triangle<Config>(rest, stage.solve, update);
    as_operands<Config>(update, updates);
    scale_tokens<Config>(stage.gates.to_exit, update);
    as_operands<Config>(update, kept);
  }
  float out[Config::kStrips][4] = {};
  multiply_state<Config>(entry, stage.queries, out);
  scale_tokens<Config>(stage.gates.from_entry, out);
  multiply_triangle<Config>(updates, stage.attention, out);
  store_outputs<Config>(args, piece, at, value_unit, out, stage);

  const float decay = stage.gates.from_entry[ops::kGdnChunk - 1];
#pragma unroll
  for (auto& strip : state)
#pragma unroll
    for (float& cell : strip) cell *= decay;
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step) {
#pragma unroll
    for (int strip = 0; strip < Config::kKeyStrips; strip += 2) {
      uint32_t right[4];
      load_matrix_x4_transposed(right, KeyTile::square(stage.keys, step * 16, strip));
      mma_m16n8k16(state[strip], kept[step], {right[0], right[1]});
      mma_m16n8k16(state[strip + 1], kept[step], {right[2], right[3]});
    }
  }
}

/// Calls fn(cell of the accumulators, its place in the matrix [128 key dims, 128]).
template <class Config, class Fn>
__device__ __forceinline__ void for_each_cell(float* matrix, float (&state)[Config::kKeyStrips][4],
                                              Fn&& fn) {
  const int lane = lane_id();
  float* first = matrix + lane % 4 * 2 * kGdnDim + lane / 4;  // key dims 2t, value dim g
#pragma unroll
  for (int strip = 0; strip < Config::kKeyStrips; ++strip) {
#pragma unroll
    for (int element = 0; element < 4; ++element)
      fn(state[strip][element], first + (strip * 8 + element % 2) * kGdnDim + element / 2 * 8);
  }
}

#endif

/// Grid: spans x value heads x halves of the value dims.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    gdn_scan(const ops::GdnArgs args, const Batch batch, const GdnWorkspace work) {
#if __CUDA_ARCH__ >= 900
  constexpr int kHalves = kGdnDim / Config::kColumns;
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<GdnScanShared*>(memory);
  if (threadIdx.x == 0) {
    for (int at = 0; at < Config::kStages; ++at) {
      init_barrier(&shared.full[at], 1);
      init_barrier(&shared.empty[at], Config::kWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();  // barriers are there
  const int span_head = static_cast<int>(blockIdx.x) / kHalves;
  const int span_index = span_head / args.shape.value_heads;
  GdnScanPiece piece;
  piece.half = static_cast<int>(blockIdx.x) % kHalves;
  piece.head = span_head % args.shape.value_heads;
  piece.key_head = piece.head / (args.shape.value_heads / args.shape.key_heads);
  wait_for_inputs();
  piece.span = batch.spans[span_index];
  piece.first_slot = gdn_first_slot(piece.span.row_begin, span_index);
  piece.begin = max(0, work.first_slot - piece.first_slot);
  piece.end = min(gdn_num_chunks(piece.span.position, piece.span.num_rows),
                  work.first_slot + work.num_slots - piece.first_slot);
  if (piece.begin >= piece.end) return;

  if (warp_id() == Config::kWarps) {
    if (lane_id() == 0) copy_chunks<Config>(work, piece, shared);
    return;
  }
  float* matrix = reinterpret_cast<float*>(piece.span.slot + args.matrix_offset) +
                  static_cast<size_t>(piece.head) * kGdnDim * kGdnDim +
                  piece.half * Config::kColumns + warp_id() * 16;
  float state[Config::kKeyStrips][4];
  for_each_cell<Config>(matrix, state, [](float& cell, const float* at) { cell = *at; });
  for (int chunk = piece.begin; chunk < piece.end; ++chunk) {
    const int index = chunk - piece.begin, stage = index % Config::kStages;
    wait_barrier(&shared.full[stage], static_cast<uint32_t>(index / Config::kStages) % 2);
    const GdnChunkRows at = gdn_chunk_rows(piece.span.position, piece.span.num_rows, chunk);
    run_chunk<Config>(args, piece, at, shared.stage[stage], state);
    fence_async_proxy();  // o was written where the next copy lands
    __syncwarp();         // all lanes are done with the stage
    if (lane_id() == 0) arrive(&shared.empty[stage]);
  }
  for_each_cell<Config>(matrix, state, [](const float& cell, float* at) { *at = cell; });
#endif
}

}  // namespace tessera::cuda::device
