// SPDX-License-Identifier: Apache-2.0
// GDN decode and verify in one kernel (sm_90a): a block, or a cluster of two, takes one value head
// of one sequence. Its matrix stays in registers from the one load to the one store, while accepted
// rows of the last verify launch are replayed and the rows of this launch follow.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/device/prefetch.cuh"
#include "cuda/gdn/gdn_stage.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// Sum of squares of a row's output over the columns of half `half` of this block.
template <class Config>
__device__ __forceinline__ float half_squares(const GdnDecodeShared<Config>& shared, int row,
                                              int half) {
  const float2 o = reinterpret_cast<const float2*>(shared.output[row])[half * kWarp + lane_id()];
  return warp_sum(__fmaf_rn(o.x, o.x, __fmul_rn(o.y, o.y)));
}

/// Gated norm of the own rows of a tile. The two halves of a head are added in one order, whether
/// they lie in one block or in two.
template <class Config>
__device__ __forceinline__ void finish_rows(const ops::GdnArgs& args, const GdnPiece<Config>& piece,
                                            int first, int rows, GdnDecodeShared<Config>& shared) {
  const int lane = lane_id();
  const int own_rows = rows - max(0, piece.held - first);
  if (own_rows <= 0) return;
  const int own_begin = rows - own_rows + warp_id();
  // Which tile with own rows this is; a block may be one ahead of the other one of its cluster.
  const int own_tile = first / Config::kTileRows - piece.held / Config::kTileRows;
  const int parity = own_tile % 2;
  __syncthreads();  // every warp's columns of o are there
  if constexpr (Config::kSplit > 1) {
    // Each block sends its half of every row to the other one and waits for as many.
    uint64_t* arrived = &shared.arrived[parity];
    const int other = 1 - piece.half();
    if (threadIdx.x == 0)
      arrive_expect(arrived, static_cast<uint32_t>(own_rows) * uint32_t{sizeof(float)});
    for (int row = own_begin; row < rows; row += Config::kWarps) {
      const float squares = half_squares<Config>(shared, row, 0);
      float* place = &shared.squares[parity][piece.half()][row];
      if (lane == 0) {
        *place = squares;
        store_remote_counted(remote_address(place, other), squares, remote_address(arrived, other));
      }
    }
    __syncwarp();  // the own halves of this warp's rows are there
    wait_barrier(arrived, static_cast<uint32_t>(own_tile / 2) % 2);
  }
  for (int row = own_begin; row < rows; row += Config::kWarps) {
    float total;
    if constexpr (Config::kSplit > 1)
      total = __fadd_rn(shared.squares[parity][0][row], shared.squares[parity][1][row]);
    else
      total = __fadd_rn(half_squares<Config>(shared, row, 0), half_squares<Config>(shared, row, 1));
    const float factor = rsqrtf(__fmaf_rn(total, 1.0F / kGdnDim, args.eps));
    const int launch_row = piece.span().row_begin + first + row - piece.held;
    Bf16* out = static_cast<Bf16*>(args.out) + gate_index(args, launch_row, piece.head) * kGdnDim +
                piece.first_column();
#pragma unroll
    for (int half = 0; half < Config::kHalves; ++half) {
      const int at = half * kWarp + lane;
      const float2 o = reinterpret_cast<const float2*>(shared.output[row])[at];
      const float2 gate = reinterpret_cast<const float2*>(shared.gate[row])[at];
      reinterpret_cast<uint32_t*>(out)[at] =
          pack_bf16(__fmul_rn(round_bf16(__fmul_rn(o.x, factor)), gate.x),
                    __fmul_rn(round_bf16(__fmul_rn(o.y, factor)), gate.y));
    }
  }
}

/// Leaves v of the own rows of a tile pending. The columns are read by this block alone, and no row
/// that an own row could overwrite is still unread: pending rows are staged first. The last warps
/// begin: where some hold no part of the matrix, the others need not stop for this.
template <class Config>
__device__ __forceinline__ void store_pending_values(const ops::GdnArgs& args,
                                                     const GdnPiece<Config>& piece, int first,
                                                     int rows,
                                                     const GdnDecodeShared<Config>& shared) {
  const ops::GdnPending layout{args.shape};
  const size_t at = layout.value_at(piece.head) + static_cast<size_t>(piece.first_column());
  const int lane = lane_id();
  for (int row = max(0, piece.held - first) + Config::kWarps - 1 - warp_id(); row < rows;
       row += Config::kWarps) {
    const int index = first + row - piece.held;
    if (index >= args.pending_rows || lane >= Config::kValueLanes) continue;
    reinterpret_cast<float4*>(pending_row(args, piece.span(), index) + at)[lane] =
        shared.value[row][lane];
  }
}

/// The same for k, g and beta, which both blocks of a cluster read: only after a barrier between
/// them that follows their reads.
template <class Config>
__device__ __forceinline__ void store_pending_keys(const ops::GdnArgs& args,
                                                   const GdnPiece<Config>& piece, int first,
                                                   int rows,
                                                   const GdnDecodeShared<Config>& shared) {
  if (piece.half() != 0) return;
  const ops::GdnPending layout{args.shape};
  const int lane = lane_id();
  for (int row = max(0, piece.held - first) + warp_id(); row < rows; row += Config::kWarps) {
    const int index = first + row - piece.held;
    if (index >= args.pending_rows) continue;
    float* stored = pending_row(args, piece.span(), index);
    reinterpret_cast<float4*>(stored + layout.key_at(piece.head))[lane] = shared.key[row][lane];
    if (lane == 0) {
      stored[layout.log_decay_at() + static_cast<size_t>(piece.head)] = shared.log_decay[row];
      stored[layout.beta_at() + static_cast<size_t>(piece.head)] = shared.beta[row];
    }
  }
}

/// Where this lane's cells of the matrix lie.
template <class Config>
__device__ __forceinline__ float* warp_cells(const ops::GdnArgs& args,
                                             const GdnPiece<Config>& piece, std::byte* slot) {
  return DeltaTile::origin<kGdnDim>(
      reinterpret_cast<float*>(slot + args.matrix_offset +
                               static_cast<size_t>(piece.head) * kGdnMatrixBytes) +
      piece.first_column() + warp_id() * DeltaTile::kColumns);
}

/// One row of a tile on this warp's columns.
template <bool kReplay, class Config>
__device__ __forceinline__ void run_row(DeltaTile& tile, int row, GdnDecodeShared<Config>& shared) {
  const int column = warp_id() * DeltaTile::kColumns;
  delta_step<kReplay>(tile, {.key = reinterpret_cast<const float*>(shared.key[row]),
                             .query = reinterpret_cast<const float*>(shared.query[row]),
                             .value = reinterpret_cast<const float*>(shared.value[row]) + column,
                             .output = reinterpret_cast<float*>(shared.output[row]) + column,
                             .decay = shared.decay[row],
                             .beta = shared.beta[row],
                             .key_query = shared.key_query[row]});
}

/// The matrix of a block that starts when this one ends, nullptr if there is none.
__device__ __forceinline__ const std::byte* later_matrix(const ops::GdnArgs& args,
                                                         const Batch& batch, int span_head) {
  const int span = span_head / args.shape.value_heads, head = span_head % args.shape.value_heads;
  if (span >= batch.num_spans) return nullptr;
  const std::byte* slot = batch.spans[span].slot;
  if (slot == nullptr) return nullptr;
  return slot + args.matrix_offset + static_cast<size_t>(head) * kGdnMatrixBytes;
}

/// Fetches it: memory would be idle while the blocks of a multiprocessor compute. Called when the
/// own matrix has arrived.
template <class Config>
__device__ __forceinline__ void prefetch_later(const GdnDecodeShared<Config>& shared) {
  if (Config::kBlocksPerSm == 1 || threadIdx.x != 0 || shared.later_matrix == nullptr) return;
  prefetch_bulk(shared.later_matrix, static_cast<uint32_t>(kGdnMatrixBytes));
}

#endif

/// Grid: spans x value heads x kSplit. `writes_ring` is false when a later launch stores the rows.
/// `heads_at_once`: how many run together.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    gdn_decode(const ops::GdnArgs args, const Batch batch, const bool writes_ring,
               const int heads_at_once) {
#if __CUDA_ARCH__ >= 900
  __shared__ GdnDecodeShared<Config> shared;
  const int heads = args.shape.value_heads;
  const int heads_per_key = heads / args.shape.key_heads;
  const int span_head = static_cast<int>(blockIdx.x) / Config::kSplit;
  GdnPiece<Config> piece;
  piece.shared_span = shared.span;
  piece.head = span_head % heads;
  piece.key_head = piece.head / heads_per_key;
  piece.writes_ring = writes_ring;
  piece.writes_keys = piece.half() == 0 && piece.head % heads_per_key == 0;
  piece.held = args.verify ? args.pending_rows : 0;

  if constexpr (Config::kSplit > 1) {
    if (threadIdx.x == 0) {
      init_barrier(&shared.arrived[0], 1);
      init_barrier(&shared.arrived[1], 1);
      fence_barrier_init();
    }
    __syncwarp();              // the first warp arrives after its first lane
    cluster_arrive_relaxed();  // this block runs and has its barriers: the other may write here
  }
  load_constants<Config>(args, piece, shared);
  wait_for_inputs();
  const ops::RowSpan span = batch.spans[span_head / heads];
  const std::byte* later = nullptr;
  if (Config::kBlocksPerSm > 1 && threadIdx.x == 0)
    later = later_matrix(args, batch, span_head + heads_at_once);
  // All fields are read before any is judged.
  if (static_cast<int>(span.slot == nullptr) |
      (static_cast<int>(span.num_rows == 0) & static_cast<int>(!args.verify)))
    return;
  if (threadIdx.x == 0) {
    *reinterpret_cast<ops::RowSpan*>(shared.span) = span;
    shared.later_matrix = later;
  }

  const bool has_cells = Config::kWarps == Config::kCellWarps || warp_id() < Config::kCellWarps;
  // The second of two blocks that start together on a multiprocessor lets the first one have the
  // memory, so that one computes while the other loads.
  const bool loads_late =
      Config::kBlocksPerSm > 1 && span_head >= heads_at_once / 2 && span_head < heads_at_once;
  float* const cells = warp_cells<Config>(args, piece, span.slot);
  DeltaTile tile;
  if (has_cells && !loads_late) tile.load<kGdnDim>(cells);
  // Not through a register: the compiler would wait for it before the rows are staged.
  if (args.verify && threadIdx.x == 0) copy_async_4(&shared.count, accepted_place(args, span));
  commit_copies();
  const int total = piece.held + span.num_rows;
  __syncthreads();                                   // the constants and the span are there
  if constexpr (Config::kSplit > 1) cluster_wait();  // the other block runs

  for (int first = 0; first < total; first += Config::kTileRows) {
    const int rows = min(Config::kTileRows, total - first);
    if (first > 0) __syncthreads();  // the last tile is read
    stage_rows<Config>(args, piece, first, rows, shared);
    if (first == 0 && loads_late) tile.load<kGdnDim>(cells);
    if (first == 0) allow_next_kernel();
    wait_copies<0>();
    __syncthreads();  // the rows of the tile and the number of accepted ones are there

    if (has_cells) {
      const int accepted = args.verify ? accepted_rows(args, shared.count) : 0;
      const int replayed = min(accepted - first, rows);
      for (int row = 0; row < replayed; ++row) {
        run_row<true, Config>(tile, row, shared);
        if (first + row == 0) prefetch_later<Config>(shared);
        if (first + row + 1 == accepted) tile.store<kGdnDim>(cells);
      }
      for (int row = max(piece.held - first, 0); row < rows; ++row) {
        run_row<false, Config>(tile, row, shared);
        if (first + row == 0) prefetch_later<Config>(shared);
      }
      if (!args.verify && first + rows == total) tile.store<kGdnDim>(cells);
    }
    if (args.verify) store_pending_values<Config>(args, piece, first, rows, shared);
    finish_rows<Config>(args, piece, first, rows, shared);
    if (args.verify) store_pending_keys<Config>(args, piece, first, rows, shared);
  }
#endif
}

}  // namespace tessera::cuda::device
