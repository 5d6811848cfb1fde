// SPDX-License-Identifier: Apache-2.0
// Mixer: decode rows of a known size run in one launch, prompts of the released rank in a few,
// everything else in several.
#include <algorithm>
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
void require_resident(Context& context, const MixerLaunch& entry, int blocks) {
  const auto* kernel = reinterpret_cast<const void*>(entry.kernel);
  context.prepare_kernel(kernel, entry.shared_bytes);
  int per_sm = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &per_sm, kernel, static_cast<int>(entry.threads), entry.shared_bytes));
  const int places = per_sm * context.gpu().num_sms;
  if (places < blocks)
    throw std::runtime_error("mixer: the device holds " + std::to_string(places) +
                             " blocks at once, expected " + std::to_string(blocks) +
                             "; is it shared or partitioned?");
}

/// One piece of handover memory per tile, because its launches must all have one size.
constexpr char kMemoryTags[kMixerTiles.size()] = {};

void launch_mixer_sm90(Context& context, const ops::MixerArgs& args, size_t index) {
  static const auto kTable = launch_table(std::make_index_sequence<kMixerTiles.size()>());
  static std::array<bool, kMixerTiles.size()> resident{};
  const MixerTile& tile = kMixerTiles[index];
  const MixerLaunch& entry = kTable[index];
  if (!resident[index]) {
    require_resident(context, entry, tile.blocks());
    resident[index] = true;
  }
  const auto wide = static_cast<size_t>(tile.wide()), hidden = static_cast<size_t>(tile.hidden);
  const auto* normed = static_cast<const Bf16*>(args.normed);
  if (normed == nullptr) {
    void* scratch = context.scratch(static_cast<size_t>(args.rows) * wide * sizeof(Bf16));
    launch_branch_norm(context, args, 0, args.rows, scratch);
    normed = static_cast<const Bf16*>(scratch);
  }
  const MixerMemory memory(tile);
  auto* base = static_cast<std::byte*>(context.persistent(&kMemoryTags[index], memory.total));
  const ops::MixerWeights& weights = args.weights;
  for (int first = 0; first < args.rows; first += kMixerMostRows) {
    const auto row = static_cast<size_t>(first);
    float* inject = args.inject == nullptr ? nullptr : args.inject + row * MixerTile::kBranches;
    const device::MixerParams params{
        .normed = normed + row * wide,
        .down = static_cast<const Bf16*>(weights.down.data),
        .inject_weight =
            inject == nullptr ? nullptr : static_cast<const Bf16*>(weights.inject.data),
        .up = static_cast<const Bf16*>(weights.up.data),
        .mixed = static_cast<Bf16*>(args.mixed) + row * hidden,
        .inject = inject,
        .launches = reinterpret_cast<uint32_t*>(base + memory.launches),
        .low = reinterpret_cast<Bf16*>(base + memory.low),
        .partial = reinterpret_cast<float*>(base + memory.partial),
        .inject_partial = reinterpret_cast<float*>(base + memory.inject),
        .rows = std::min(args.rows - first, kMixerMostRows)};
    launch(context,
           {.grid = {static_cast<unsigned>(tile.blocks())},
            .block = {entry.threads},
            .shared_bytes = entry.shared_bytes},
           entry.kernel, params);
  }
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
