// SPDX-License-Identifier: Apache-2.0
// Sparse attention: choice of the kernel and of how rows and tiles are spread over thread blocks.
#include "cuda/qsa_attend/qsa_attend.h"

#include <array>
#include <string>
#include <utility>

#include "cuda/cuda_kernels.h"
#include "cuda/qsa_attend/attend_any_kernel.cuh"
#include "cuda/qsa_attend/attend_tile_kernel.cuh"
#include "cuda/qsa_attend/attend_union_kernel.cuh"
#include "cuda/qsa_attend/qsa_attend_plan.h"

namespace tessera::cuda {
namespace {

using TileKernel = void (*)(ops::QsaAttendArgs, device::Batch, AttendSplit);

struct TileLaunch {
  TileKernel kernel;
  unsigned threads;
  size_t shared_bytes;
};

template <class Cache, size_t... kIndices>
auto tile_table(std::index_sequence<kIndices...>) {
  return std::array<TileLaunch, sizeof...(kIndices)>{
      TileLaunch{device::attend_tile_kernel<device::AttendConfig<Cache, kIndices>>,
                 device::AttendConfig<Cache, kIndices>::kThreads,
                 sizeof(device::AttendShared<device::AttendConfig<Cache, kIndices>>)}...};
}

const TileLaunch& tile_launch(DType cache, int index) {
  constexpr auto kIndices = std::make_index_sequence<kAttendTiles.size()>();
  static const auto kBf16 = tile_table<device::Bf16Cache>(kIndices);
  static const auto kF8 = tile_table<device::F8Cache>(kIndices);
  return (cache == DType::kBF16 ? kBf16 : kF8)[static_cast<size_t>(index)];
}

/// Clusters of this kind that the device runs at once; permits clusters beyond the portable size.
int resident_clusters(DType cache, int index) {
  const TileLaunch& tile = tile_launch(cache, index);
  const auto* function = reinterpret_cast<const void*>(tile.kernel);
  check(cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(tile.shared_bytes)));
  const auto splits = static_cast<unsigned>(kAttendTiles[static_cast<size_t>(index)].splits);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = splits;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = splits;
  config.blockDim = tile.threads;
  config.dynamicSmemBytes = tile.shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, function, &config));
  return clusters;
}

struct Residency {
  int single;
  int wide;
};

/// Asked once: the devices of a process are alike.
const Residency& residency(DType cache) {
  static const Residency kBf16{resident_clusters(DType::kBF16, kSingleRowTile),
                               resident_clusters(DType::kBF16, kWideTile)};
  static const Residency kF8{resident_clusters(DType::kF8E4M3, kSingleRowTile),
                             resident_clusters(DType::kF8E4M3, kWideTile)};
  return cache == DType::kBF16 ? kBf16 : kF8;
}

void launch_tiles(Context& context, const ops::QsaAttendArgs& args) {
  const DType cache = args.cache.keys.dtype;
  const auto num_spans = static_cast<int>(args.batch.spans.size());
  const Residency& fits = residency(cache);
  const int index = plan_attend(args.batch.role, num_spans, args.batch.num_rows,
                                args.shape.kv_heads, args.budget_blocks, fits.single, fits.wide);
  const AttendTile& tile = kAttendTiles[static_cast<size_t>(index)];
  const int groups = max_attend_groups(num_spans, args.batch.num_rows, tile.rows);
  const TileLaunch& kernel = tile_launch(cache, index);
  launch(context,
         {.grid = {static_cast<unsigned>(groups * args.shape.kv_heads * tile.splits)},
          .block = {kernel.threads},
          .shared_bytes = kernel.shared_bytes,
          .cluster = static_cast<unsigned>(tile.splits)},
         kernel.kernel, args, context.batch(), split_attend(args.budget_blocks, tile.splits));
}

void launch_union(Context& context, const ops::QsaAttendArgs& args) {
  int groups = 0;
  for (const ops::RowSpan& span : args.batch.spans)
    groups += UnionPlan::groups(span.position, span.num_rows);
  launch(context,
         {.grid = {static_cast<unsigned>(groups * args.shape.kv_heads)},
          .block = {device::UnionAttend::kThreads},
          .shared_bytes = sizeof(device::UnionShared)},
         device::attend_union_kernel<device::UnionAttend>, args, context.batch(), groups);
}

}  // namespace

void launch_qsa_attend_any(Context& context, const ops::QsaAttendArgs& args) {
  using Config = device::AttendAny;
  launch(context,
         {.grid = {static_cast<unsigned>(args.batch.num_rows) *
                   static_cast<unsigned>(args.shape.heads)},
          .block = {Config::kThreads},
          .shared_bytes = 2 * static_cast<size_t>(args.shape.head_dim) * sizeof(float)},
         device::attend_any_kernel<Config>, args, context.batch());
}

void launch_qsa_attend(Context& context, const ops::QsaAttendArgs& args) {
  if (!supports_fast_attend(args.shape, args.cache, context.gpu()).empty())
    launch_qsa_attend_any(context, args);
  else if (supports_union_attend(args).empty())
    launch_union(context, args);
  else
    launch_tiles(context, args);
}

ops::KernelNote note_qsa_attend(const GpuSpec& gpu) {
  // Heads and aligned pages of the released model; a launch of other shapes takes the generic
  // kernel.
  const ops::QsaShape shape{.heads = FastAttendShape::kGroup,
                            .kv_heads = 1,
                            .head_dim = FastAttendShape::kHeadDim,
                            .block = FastAttendShape::kBlock};
  ops::QsaCache cache;
  cache.keys.dtype = cache.values.dtype = DType::kBF16;
  const std::string_view reason = supports_fast_attend(shape, cache, gpu);
  if (!reason.empty()) return {"qsa_attend", "online softmax in FP32", std::string(reason)};
  return {
      "qsa_attend",
      "sm_90a: tiles of 32 blocks for decode rows, wgmma over the blocks of 8 queries for prompts",
      "12 heads of 256 per K/V head, blocks of 4; prompts on E4M3: as decode rows"};
}

}  // namespace tessera::cuda
