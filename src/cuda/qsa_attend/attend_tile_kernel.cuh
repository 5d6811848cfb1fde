// SPDX-License-Identifier: Apache-2.0
// Attention over gathered blocks on tensor cores: a cluster runs a few rows of a sequence for one
// K/V head, each of its blocks a share of the tiles, and folds the shares through distributed
// shared memory.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/qsa_attend/attend_consumer.cuh"
#include "cuda/qsa_attend/attend_producer.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/// Four neighbouring dims of one head of one row.
struct OutputUnit {
  int row, head, dim;

  template <class Config>
  __device__ static OutputUnit at(int unit) {
    constexpr int kVector = 4, kHeadUnits = Config::kDim / kVector;
    return {unit / (kHeadUnits * Config::kGroup), unit / kHeadUnits % Config::kGroup,
            unit % kHeadUnits * kVector};
  }
};

/// Folds what the blocks of the cluster published: tiles into parts, parts into the result.
template <class Config>
__device__ float4 merge_unit(AttendShared<Config>& shared, const OutputUnit& unit,
                             int blocks_per_part) {
  constexpr int kBatch = Config::kSplits < 8 ? Config::kSplits : 8;  // remote reads in flight
  Partial total, part;
  float4 total_sum{}, part_sum{};
  const auto add = [](Partial& into, float4& into_sum, const Partial& from, const float4& sum) {
    if (from.empty()) return;
    const FoldFactors factors = fold(into, from);
    into_sum = {fold_value(factors, into_sum.x, sum.x), fold_value(factors, into_sum.y, sum.y),
                fold_value(factors, into_sum.z, sum.z), fold_value(factors, into_sum.w, sum.w)};
  };
  int in_part = 0;
#pragma unroll
  for (int first = 0; first < Config::kSplits; first += kBatch) {
    uint4 partial[kBatch], sum[kBatch];
#pragma unroll
    for (int rank = 0; rank < kBatch; ++rank) {
      partial[rank] =
          load_remote(remote_address(&shared.partial[unit.row][unit.head], first + rank));
      sum[rank] =
          load_remote(remote_address(&shared.sums[unit.row][unit.head][unit.dim], first + rank));
    }
#pragma unroll
    for (int rank = 0; rank < kBatch; ++rank) {
      add(part, part_sum, {__uint_as_float(partial[rank].x), __uint_as_float(partial[rank].y)},
          {__uint_as_float(sum[rank].x), __uint_as_float(sum[rank].y), __uint_as_float(sum[rank].z),
           __uint_as_float(sum[rank].w)});
      if (++in_part < blocks_per_part && first + rank + 1 < Config::kSplits) continue;
      add(total, total_sum, part, part_sum);
      part = {};
      part_sum = {};
      in_part = 0;
    }
  }
  const float scale = 1.0F / total.sum;
  return {total_sum.x * scale, total_sum.y * scale, total_sum.z * scale, total_sum.w * scale};
}

/// The gated result of the cluster's rows, its blocks share out the units.
template <class Config>
__device__ void write_output(AttendShared<Config>& shared, const ops::QsaAttendArgs& args,
                             const AttendRows& rows, int kv_head, int rank, int blocks_per_part) {
  constexpr int kRowUnits = Config::kGroup * Config::kDim / 4;
  constexpr int kStride = Config::kSplits * Config::kThreads;
  for (int index = rank * Config::kThreads + static_cast<int>(threadIdx.x);
       index < rows.count * kRowUnits; index += kStride) {
    const auto unit = OutputUnit::at<Config>(index);
    const size_t head =
        static_cast<size_t>(rows.first + unit.row) * static_cast<size_t>(args.shape.heads) +
        static_cast<size_t>(kv_head) * Config::kGroup + static_cast<size_t>(unit.head);
    const auto* gate = static_cast<const Bf16*>(args.q_gate) + (2 * head + 1) * Config::kDim;
    const uint2 gates = *reinterpret_cast<const uint2*>(gate + unit.dim);
    const float4 sum = merge_unit(shared, unit, blocks_per_part);
    const float2 low = unpack_bf16(gates.x), high = unpack_bf16(gates.y);
    auto* out = static_cast<Bf16*>(args.out) + head * Config::kDim + unit.dim;
    *reinterpret_cast<uint2*>(out) = {pack_bf16(sum.x * sigmoid(low.x), sum.y * sigmoid(low.y)),
                                      pack_bf16(sum.z * sigmoid(high.x), sum.w * sigmoid(high.y))};
  }
}

#endif

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attend_tile_kernel(ops::QsaAttendArgs args, Batch batch, AttendSplit split) {
#if __CUDA_ARCH__ >= 900
  static_assert(sizeof(AttendShared<Config>) <= kHopperSharedBytes);
  extern __shared__ __align__(1024) std::byte dynamic_shared[];
  auto& shared = *reinterpret_cast<AttendShared<Config>*>(dynamic_shared);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();  // barriers are initialised
  wait_for_inputs();

  const int cluster = static_cast<int>(blockIdx.x) / Config::kSplits;
  const int rank = static_cast<int>(blockIdx.x) % Config::kSplits;
  const int kv_head = cluster % args.shape.kv_heads;
  const AttendRows rows = find_rows<Config::kRows>(batch, cluster / args.shape.kv_heads);
  if (rows.count == 0) return;  // the whole cluster: more groups were launched than there are

  if (warp_id() < Config::kConsumerWarps)
    AttendConsumer<Config>(shared, args, kv_head).run(rows);
  else
    AttendProducer<Config>(shared, args, rows, split, kv_head, rank).run();
  __syncwarp();
  allow_next_kernel();
  cluster_sync();  // every block has published its sums
  const int blocks_per_part = split.tiles_per_part / split.tiles_per_block;
  write_output(shared, args, rows, kv_head, rank, blocks_per_part);
  __syncwarp();
  cluster_sync();  // nobody reads this block's shared memory any more
#endif
}

}  // namespace tessera::cuda::device
