// SPDX-License-Identifier: Apache-2.0
// Experts of generated rows: gate and up with their product, then down, in one launch at the speed
// of memory. Rows that chose the same expert share one pass over its weights. A row's bits depend
// on its own column only: K is cut by the geometry and added in a fixed order.
#pragma once

#include "cuda/device/pdl.cuh"
#include "cuda/device/prefetch.cuh"
#include "cuda/moe/stream_consumer.cuh"

namespace tessera::cuda::device {

struct StreamShared {
  StreamRing rings[moe::StreamGeometry::kSets];
  union {
    StreamSums sums[2];
    StreamSorting sorting;
  };
  StreamTables tables;
  int filled;  // producers that have asked for their last stage
};
/// By phase.
struct StreamMapTable {
  StreamMaps segments[kStreamPhases];
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// This block's ranges of one product, with `groups` groups of routed rows. One thread.
__device__ __forceinline__ void share_tiles(const StreamArgs& args, StreamTables& tables,
                                            int shared_phase, int groups) {
  constexpr int kColumns = moe::StreamGeometry::kColumns;
  const StreamSegment& shared = args.segments[shared_phase];
  const StreamSegment& routed = args.segments[shared_phase + 1];
  const int shared_groups = (args.rows + kColumns - 1) / kColumns;
  const moe::StreamShare share = moe::share_of(
      static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), shared_groups * shared.tiles,
      shared.split.slices, groups * routed.tiles, routed.split.slices);
  tables.begins[shared_phase] = share.shared_begin;
  tables.ends[shared_phase] = share.shared_end;
  tables.begins[shared_phase + 1] = share.routed_begin;
  tables.ends[shared_phase + 1] = share.routed_end;
}
__device__ __forceinline__ void share_all(const StreamArgs& args, StreamTables& tables,
                                          int groups) {
  if (lane_id() == 0 && warp_id() < 2)
    share_tiles(args, tables, warp_id() == 0 ? kSharedUp : kSharedDown, groups);
  __syncthreads();  // the ranges are there
}

/// The memory idles until the routing is known: the block's tiles of the shared expert's down
/// matrix come into the L2 meanwhile. One thread.
__device__ __forceinline__ void prefetch_shared_down(const StreamArgs& args,
                                                     const StreamTables& tables) {
  const StreamSegment& segment = args.segments[kSharedDown];
  const int begin = tables.begins[kSharedDown];
  const int tiles = min(tables.ends[kSharedDown], segment.tiles) - begin;  // of its first pass
  const size_t tile_bytes = static_cast<size_t>(segment.step) * segment.row_bytes;
  if (tiles > 0)
    prefetch_bulk(args.shared_down + static_cast<size_t>(begin) * tile_bytes,
                  static_cast<uint32_t>(static_cast<size_t>(tiles) * tile_bytes));
}

#endif

/// The grid is resident as a whole: one block per multiprocessor.
static __global__ void __launch_bounds__(moe::StreamGeometry::kThreads, 1)
    experts_stream(const __grid_constant__ StreamArgs args,
                   const __grid_constant__ StreamMapTable maps) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Geometry = moe::StreamGeometry;
  constexpr int kNoLimit = 1 << 30;
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<StreamShared*>(memory);
  const int producer = warp_id() - Geometry::kWarps;  // negative: a consumer
  if (producer >= 0 && lane_id() == 0) {
    shared.rings[producer].init();
    fence_barrier_init();
    shared.filled = 0;
    for (const StreamMaps& map : maps.segments) prefetch_map(map.low), prefetch_map(map.high);
  }
  clear_counts(shared.sorting);
  share_all(args, shared.tables, 0);  // and the barriers are there
  // Every warp has one: a consumer's is never used, and costs nothing.
  StreamProducer feed(args, maps.segments, shared.tables, shared.rings[max(producer, 0)], producer);
  // Weights of the shared expert: constants, and its rows need no routing.
  if (producer >= 0) feed.fill(kSharedUp + 1, Geometry::kStages);
  if (producer == 0 && lane_id() == 0) prefetch_shared_down(args, shared.tables);
  wait_for_inputs();
  group_pairs(shared.tables, shared.sorting, args.ids, args.rows * args.top_k, args.top_k);
  share_all(args, shared.tables, shared.tables.num_groups);
  if (producer >= 0) {
    feed.fill(kStreamPhases, kNoLimit);
    // The last loads are under way: what the next kernel loads early no longer delays them. One
    // call counts for the block, so the producer that is done last makes it.
    if (lane_id() == 0 && atomicAdd(&shared.filled, 1) == Geometry::kSets - 1) allow_next_kernel();
    return;
  }
  StreamConsumer(args, shared.tables, shared.rings, shared.sums).run();
#endif
}

}  // namespace tessera::cuda::device
