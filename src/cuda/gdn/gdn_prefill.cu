// SPDX-License-Identifier: Apache-2.0
// Launches the stages of the chunked form window by window: rows into tiles, chunk systems, the
// scan over the chunks, the gated norm.
#include "cuda/gdn/gdn_prefill.h"

#include <algorithm>

#include "cuda/gdn/gdn_prepare.cuh"
#include "cuda/gdn/gdn_scan.cuh"
#include "cuda/gdn/gdn_system.cuh"

namespace tessera::cuda {

void launch_gdn_prefill(Context& context, const ops::GdnArgs& args) {
  using device::GdnPrepare, device::GdnScan, device::GdnSystem;
  const device::Batch& batch = context.batch();
  const int slots = gdn_num_slots(args.batch.num_rows, batch.num_spans);
  const int window = plan_gdn_window(slots);
  device::GdnWorkspace work{.base = nullptr,
                            .layout = plan_gdn_scratch(args.shape, window),
                            .first_slot = 0,
                            .num_slots = window,
                            .key_heads = args.shape.key_heads,
                            .value_heads = args.shape.value_heads};
  work.base = static_cast<std::byte*>(context.scratch(work.layout.bytes));
  const auto key_heads = static_cast<unsigned>(args.shape.key_heads);
  const auto value_heads = static_cast<unsigned>(args.shape.value_heads);
  constexpr unsigned kHalves = kGdnDim / GdnScan::kColumns;
  for (; work.first_slot < slots; work.first_slot += window) {
    work.num_slots = std::min(window, slots - work.first_slot);
    const auto count = static_cast<unsigned>(work.num_slots);
    launch(context,
           {.grid = dim3(count, key_heads + value_heads), .block = dim3(GdnPrepare::kThreads)},
           device::gdn_prepare<GdnPrepare>, args, batch, work);
    launch(context, {.grid = dim3(count, value_heads), .block = dim3(GdnSystem::kThreads)},
           device::gdn_system<GdnSystem>, args, batch, work);
    launch(context,
           {.grid = dim3(static_cast<unsigned>(batch.num_spans) * value_heads * kHalves),
            .block = dim3(GdnScan::kThreads),
            .shared_bytes = sizeof(device::GdnScanShared)},
           device::gdn_scan<GdnScan>, args, batch, work);
    launch(context, {.grid = dim3(count, value_heads), .block = dim3(GdnPrepare::kThreads)},
           device::gdn_norm<GdnPrepare>, args, batch, work);
  }
}

}  // namespace tessera::cuda
