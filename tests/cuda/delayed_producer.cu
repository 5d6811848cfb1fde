// SPDX-License-Identifier: Apache-2.0
// A kernel that lets its successor start at once, idles, and only then writes what it owes.
#include "cuda/delayed_producer.h"

#include <cstring>

#include "cuda/device/pdl.cuh"

namespace tessera::test {
namespace {

constexpr long long kDelayCycles = 400'000;  // about 220 microseconds at 1.8 GHz
constexpr int kThreads = 256;
constexpr size_t kScratchBytes = size_t{1} << 20;

/// One block per region.
__global__ void __launch_bounds__(kThreads)
    produce_late(const DelayedProducer::Region* regions, int* touched) {
  cuda::device::allow_next_kernel();
  cuda::device::wait_for_inputs();
  const long long start = clock64();
  while (clock64() - start < kDelayCycles) __nanosleep(100);
  const DelayedProducer::Region region = regions[blockIdx.x];
  for (size_t at = threadIdx.x; at < region.bytes; at += kThreads) {
    const std::byte poison{region.poison};
    if (region.check) {
      // Volatile: the successor may be writing it at this moment.
      const auto now = static_cast<const volatile unsigned char*>(
          reinterpret_cast<const unsigned char*>(region.data))[at];
      if (now != region.poison) *touched = 1;
    } else {
      region.data[at] = region.late_content == nullptr ? poison : region.late_content[at];
    }
  }
}

}  // namespace

DelayedProducer::DelayedProducer(cuda::Context& context) : context_(context) {}

DelayedProducer::~DelayedProducer() {
  for (std::byte* data : owned_) cudaFree(data);
}

std::byte* DelayedProducer::allocate(size_t bytes) {
  void* data = nullptr;
  cuda::check(cudaMalloc(&data, bytes));
  owned_.push_back(static_cast<std::byte*>(data));
  return owned_.back();
}

void DelayedProducer::late(void* device, size_t bytes) {
  if (bytes == 0) return;
  std::byte* content = allocate(bytes);
  cuda::check(cudaMemcpyAsync(content, device, bytes, cudaMemcpyDeviceToDevice, context_.stream()));
  regions_.push_back(
      {.data = static_cast<std::byte*>(device), .late_content = content, .bytes = bytes});
}

void DelayedProducer::untouched(void* device, size_t bytes) {
  if (bytes == 0) return;
  regions_.push_back({.data = static_cast<std::byte*>(device), .bytes = bytes, .check = true});
}

bool DelayedProducer::run(const std::function<void()>& op) {
  const cuda::device::Batch& batch = context_.batch();
  const size_t first_own = regions_.size();
  const auto late_input = [this](const void* data, size_t bytes) {
    if (data == nullptr || bytes == 0) return;
    late(const_cast<void*>(data), bytes);
    regions_.back().poison = 0;  // early readers see empty spans instead of wild addresses
  };
  late_input(batch.spans, sizeof(*batch.spans) * static_cast<size_t>(batch.num_spans));
  late_input(batch.row_span, sizeof(*batch.row_span) * static_cast<size_t>(batch.num_rows));
  // What the op leaves in scratch too early is overwritten.
  regions_.push_back(
      {.data = static_cast<std::byte*>(context_.scratch(kScratchBytes)), .bytes = kScratchBytes});

  const cudaStream_t stream = context_.stream();
  const size_t table_bytes = regions_.size() * sizeof(Region);
  auto* table = reinterpret_cast<Region*>(allocate(table_bytes));
  auto* touched = reinterpret_cast<int*>(allocate(sizeof(int)));
  cuda::check(cudaMemsetAsync(touched, 0, sizeof(int), stream));
  cuda::check(cudaMemcpyAsync(table, regions_.data(), table_bytes, cudaMemcpyHostToDevice, stream));
  for (const Region& region : regions_)
    cuda::check(cudaMemsetAsync(region.data, region.poison, region.bytes, stream));
  const cuda::LaunchShape shape{.grid = dim3(static_cast<unsigned>(regions_.size())),
                                .block = dim3(kThreads)};
  cuda::launch(context_, shape, produce_late, table, touched);
  cuda::check(cudaGetLastError());
  op();
  int was_touched = 0;
  cuda::check(cudaMemcpyAsync(&was_touched, touched, sizeof(int), cudaMemcpyDeviceToHost, stream));
  cuda::check(cudaStreamSynchronize(stream));
  regions_.resize(first_own);
  return was_touched == 0;
}

}  // namespace tessera::test
