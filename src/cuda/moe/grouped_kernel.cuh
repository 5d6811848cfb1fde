// SPDX-License-Identifier: Apache-2.0
// Experts of prompts: one product per expert over its rows on warpgroup tensor cores. Weight rows
// are the 128 or 256 rows of a tile, token rows its columns, so that an expert's rows need little
// padding. One producer warpgroup fills the stages, two consumer warpgroups multiply.
#pragma once

#include "cuda/device/pdl.cuh"
#include "cuda/moe/grouped_consumer.cuh"
#include "cuda/moe/grouped_producer.cuh"

namespace tessera::cuda::device {

/// Persistent blocks; tiles are taken in order, so neighbours share an expert's weights and rows in
/// the second-level cache.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    experts_grouped(const __grid_constant__ GroupedArgs args,
                    const __grid_constant__ CUtensorMap routed_map,
                    const __grid_constant__ CUtensorMap shared_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Producer = GroupedProducer<Config>;
  using Consumer = GroupedConsumer<Config>;
  extern __shared__ __align__(1024) std::byte memory[];
  auto& shared = *reinterpret_cast<GroupedShared<Config>*>(memory);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Config::kStages; ++stage) {
      init_barrier(&shared.full[stage], Producer::kArrivals);
      init_barrier(&shared.empty[stage], Consumer::kArrivals);
    }
    fence_barrier_init();
    prefetch_map(routed_map);
    prefetch_map(shared_map);
  }
  wait_for_inputs();
  allow_next_kernel();
  shared.groups.load(args.groups);
  __syncthreads();  // barriers and group tables are ready
  const auto role = static_cast<int>(threadIdx.x) / kWarpgroup;
  if (role == 0) {
    shrink_registers<Config::kProducerRegisters>();
    Producer(args, shared, routed_map, shared_map).run();
  } else {
    grow_registers<Config::kConsumerRegisters>();
    Consumer(args, shared, role - 1).run();
  }
#endif
}

}  // namespace tessera::cuda::device
