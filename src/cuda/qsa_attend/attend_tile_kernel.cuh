// SPDX-License-Identifier: Apache-2.0
// Attention over gathered blocks on tensor cores: a cluster runs a few rows of a sequence for one
// K/V head, each of its teams a share of a row's tiles, and folds the shares through distributed
// shared memory.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/qsa_attend/attend_team.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

inline constexpr int kGateLineDims = 64;  // of 128 bytes

/// Four neighbouring dims of one head of one row.
struct OutputUnit {
  static constexpr int kDims = 4;
  int row, head, dim;

  /// Unit `unit` of the `share` units of block `block`: a run of them, or the block's dims of all
  /// heads where these were pushed to it.
  template <class Config>
  __device__ static OutputUnit at(int block, int unit, int share) {
    if constexpr (Config::kOneTile) {
      constexpr int kHeadUnits = Config::kDim / Config::kSplits / kDims;
      return {0, unit / kHeadUnits, (block * kHeadUnits + unit % kHeadUnits) * kDims};
    } else {
      constexpr int kHeadUnits = Config::kDim / kDims;
      unit += block * share;
      return {unit / (kHeadUnits * Config::kGroup), unit / kHeadUnits % Config::kGroup,
              unit % kHeadUnits * kDims};
    }
  }
};

/// A unit over some tokens.
struct UnitSum {
  Partial partial;
  float4 sum{};

  __device__ void add(const UnitSum& other) {
    if (other.partial.empty()) return;
    const FoldFactors factors = fold(partial, other.partial);
    sum = {fold_value(factors, sum.x, other.sum.x), fold_value(factors, sum.y, other.sum.y),
           fold_value(factors, sum.z, other.sum.z), fold_value(factors, sum.w, other.sum.w)};
  }
  /// That of lane `lane` of every four.
  __device__ UnitSum of_lane(int lane) const {
    constexpr int kLanes = 4;
    const auto get = [&](float value) { return __shfl_sync(kAllLanes, value, lane, kLanes); };
    return {{get(partial.peak), get(partial.sum)},
            {get(sum.x), get(sum.y), get(sum.z), get(sum.w)}};
  }
};

/// Folds what the teams of ranks `first` .. `end` - 1 left, in this order.
template <class Config>
__device__ UnitSum fold_ranks(AttendShared<Config>& shared, const OutputUnit& unit, int first,
                              int end) {
  constexpr int kMost = Config::kPartRanks;
  float2 partial[kMost];
  float4 sum[kMost];
#pragma unroll
  for (int index = 0; index < kMost; ++index) {
    const int rank = first + index;
    if (rank >= end) continue;
    if constexpr (Config::kOneTile) {
      partial[index] = shared.inbox.partial[rank][unit.head];
      const int dim = unit.dim % AttendInbox<Config>::kDims;
      sum[index] = *reinterpret_cast<const float4*>(&shared.inbox.sums[rank][unit.head][dim]);
    } else {
      auto& team = shared.team[unit.row * Config::kRowTeams + rank % Config::kRowTeams];
      const int block = rank / Config::kRowTeams;
      const uint4 peak = load_remote(remote_address(&team.partial[unit.head], block));
      const uint4 four = load_remote(remote_address(&team.sums[unit.head][unit.dim], block));
      partial[index] = {__uint_as_float(peak.x), __uint_as_float(peak.y)};
      sum[index] = {__uint_as_float(four.x), __uint_as_float(four.y), __uint_as_float(four.z),
                    __uint_as_float(four.w)};
    }
  }
  UnitSum total;
#pragma unroll
  for (int index = 0; index < kMost; ++index)
    if (first + index < end) total.add({{partial[index].x, partial[index].y}, sum[index]});
  return total;
}

/// Asks for the gates, which write_output reads last.
template <class Config>
__device__ void prefetch_gates(const ops::QsaAttendArgs& args, int first_row, int num_rows,
                               int kv_head, int block) {
  // A block writes all dims of some heads or some dims of all heads; asking for a line of each
  // piece of its share covers both.
  constexpr int kPieceDims = Config::kOneTile ? AttendInbox<Config>::kDims : kGateLineDims;
  constexpr int kHeadPieces = Config::kOneTile ? 1 : Config::kDim / kPieceDims;
  const int pieces = num_rows * Config::kGroup * kHeadPieces;
  const int piece = static_cast<int>(threadIdx.x);
  if (piece >= pieces) return;
  const int row = piece / (Config::kGroup * kHeadPieces);
  const int head = kv_head * Config::kGroup + piece / kHeadPieces % Config::kGroup;
  const int dim = Config::kOneTile ? block * kPieceDims : piece % kHeadPieces * kPieceDims;
  const auto vector = static_cast<size_t>(first_row + row) * static_cast<size_t>(args.shape.heads) +
                      static_cast<size_t>(head);
  prefetch_line(static_cast<const Bf16*>(args.q_gate) + (2 * vector + 1) * Config::kDim + dim);
}

/// What the last step needs, kept out of registers until then.
template <class Config>
__device__ void keep_group(AttendShared<Config>& shared, int kv_head, const AttendRows& rows) {
  if (threadIdx.x == 0)
    shared.kv_head = kv_head, shared.first_row = rows.first, shared.num_rows = rows.count;
}

/// The gated result of the cluster's rows, its blocks share out the units. Tiles are folded into
/// parts, parts into the result; where a part has many tiles, each lane of four folds one part.
template <class Config>
__device__ void write_output(AttendShared<Config>& shared, const ops::QsaAttendArgs& args,
                             int first_row, int num_rows, int kv_head, int block, int part_ranks) {
  constexpr int kUnitLanes = Config::kOneTile ? kAttendParts : 1;
  constexpr int kRowUnits = Config::kGroup * Config::kDim / OutputUnit::kDims;
  constexpr int kRowShare = kRowUnits * kUnitLanes / Config::kSplits;  // threads of a block
  static_assert(kRowShare % kWarp == 0, "whole warps shuffle");
  const int share = num_rows * kRowShare;
  for (int index = static_cast<int>(threadIdx.x); index < share; index += Config::kThreads) {
    const auto unit = OutputUnit::at<Config>(block, index / kUnitLanes, share / kUnitLanes);
    const size_t head =
        static_cast<size_t>(first_row + unit.row) * static_cast<size_t>(args.shape.heads) +
        static_cast<size_t>(kv_head) * Config::kGroup + static_cast<size_t>(unit.head);
    const auto* gate = static_cast<const Bf16*>(args.q_gate) + (2 * head + 1) * Config::kDim;
    const uint2 gates = *reinterpret_cast<const uint2*>(gate + unit.dim);
    if constexpr (Config::kOneTile) wait_barrier(&shared.inbox.full, 0);
    const auto fold_part = [&](int part) {
      const int first = part * part_ranks;
      return fold_ranks(shared, unit, first, min(first + part_ranks, Config::kRanks));
    };
    UnitSum total;
    if constexpr (kUnitLanes == 1) {
#pragma unroll
      for (int part = 0; part < kAttendParts; ++part) total.add(fold_part(part));
    } else {
      const UnitSum mine = fold_part(index % kUnitLanes);
#pragma unroll
      for (int part = 0; part < kAttendParts; ++part) total.add(mine.of_lane(part));
      if (index % kUnitLanes != 0) continue;
    }
    const float scale = 1.0F / total.partial.sum;
    const float2 low = unpack_bf16(gates.x), high = unpack_bf16(gates.y);
    auto* out = static_cast<Bf16*>(args.out) + head * Config::kDim + unit.dim;
    *reinterpret_cast<uint2*>(out) = {
        pack_bf16(total.sum.x * scale * sigmoid(low.x), total.sum.y * scale * sigmoid(low.y)),
        pack_bf16(total.sum.z * scale * sigmoid(high.x), total.sum.w * scale * sigmoid(high.y))};
  }
}

#endif

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attend_tile_kernel(ops::QsaAttendArgs args, Batch batch, AttendSplit split) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) std::byte dynamic_shared[];
  auto& shared = *reinterpret_cast<AttendShared<Config>*>(dynamic_shared);
  const int cluster = static_cast<int>(blockIdx.x) / Config::kSplits;
  const int block = static_cast<int>(blockIdx.x) % Config::kSplits;
  const int kv_head = cluster % args.shape.kv_heads, group = cluster / args.shape.kv_heads;
  const int team = warp_id() / Config::kTeamWarps;
  const int row = team / Config::kRowTeams;  // of the group
  const int rank = block * Config::kRowTeams + team % Config::kRowTeams;
  const int first_tile = rank * split.tiles_per_rank;
  const int end_tile = min(first_tile + split.tiles_per_rank, split.num_tiles);

  AttendTeam<Config> worker(shared.team[team], args, kv_head, team);
  if constexpr (Config::kOneTile) {
    if (threadIdx.x == 0) {
      init_barrier(&shared.inbox.full, 1);
      fence_barrier_init();
      arrive_expect(&shared.inbox.full, AttendInbox<Config>::kBytes);
    }
    __syncwarp();
    cluster_arrive_relaxed();
  }
  wait_for_inputs();
  allow_next_kernel();
  if constexpr (Config::kOneTile) {
    // A group of one row is that row of the launch, whatever its sequence: its list is asked for
    // before the sequence is known.
    const auto begun = worker.start(group, false, first_tile);
    const AttendRows rows = find_rows<Config::kRows>(batch, group);
    if (rows.count == 0) return;  // the whole cluster: the row is of no sequence
    prefetch_gates<Config>(args, group, 1, kv_head, block);
    worker.run(begun, rows.position, rows.pages, first_tile, end_tile, split.num_tiles - 1);
  } else {
    const AttendRows rows = find_rows<Config::kRows>(batch, group);
    if (rows.count == 0) return;  // the whole cluster: more groups were launched than there are
    prefetch_gates<Config>(args, rows.first, rows.count, kv_head, block);
    keep_group(shared, kv_head, rows);
    if (row < rows.count) {
      const auto begun = worker.start(rows.first + row, row > 0, first_tile);
      worker.run(begun, rows.position + row, rows.pages, first_tile, end_tile, split.num_tiles - 1);
      worker.publish();
    }
  }
  if constexpr (Config::kOneTile) {
    cluster_wait();  // the barriers of all blocks are initialised
    worker.push(shared.inbox, rank);
    // A block stays until all has been pushed to it, so every push finds its block there.
    write_output(shared, args, group, 1, kv_head, block, split.tiles_per_part);
  } else {
    __syncwarp();
    cluster_sync();  // every team has published its sums
    write_output(shared, args, shared.first_row, shared.num_rows, shared.kv_head, cluster_rank(),
                 1);
    __syncwarp();
    cluster_sync();  // nobody reads this block's shared memory any more
  }
#endif
}

}  // namespace tessera::cuda::device
