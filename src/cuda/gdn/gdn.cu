// SPDX-License-Identifier: Apache-2.0
// Launches Gated DeltaNet: one kernel for decode and verify rows, the chunked form in stages for
// prompt rows, and the recurrence for everything that the sm_90a kernels do not take.
#include "cuda/cuda_kernels.h"
#include "cuda/gdn/gdn_decode.cuh"
#include "cuda/gdn/gdn_generic.cuh"
#include "cuda/gdn/gdn_plan.h"
#include "cuda/gdn/gdn_prefill.h"

namespace tessera::cuda {
namespace {

template <class Config>
void launch_decode(Context& context, const ops::GdnArgs& args, bool writes_ring) {
  const auto blocks = static_cast<unsigned>(context.batch().num_spans) *
                      static_cast<unsigned>(args.shape.value_heads * Config::kSplit);
  launch(context,
         {.grid = dim3(blocks), .block = dim3(Config::kThreads), .cluster = Config::kSplit},
         device::gdn_decode<Config>, args, context.batch(), writes_ring,
         context.gpu().num_sms * Config::kBlocksPerSm / Config::kSplit);
}

void launch_decode(Context& context, const ops::GdnArgs& args, bool writes_ring) {
  using device::GdnDecode;
  const GdnDecodePlan plan =
      plan_gdn_decode(context.batch().num_spans, args.shape.value_heads, context.gpu());
  if (plan.blocks_per_head > 1)
    launch_decode<GdnDecode<2, true>>(context, args, writes_ring);
  else if (plan.alone)
    launch_decode<GdnDecode<1, true>>(context, args, writes_ring);
  else
    launch_decode<GdnDecode<1, false>>(context, args, writes_ring);
}

void launch_generic(Context& context, const ops::GdnArgs& args) {
  using Config = device::GdnGeneric;
  const auto blocks = static_cast<unsigned>(context.batch().num_spans) *
                      static_cast<unsigned>(args.shape.value_heads);
  const size_t cells =
      static_cast<size_t>(args.shape.key_dim) * static_cast<size_t>(args.shape.value_dim);
  void* copies = args.verify ? context.scratch(blocks * cells * sizeof(float)) : nullptr;
  launch(context,
         {.grid = dim3(blocks),
          .block = dim3(Config::kThreads),
          .shared_bytes = Config::shared_bytes(args.shape)},
         device::gdn_generic<Config>, args, context.batch(), static_cast<float*>(copies));
}

void launch_store_ring(Context& context, const ops::GdnArgs& args) {
  constexpr unsigned kThreads = 256;
  const auto vectors = [](size_t bytes) { return bytes % sizeof(uint4) == 0; };
  const size_t row_bytes = static_cast<size_t>(args.shape.channels()) * sizeof(device::Bf16);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(context.batch().num_spans),
                                       static_cast<unsigned>(args.conv_ring.slots)),
                          .block = dim3(kThreads)};
  if (vectors(row_bytes) && vectors(args.conv_ring.offset) && vectors(args.conv_ring.entry_bytes))
    launch(context, shape, device::gdn_store_ring<uint4>, args, context.batch());
  else
    launch(context, shape, device::gdn_store_ring<uint16_t>, args, context.batch());
}

}  // namespace

void launch_gdn(Context& context, const ops::GdnArgs& args) {
  if (args.batch.num_rows == 0 && !args.verify) return;
  const bool fast = supports_gdn_sm90(args, context.gpu()).empty();
  bool stores_later = stores_ring_later(args.batch, args.conv_ring);
  if (!fast) {
    launch_generic(context, args);
    stores_later = true;
  } else if (args.batch.role == ops::Role::kPrefill) {
    launch_gdn_prefill(context, args);
  } else {
    launch_decode(context, args, !stores_later);
  }
  if (stores_later) launch_store_ring(context, args);
}

ops::KernelNote note_gdn(const GpuSpec& gpu) {
  // The heads of the released model; a launch of other shapes takes the generic kernel.
  ops::GdnArgs released;
  released.shape = {.key_heads = 1,
                    .value_heads = 1,
                    .key_dim = kGdnDim,
                    .value_dim = kGdnDim,
                    .conv_kernel = kGdnTaps};
  const std::string_view reason = supports_gdn_sm90(released, gpu);
  if (!reason.empty()) return {"gdn", "recurrence in FP32", std::string(reason)};
  return {"gdn", "sm_90a: one kernel for decode rows, chunks of 64 for prompts",
          "heads of 128 x 128, 4 taps; else the recurrence in FP32"};
}

}  // namespace tessera::cuda
