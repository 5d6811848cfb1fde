// SPDX-License-Identifier: Apache-2.0
// Third stage of a GDN prompt launch (sm_90a): chunk after chunk, 64 value dims of a head a block.
// With S the state at the entry of a chunk (columns do not interact):
//   r = beta (v - e^G S^T k);  u = T r;  o = e^G S^T q + P u;  S' = e^(G_last) S + k (e^(G_last -
//   G) u)^T
// A warpgroup keeps S^T [64 x 128] as FP32 accumulators: what a product leaves in registers is,
// packed, the left operand of the next (wgmma), so that warps meet at the copies of the inputs
// only.
#pragma once

#include "cuda/device/copy.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/wgmma_left.cuh"
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
  static constexpr int kKeySteps = kGdnDim / 16;      // of 16 key dims
  // Accumulators of a lane: 4 for each strip of 8 tokens or key dims.
  static constexpr int kTokenCells = 4 * kStrips;
  static constexpr int kStateCells = 4 * kKeyStrips;
};

struct alignas(1024) GdnScanStage {
  std::byte keys[KeyTile::kBytes];
  std::byte queries[KeyTile::kBytes];
  std::byte solve[SquareTile::kBytes];      // T
  std::byte attention[SquareTile::kBytes];  // P
  std::byte values[SquareTile::kBytes];     // v, replaced by o
  GdnChunkGates gates;

  static constexpr size_t kCopied =
      sizeof keys + sizeof queries + sizeof solve + sizeof attention + sizeof values + sizeof gates;
};

struct GdnScanShared {
  GdnScanStage stage[GdnScan::kStages];
  // Barriers (the host, which knows no Barrier, needs the size).
  uint64_t full[GdnScan::kStages];   // the copies of a stage have landed
  uint64_t empty[GdnScan::kStages];  // every warp is done with it
};

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

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
    arrive_expect(full, static_cast<uint32_t>(GdnScanStage::kCopied));
    copy_bulk(stage.keys, work.keys(slot, piece.key_head), sizeof stage.keys, full);
    copy_bulk(stage.queries, work.queries(slot, piece.key_head), sizeof stage.queries, full);
    copy_bulk(stage.solve, work.systems(slot, piece.head),
              sizeof stage.solve + sizeof stage.attention, full);
    copy_bulk(stage.values, work.values(slot, piece.head, piece.half), sizeof stage.values, full);
    copy_bulk(&stage.gates, work.gates(slot, piece.head), sizeof stage.gates, full);
  }
}

/// Accumulators of two neighbouring strips, from `first` on, as the left operand of one step.
template <int kCount>
__device__ __forceinline__ void as_operand(const float (&in)[kCount], int first,
                                           uint32_t (&out)[4]) {
#pragma unroll
  for (int pair = 0; pair < 4; ++pair)
    out[pair] = pack_bf16(in[first + 2 * pair], in[first + 2 * pair + 1]);
}
template <int kCount, int kSteps>
__device__ __forceinline__ void as_operands(const float (&in)[kCount], uint32_t (&out)[kSteps][4]) {
  static_assert(kCount == 8 * kSteps);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) as_operand(in, 8 * step, out[step]);
}

/// Starts out[64 columns x 64 tokens] += S^T tile^T for a tile of keys or queries.
template <class Config>
__device__ __forceinline__ void multiply_state(const uint32_t (&state)[Config::kKeySteps][4],
                                               const std::byte* tile,
                                               float (&out)[Config::kTokenCells]) {
  constexpr int kSlabSteps = KeyTile::kSlabUnits / 2;  // of 16 dims
#pragma unroll
  for (int step = 0; step < Config::kKeySteps; ++step) {
    const std::byte* slab = tile + step / kSlabSteps * KeyTile::kSlabBytes;
    multiply_left(
        out, state[step],
        tile_descriptor(slab) + static_cast<uint64_t>(step % kSlabSteps) * kDescriptorK16);
  }
  commit_products();
}

/// Starts out[64 columns x 64 tokens] += left[64 x 64] square^T; `square` is zero above the
/// diagonal.
template <class Config>
__device__ __forceinline__ void multiply_square(const uint32_t (&left)[Config::kSteps][4],
                                                const std::byte* square,
                                                float (&out)[Config::kTokenCells]) {
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step)
    multiply_left(out, left[step],
                  tile_descriptor(square) + static_cast<uint64_t>(step) * kDescriptorK16);
  commit_products();
}

/// Starts state += kept[64 columns x 64 tokens] keys.
template <class Config>
__device__ __forceinline__ void update_state(const uint32_t (&kept)[Config::kSteps][4],
                                             const std::byte* keys,
                                             float (&state)[Config::kStateCells]) {
#pragma unroll
  for (int step = 0; step < Config::kSteps; ++step)
    multiply_left_columns(state, kept[step],
                          columns_descriptor(keys, KeyTile::kSlabBytes) +
                              static_cast<uint64_t>(step) * kDescriptorRows16);
  commit_products();
}

/// This lane's factors of the two tokens of a strip.
__device__ __forceinline__ float2 pair_of(const float* factors, int strip) {
  return *reinterpret_cast<const float2*>(factors + strip * 8 + lane_id() % 4 * 2);
}

/// r of all strips as left operands; `known` holds S^T k.
template <class Config>
__device__ __forceinline__ void residuals(const float (&known)[Config::kTokenCells],
                                          GdnScanStage& stage, int value_unit,
                                          uint32_t (&out)[Config::kSteps][4]) {
#pragma unroll
  for (int strip = 0; strip < Config::kStrips; strip += 2) {
    uint32_t values[4];
    load_matrix_x4_transposed(values, SquareTile::transposed(stage.values, strip * 8, value_unit));
    float rest[8];
#pragma unroll
    for (int index = 0; index < 2; ++index) {
      const float2 decay = pair_of(stage.gates.from_entry, strip + index);
      const float2 beta = pair_of(stage.gates.beta, strip + index);
      const float2 upper = unpack_bf16(values[2 * index]);
      const float2 lower = unpack_bf16(values[2 * index + 1]);
      const int at = 4 * index, from = 4 * (strip + index);
      rest[at] = beta.x * fmaf(-decay.x, known[from], upper.x);
      rest[at + 1] = beta.y * fmaf(-decay.y, known[from + 1], upper.y);
      rest[at + 2] = beta.x * fmaf(-decay.x, known[from + 2], lower.x);
      rest[at + 3] = beta.y * fmaf(-decay.y, known[from + 3], lower.y);
    }
    as_operand(rest, 0, out[strip / 2]);
  }
}

/// Scales the token columns of accumulators.
template <class Config>
__device__ __forceinline__ void scale_tokens(const float* factors,
                                             float (&out)[Config::kTokenCells]) {
#pragma unroll
  for (int strip = 0; strip < Config::kStrips; ++strip) {
    const float2 factor = pair_of(factors, strip);
    out[4 * strip] *= factor.x;
    out[4 * strip + 1] *= factor.y;
    out[4 * strip + 2] *= factor.x;
    out[4 * strip + 3] *= factor.y;
  }
}

/// o of the warp's columns through shared memory (in place of v, which this warp alone reads) to
/// `out`: 32 bytes a row.
template <class Config>
__device__ __forceinline__ void store_outputs(const ops::GdnArgs& args, const GdnScanPiece& piece,
                                              const GdnChunkRows& at, int value_unit,
                                              const float (&o)[Config::kTokenCells],
                                              GdnScanStage& stage) {
  const int lane = lane_id();
#pragma unroll
  for (int strip = 0; strip < Config::kStrips; strip += 2) {
    uint32_t packed[4];
    as_operand(o, 4 * strip, packed);
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

/// One chunk; state holds S^T of the warp's 16 columns. Products run while the results of earlier
/// ones are turned into operands: S^T q behind r, o behind the update of the state. The state is
/// scaled before the first product: while any runs, the compiler gives up and makes each one wait.
template <class Config>
__device__ __forceinline__ void run_chunk(const ops::GdnArgs& args, const GdnScanPiece& piece,
                                          const GdnChunkRows& at, GdnScanStage& stage,
                                          float (&state)[Config::kStateCells]) {
  const int value_unit = warp_id() * 2;
  uint32_t entry[Config::kKeySteps][4];
  as_operands(state, entry);
  float known[Config::kTokenCells] = {}, out[Config::kTokenCells] = {};
  const float decay = stage.gates.from_entry[ops::kGdnChunk - 1];
#pragma unroll
  for (float& cell : state) cell *= decay;
  pin_operands(entry);
  pin_registers(state);
  pin_registers(known);
  pin_registers(out);
  begin_products();
  multiply_state<Config>(entry, stage.keys, known);
  multiply_state<Config>(entry, stage.queries, out);
  wait_products<1>();
  pin_registers(known);

  uint32_t rest[Config::kSteps][4];
  residuals<Config>(known, stage, value_unit, rest);
  float update[Config::kTokenCells] = {};
  pin_operands(rest);
  pin_registers(update);
  begin_products();
  multiply_square<Config>(rest, stage.solve, update);
  wait_products<1>();
  pin_operands(entry);
  pin_registers(out);
  scale_tokens<Config>(stage.gates.from_entry, out);
  wait_products<0>();
  pin_operands(rest);
  pin_registers(update);

  uint32_t updates[Config::kSteps][4], kept[Config::kSteps][4];
  as_operands(update, updates);
  scale_tokens<Config>(stage.gates.to_exit, update);
  as_operands(update, kept);
  pin_operands(updates);
  pin_operands(kept);
  pin_registers(out);
  pin_registers(state);
  begin_products();
  multiply_square<Config>(updates, stage.attention, out);
  update_state<Config>(kept, stage.keys, state);
  wait_products<1>();
  pin_operands(updates);
  pin_registers(out);
  store_outputs<Config>(args, piece, at, value_unit, out, stage);
  wait_products<0>();
  pin_operands(kept);
  pin_registers(state);
}

/// Calls fn(cell of the accumulators, its place in the matrix [128 key dims, 128]).
template <class Config, class Fn>
__device__ __forceinline__ void for_each_cell(float* matrix, float (&state)[Config::kStateCells],
                                              Fn&& fn) {
  const int lane = lane_id();
  float* first = matrix + lane % 4 * 2 * kGdnDim + lane / 4;  // key dims 2t, value dim g
#pragma unroll
  for (int strip = 0; strip < Config::kKeyStrips; ++strip) {
#pragma unroll
    for (int element = 0; element < 4; ++element)
      fn(state[4 * strip + element], first + (strip * 8 + element % 2) * kGdnDim + element / 2 * 8);
  }
}

#endif

/// Grid: spans x value heads x halves of the value dims.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    gdn_scan(const ops::GdnArgs args, const Batch batch, const GdnWorkspace work) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  constexpr int kHalves = kGdnDim / Config::kColumns;
  extern __shared__ __align__(1024) std::byte memory[];
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
  float state[Config::kStateCells];
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
