// SPDX-License-Identifier: Apache-2.0
// Owns what outlives an op: the stream, scratch, launch inputs in device memory, recorded graphs.
#include "cuda/runtime_context.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/arena.h"

namespace tessera::cuda {
namespace {

constexpr size_t kAlign = 256;
constexpr size_t kFirstInputBytes = size_t{1} << 20;
constexpr size_t kFirstScratchBytes = size_t{64} << 20;
constexpr size_t kMaxSteps = 256;  // recorded graphs kept at once

/// Places arrays one after the other at aligned offsets.
class Packing {
 public:
  size_t add(size_t bytes) {
    const size_t at = size_;
    size_ += align_up(bytes, kAlign);
    return at;
  }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
};

template <class T>
void put(std::byte* at, std::span<const T> values) {
  if (!values.empty()) std::memcpy(at, values.data(), values.size_bytes());
}

GpuSpec read_spec(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device));
  return {.compute_major = properties.major,
          .compute_minor = properties.minor,
          .num_sms = properties.multiProcessorCount,
          .shared_bytes_per_block = properties.sharedMemPerBlockOptin,
          .l2_bytes = static_cast<size_t>(properties.l2CacheSize)};
}

int count_kernels(cudaGraph_t graph) {
  size_t count = 0;
  check(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  check(cudaGraphGetNodes(graph, nodes.data(), &count));
  return static_cast<int>(std::count_if(nodes.begin(), nodes.end(), [](cudaGraphNode_t node) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(node, &type));
    return type == cudaGraphNodeTypeKernel;
  }));
}

}  // namespace

void Context::prepare_kernel(const void* kernel, size_t shared_bytes) const {
  constexpr size_t kDefaultShared = size_t{48} << 10;
  const auto [entry, is_new] = prepared_.try_emplace(kernel, 0);
  // One carve-out for all kernels: with another one an SM must drain before a dependent kernel can
  // join it, and its early weight loads come to nothing.
  if (is_new)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared));
  if (shared_bytes <= std::max(entry->second, kDefaultShared)) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared_bytes)));
  entry->second = shared_bytes;
}

RuntimeContext::RuntimeContext(const Options& options) : options_(options) {
  check(cudaSetDevice(options.device));
  gpu_ = read_spec(options.device);
  pdl_ = options.pdl;
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  memory_ = std::make_unique<DeviceMemory>(stream_);
  for (Staging& set : staging_)
    check(cudaEventCreateWithFlags(&set.copied, cudaEventDisableTiming));
  for (RoundReport& report : round_.reports)
    check(cudaEventCreateWithFlags(&report.arrived, cudaEventDisableTiming));
}

RuntimeContext::~RuntimeContext() {
  // Errors at shutdown have nobody to report to.
  cudaStreamSynchronize(stream_);
  forget_steps();
  for (Staging& set : staging_) {
    cudaFreeHost(set.host);
    cudaEventDestroy(set.copied);
  }
  for (RoundReport& report : round_.reports) {
    cudaFreeHost(report.host);
    cudaEventDestroy(report.arrived);
  }
  for (const auto& [tag, memory] : pinned_) cudaFreeHost(memory.host);
  persistent_.clear();
  scratch_ = {};
  inputs_ = {};
  round_.block = {};
  cudaStreamDestroy(stream_);
}

void* RuntimeContext::scratch(size_t bytes) {
  if (bytes <= scratch_.bytes()) return scratch_.data();
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_, &capturing));
  if (capturing != cudaStreamCaptureStatusNone)
    throw std::logic_error("scratch memory grew while a step was recorded");
  const size_t grown = std::max({bytes, 2 * scratch_.bytes(), kFirstScratchBytes});
  check(cudaStreamSynchronize(stream_));
  forget_steps();  // they hold the old address
  scratch_ = {};
  scratch_ = MemoryBlock(*memory_, grown);
  return scratch_.data();
}

void* RuntimeContext::persistent(const void* tag, size_t bytes) {
  MemoryBlock& block = persistent_[tag];
  if (block.bytes() < bytes) {
    if (block) throw std::logic_error("persistent memory of an op changed its size");
    block = MemoryBlock(*memory_, bytes);
    memory_->zero(block.data(), bytes);
  }
  return block.data();
}

void* RuntimeContext::pinned(const void* tag, size_t bytes) {
  Pinned& memory = pinned_[tag];
  if (memory.bytes < bytes) {
    check(cudaStreamSynchronize(stream_));  // kernels may still use the old one
    check(cudaFreeHost(memory.host));
    memory = {};
    check(cudaMallocHost(&memory.host, bytes));
    memory.bytes = bytes;
  }
  return memory.host;
}

/// Host memory for the inputs of one launch; waits until the device has read what was there.
std::byte* RuntimeContext::stage(size_t bytes) {
  current_set_ = (current_set_ + 1) % kStagingSets;
  Staging& set = staging_[current_set_];
  check(cudaEventSynchronize(set.copied));
  if (set.bytes < bytes) {
    check(cudaFreeHost(set.host));
    set.host = nullptr;
    const size_t grown = std::max(align_up(bytes, kFirstInputBytes), kFirstInputBytes);
    void* host = nullptr;
    check(cudaMallocHost(&host, grown));
    set.host = static_cast<std::byte*>(host);
    set.bytes = grown;
  }
  return set.host;
}

void RuntimeContext::upload(std::byte* to, size_t bytes) {
  const Staging& set = staging_[current_set_];
  check(cudaMemcpyAsync(to, set.host, bytes, cudaMemcpyHostToDevice, stream_));
  check(cudaEventRecord(set.copied, stream_));
}

/// Offsets depend on the counts alone, so a recorded step finds its inputs where they were.
ops::LaunchBuffers RuntimeContext::begin(const ops::LaunchInputs& inputs) {
  check(cudaSetDevice(options_.device));  // the calling thread may be a new one
  const auto num_rows = static_cast<size_t>(inputs.batch.num_rows);
  Packing packing;
  const size_t spans = packing.add(inputs.batch.spans.size_bytes());
  const size_t row_span = packing.add(num_rows * sizeof(int32_t));
  const size_t ids = packing.add(inputs.ids.size_bytes());
  const size_t positions = packing.add(inputs.positions.size_bytes());
  const size_t logit_rows = packing.add(inputs.logit_rows.size_bytes());
  const size_t source_rows = packing.add(inputs.source_rows.size_bytes());
  if (packing.size() > inputs_.bytes()) {
    check(cudaStreamSynchronize(stream_));
    forget_steps();
    inputs_ = MemoryBlock(*memory_, std::max(2 * packing.size(), kFirstInputBytes));
  }
  std::byte* host = stage(packing.size());
  put(host + spans, inputs.batch.spans);
  auto* span_of_row = reinterpret_cast<int32_t*>(host + row_span);
  for (size_t index = 0; index < inputs.batch.spans.size(); ++index) {
    const ops::RowSpan& span = inputs.batch.spans[index];
    std::fill_n(span_of_row + span.row_begin, span.num_rows, static_cast<int32_t>(index));
  }
  put(host + ids, inputs.ids);
  put(host + positions, inputs.positions);
  put(host + logit_rows, inputs.logit_rows);
  put(host + source_rows, inputs.source_rows);
  upload(inputs_.data(), packing.size());

  const std::byte* base = inputs_.data();
  batch_ = {.spans = reinterpret_cast<const ops::RowSpan*>(base + spans),
            .row_span = reinterpret_cast<const int32_t*>(base + row_span),
            .num_spans = static_cast<int>(inputs.batch.spans.size()),
            .num_rows = inputs.batch.num_rows};
  return {.ids = reinterpret_cast<const int32_t*>(base + ids),
          .positions = reinterpret_cast<const int32_t*>(base + positions),
          .logit_rows = reinterpret_cast<const int32_t*>(base + logit_rows),
          .source_rows = reinterpret_cast<const int32_t*>(base + source_rows)};
}

RuntimeContext::Step* RuntimeContext::find(const ops::StepKey& key) {
  const auto found =
      std::find_if(steps_.begin(), steps_.end(), [&](const Step& step) { return step.key == key; });
  return found == steps_.end() ? nullptr : &*found;
}

/// The first call runs as it is, so that scratch and counters have their size when the second one
/// is recorded.
void RuntimeContext::repeat(const ops::StepKey& key, const std::function<void()>& ops) {
  if (!options_.graphs) return ops();
  if (find(key) == nullptr) {
    ++first_repeats_;
    ops();
    if (steps_.size() == kMaxSteps) {
      if (steps_.front().graph != nullptr) cudaGraphExecDestroy(steps_.front().graph);
      steps_.erase(steps_.begin());
    }
    steps_.push_back({.key = key});
    return;
  }
  Step& step = *find(key);
  if (step.graph == nullptr) {
    ++first_repeats_;
    record(step, ops);
  }
  check(cudaGraphLaunch(step.graph, stream_));
  repeated_kernels_ = step.num_kernels;
}

void RuntimeContext::record(Step& step, const std::function<void()>& ops) {
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    ops();
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream_, &graph));
  step.num_kernels = count_kernels(graph);
  const cudaError_t status = cudaGraphInstantiate(&step.graph, graph, 0);
  cudaGraphDestroy(graph);
  check(status);
}

void RuntimeContext::forget_steps() {
  cudaStreamSynchronize(stream_);  // none may be destroyed while it runs
  for (Step& step : steps_)
    if (step.graph != nullptr) cudaGraphExecDestroy(step.graph);
  steps_.clear();
}

}  // namespace tessera::cuda
