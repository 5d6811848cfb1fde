// SPDX-License-Identifier: Apache-2.0
// The linear op: parts of a launch go to the streaming or the generic kernel on the decode path, to
// the GEMM library on the prefill path.
#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "cuda/cuda_kernels.h"
#include "cuda/linear/blas.h"
#include "cuda/linear/gemm.h"
#include "cuda/linear/generic_kernel.cuh"
#include "cuda/linear/held_kernel.cuh"

namespace tessera::cuda {
namespace {

DType stored_as(ops::Output output) {
  return output == ops::Output::kFloat ? DType::kF32 : DType::kBF16;
}

void launch_generic(Context& context, const void* x, int rows, const ops::LinearPart& part) {
  using Config = GenericLinearConfig;
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(divide_up(part.weight.out_features, Config::kWarps)),
                   static_cast<unsigned>(divide_up(rows, Config::kRows))),
      .block = dim3(Config::kThreads)};
  const GenericLinearArgs args{.x = static_cast<const device::Bf16*>(x),
                               .weight = part.weight,
                               .y = part.y,
                               .y_dtype = stored_as(part.output),
                               .rows = rows};
  launch(context, shape, generic_linear<Config>, args);
}

StreamPart part_of(const ops::LinearPart& part) {
  const ops::LinearWeight& weight = part.weight;
  return {.weight = static_cast<const std::byte*>(weight.data),
          .scale = weight.dtype == DType::kF8E4M3 ? weight.scale : nullptr,
          .y = part.y,
          .y_dtype = stored_as(part.output),
          .out_features = weight.out_features,
          .scale_cols = weight.scale_cols()};
}

template <class Config>
void launch_held_config(Context& context, const HeldPlan& plan, const HeldArgs& args) {
  static_assert(sizeof(HeldShared<Config>) == Config::kSharedBytes);
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(plan.passes * plan.cluster),
                   static_cast<unsigned>(plan.teams)),
      .block = dim3(Config::kThreads),
      .shared_bytes = Config::kGroups == 1 ? Config::kLocalBytes : Config::kSharedBytes,
      .cluster = static_cast<unsigned>(plan.cluster)};
  launch(context, shape, held_linear<Config>, args);
}

/// In the order of kHeldBf16 and kHeldF8.
using LaunchHeld = void (*)(Context&, const HeldPlan&, const HeldArgs&);
constexpr LaunchHeld kLaunchHeldBf16[] = {
    launch_held_config<HeldUpTo8>, launch_held_config<HeldUpTo16>, launch_held_config<HeldUpTo32>,
    launch_held_config<HeldUpTo64>, launch_held_config<HeldUpTo128>};
constexpr LaunchHeld kLaunchHeldF8[] = {
    launch_held_config<HeldF8UpTo8>, launch_held_config<HeldF8UpTo16>,
    launch_held_config<HeldF8UpTo32>, launch_held_config<HeldF8UpTo64>};
static_assert(std::size(kLaunchHeldBf16) == kHeldBf16.size());
static_assert(std::size(kLaunchHeldF8) == kHeldF8.size());

/// Clusters of this size that run at once with one block per SM: they stay inside a GPC, and not
/// every GPC has the same number of SMs.
int ask_clusters(const Context& context, int cluster) {
  using Config = HeldUpTo8;
  const auto* kernel = reinterpret_cast<const void*>(held_linear<Config>);
  const size_t all_shared = context.gpu().shared_bytes_per_block;
  context.prepare_kernel(kernel, all_shared);
  cudaLaunchAttribute shape{};
  shape.id = cudaLaunchAttributeClusterDimension;
  shape.val.clusterDim.x = static_cast<unsigned>(cluster);
  shape.val.clusterDim.y = shape.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(Config::kThreads);
  config.dynamicSmemBytes = all_shared;
  config.attrs = &shape;
  config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return std::max(1, clusters);
}

/// The devices of a process are alike: each size is asked for once.
int clusters_at_once(const Context& context, int cluster) {
  if (cluster == 1) return context.gpu().num_sms;
  static std::mutex mutex;
  static std::array<int, HeldGeometry::kWarps + 1> known{};
  const std::lock_guard lock(mutex);
  int& clusters = known[static_cast<size_t>(cluster)];
  if (clusters == 0) clusters = ask_clusters(context, cluster);
  return clusters;
}

/// Parts of one weight type that the kernel can read.
void launch_held(Context& context, const void* x, int rows,
                 std::span<const ops::LinearPart> parts) {
  HeldArgs args{};
  args.x = static_cast<const device::Bf16*>(x);
  args.rows = rows;
  args.in_features = parts.front().weight.in_features;
  args.row_bytes = static_cast<int>(parts.front().weight.row_bytes());
  const DType type = parts.front().weight.dtype;
  for (size_t index = 0; index < parts.size(); ++index) {
    StreamPart& part = args.parts[index] = part_of(parts[index]);
    part.first = args.total_rows;
    part.end = args.total_rows += part.out_features;
  }
  HeldPlan plan = choose_held(rows, type, context.gpu());
  plan = plan_held(plan, args.total_rows, clusters_at_once(context, plan.cluster));
  args.rows_per_team = plan.rows_per_team;
  args.splits = held_splits(args.in_features, type);
  args.cluster = plan.cluster;
  if (plan.teams == 0) return;
  (type == DType::kF8E4M3 ? kLaunchHeldF8 : kLaunchHeldBf16)[plan.config](context, plan, args);
}

}  // namespace

void gemv_decode(Context& context, const void* x, int rows,
                 std::span<const ops::LinearPart> parts) {
  if (rows == 0) return;
  std::vector<ops::LinearPart> bf16, f8;
  for (const ops::LinearPart& part : parts) {
    if (part.weight.out_features == 0) continue;
    if (!supports_stream(part.weight, x, context.gpu()).empty()) {
      launch_generic(context, x, rows, part);
      continue;
    }
    std::vector<ops::LinearPart>& streamed = part.weight.dtype == DType::kF8E4M3 ? f8 : bf16;
    streamed.push_back(part);
    if (streamed.size() < kMaxStreamParts) continue;
    launch_held(context, x, rows, streamed);
    streamed.clear();
  }
  for (const auto& streamed : {bf16, f8})
    if (!streamed.empty()) launch_held(context, x, rows, streamed);
}

void launch_linear(Context& context, const ops::LinearArgs& args) {
  if (args.rows == 0) return;
  if (args.role == ops::Role::kDecode) return gemv_decode(context, args.x, args.rows, args.parts);
  for (const ops::LinearPart& part : args.parts)
    gemm_prefill(context, args.x, args.rows, part.weight, part.y, part.output);
}

ops::KernelNote note_linear(const GpuSpec& gpu) {
  // Any weight of whole memory lines stands for those of the released model.
  const ops::LinearWeight weight{.data = nullptr,
                                 .dtype = DType::kBF16,
                                 .scale = nullptr,
                                 .out_features = StreamGeometry::kTileRows,
                                 .in_features = StreamGeometry::kSliceBytes};
  const std::string_view refusal = supports_stream(weight, nullptr, gpu);
  const std::string_view library = PinnedGemm::of_current_device().refusal();
  ops::KernelNote note{.op = "linear"};
  note.kernel = refusal.empty() ? "decode: weight streaming past held activations, mma.m16n8k16"
                                : "decode: generic";
  note.kernel += library.empty() ? "; prefill: cuBLASLt" : "; prefill: as decode";
  note.reason = refusal.empty() ? "rows of whole 128-byte lines; others: generic" : refusal;
  if (!library.empty()) note.reason += "; " + std::string(library);
  return note;
}

}  // namespace tessera::cuda
