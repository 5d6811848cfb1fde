// SPDX-License-Identifier: Apache-2.0
// The linear op: parts of a launch go to the streaming or the generic kernel on the decode path, to
// the GEMM library on the prefill path.
#include <vector>

#include "cuda/cuda_kernels.h"
#include "cuda/linear/blas.h"
#include "cuda/linear/gemm.h"
#include "cuda/linear/generic_kernel.cuh"
#include "cuda/linear/held_kernel.cuh"
#include "cuda/linear/rounds_kernel.cuh"

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
void launch_rounds_config(Context& context, const RoundsPlan& plan, const RoundsArgs& args) {
  static_assert(sizeof(RoundsShared<Config>) == Config::kSharedBytes);
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(plan.passes), static_cast<unsigned>(plan.blocks)),
      .block = dim3(Config::kThreads),
      .shared_bytes = Config::kSharedBytes};
  launch(context, shape, rounds_linear<Config>, args);
}

void launch_rounds(Context& context, const void* x, int rows,
                   std::span<const ops::LinearPart> parts) {
  RoundsArgs args{};
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
  const RoundsPlan plan = plan_rounds(args.total_rows, rows, type, context.gpu());
  args.rows_per_block = plan.rows_per_block;
  args.rounds = rounds_of(args.in_features, type);
  if (type == DType::kBF16) return launch_rounds_config<RoundsBf16>(context, plan, args);
  if (plan.pass_rows == RoundsF8UpTo8::kPassRows)
    return launch_rounds_config<RoundsF8UpTo8>(context, plan, args);
  launch_rounds_config<RoundsF8UpTo16>(context, plan, args);
}

template <class Config>
void launch_held_config(Context& context, const HeldPlan& plan, const HeldArgs& args) {
  static_assert(sizeof(HeldShared<Config>) == Config::kSharedBytes);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(plan.passes * plan.split),
                                       static_cast<unsigned>(plan.groups)),
                          .block = dim3(Config::kThreads),
                          .shared_bytes = Config::kSharedBytes,
                          .cluster = static_cast<unsigned>(plan.split)};
  launch(context, shape, held_linear<Config>, args);
}

void launch_held(Context& context, const void* x, int rows,
                 std::span<const ops::LinearPart> parts) {
  HeldArgs args{};
  args.x = static_cast<const device::Bf16*>(x);
  args.rows = rows;
  args.in_features = parts.front().weight.in_features;
  args.row_bytes = static_cast<int>(parts.front().weight.row_bytes());
  for (size_t index = 0; index < parts.size(); ++index) {
    StreamPart& part = args.parts[index] = part_of(parts[index]);
    part.first = args.total_tiles;
    part.end = args.total_tiles += divide_up(part.out_features, HeldGeometry::kTileRows);
  }
  const HeldPlan plan = plan_held(args.total_tiles, rows, args.in_features, context.gpu());
  args.tiles_per_group = plan.tiles_per_group;
  args.split = plan.split;
  args.last_buffer = plan.split == 1 ? 1 : 0;
  if (plan.pass_rows == HeldUpTo8::kPassRows)
    return launch_held_config<HeldUpTo8>(context, plan, args);
  if (plan.pass_rows == HeldUpTo16::kPassRows)
    return launch_held_config<HeldUpTo16>(context, plan, args);
  launch_held_config<HeldUpTo32>(context, plan, args);
}

/// Parts of one weight type that the streaming kernels can read.
void launch_parts(Context& context, const void* x, int rows,
                  std::span<const ops::LinearPart> parts) {
  const ops::LinearWeight& weight = parts.front().weight;
  if (supports_held(weight.dtype, weight.in_features, context.gpu()).empty())
    launch_held(context, x, rows, parts);
  else
    launch_rounds(context, x, rows, parts);
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
    launch_parts(context, x, rows, streamed);
    streamed.clear();
  }
  for (const auto& streamed : {bf16, f8})
    if (!streamed.empty()) launch_parts(context, x, rows, streamed);
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
