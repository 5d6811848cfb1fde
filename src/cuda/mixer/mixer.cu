// SPDX-License-Identifier: Apache-2.0
// Mixer: decode rows of a known size run in one launch, prompts of the released rank in a few,
// everything else in several.
#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include "cuda/cuda_kernels.h"
#include "cuda/mixer/mixer_general.h"
#include "cuda/mixer/mixer_kernel.cuh"
#include "cuda/mixer/mixer_plan.h"

namespace tessera::cuda {
namespace {

using device::Bf16;

/// One entry of the list of supported tiles.
struct MixerLaunch {
  void (*kernel)(device::MixerParams);
  unsigned threads;
  size_t shared_bytes;
};

template <size_t... kIndices>
std::array<MixerLaunch, sizeof...(kIndices)> launch_table(std::index_sequence<kIndices...>) {
  return {
      MixerLaunch{.kernel = device::mixer<device::MixerConfig<kIndices>>,
                  .threads = static_cast<unsigned>(device::MixerConfig<kIndices>::kThreads),
                  .shared_bytes = sizeof(device::MixerShared<device::MixerConfig<kIndices>>)}...};
}

MixerShape shape_of(const ops::MixerArgs& args) {
  const ops::MixerWeights& weights = args.weights;
  return {.branches = args.branches,
          .hidden = args.hidden,
          .rank = weights.down.out_features,
          .down = weights.down.dtype,
          .up = weights.up.dtype,
          .inject = weights.inject ? weights.inject.dtype : weights.down.dtype};
}

/// The blocks of a mixer wait for each other: refuse a device (or a share of one) that cannot hold
/// them together instead of waiting forever.
void require_resident(const MixerLaunch& entry, const LaunchShape& shape, int clusters) {
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(entry.kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shape.shared_bytes)));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = shape.cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int most = 0;
  check(
      cudaOccupancyMaxActiveClusters(&most, reinterpret_cast<const void*>(entry.kernel), &config));
  if (most < clusters)
    throw std::runtime_error("mixer: the device holds " + std::to_string(most) +
                             " clusters at once, expected " + std::to_string(clusters) +
                             "; is it shared or partitioned?");
}

/// One grid barrier counter per tile, because its launches must all have one size.
constexpr char kCounterTags[kMixerTiles.size()] = {};

void launch_mixer_sm90(Context& context, const ops::MixerArgs& args, size_t index) {
  static const auto kTable = launch_table(std::make_index_sequence<kMixerTiles.size()>());
  static std::array<bool, kMixerTiles.size()> resident{};
  const MixerTile& tile = kMixerTiles[index];
  const MixerLaunch& entry = kTable[index];
  const LaunchShape shape{.grid = {static_cast<unsigned>(tile.blocks())},
                          .block = {entry.threads},
                          .shared_bytes = entry.shared_bytes,
                          .cluster = MixerTile::kRanks};
  if (!resident[index]) {
    require_resident(entry, shape, tile.clusters);
    resident[index] = true;
  }

  const auto rows = static_cast<size_t>(args.rows);
  const size_t low_count = rows * static_cast<size_t>(tile.rank);
  const size_t normed_count = args.normed == nullptr ? rows * static_cast<size_t>(tile.wide()) : 0;
  // N first: its rows are a multiple of 256 bytes, so `low` is aligned as well.
  auto* scratch = static_cast<Bf16*>(context.scratch((normed_count + low_count) * sizeof(Bf16)));
  if (args.normed == nullptr) launch_branch_norm(context, args, 0, args.rows, scratch);

  const ops::MixerWeights& weights = args.weights;
  const device::MixerParams params{
      .normed = args.normed == nullptr ? scratch : static_cast<const Bf16*>(args.normed),
      .down = static_cast<const Bf16*>(weights.down.data),
      .inject_weight =
          args.inject == nullptr ? nullptr : static_cast<const Bf16*>(weights.inject.data),
      .up = static_cast<const Bf16*>(weights.up.data),
      .low = scratch + normed_count,
      .mixed = static_cast<Bf16*>(args.mixed),
      .inject = args.inject,
      .counter = static_cast<uint32_t*>(context.persistent(&kCounterTags[index], sizeof(uint32_t))),
      .rows = args.rows};
  launch(context, shape, entry.kernel, params);
}

}  // namespace

void launch_mixer(Context& context, const ops::MixerArgs& args) {
  if (args.rows == 0) return;
  const MixerShape shape = shape_of(args);
  const auto supported = [](const char* reason) { return reason[0] == '\0'; };
  if (args.role == ops::Role::kDecode) {
    if (supported(supports_mixer_sm90(shape, context.gpu())))
      return launch_mixer_sm90(context, args, static_cast<size_t>(plan_mixer(shape)));
  } else if (supported(supports_mixer_prompt(shape, context.gpu()))) {
    return launch_mixer_prompt(context, args);
  }
  launch_mixer_general(context, args);
}

ops::KernelNote note_mixer(const GpuSpec& gpu) {
  const MixerTile& released = kMixerTiles[0];
  const std::string reason = supports_mixer_sm90(
      {.branches = MixerTile::kBranches, .hidden = released.hidden, .rank = released.rank}, gpu);
  if (reason.empty())
    return {.op = "mixer",
            .kernel = "sm_90a, one launch",
            .reason =
                "decode rows of the released sizes; prompts: the library's down product, "
                "gates and mean in the up product"};
  return {.op = "mixer", .kernel = "norm, products and gates one by one", .reason = reason};
}

}  // namespace tessera::cuda
