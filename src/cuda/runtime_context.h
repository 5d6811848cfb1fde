// SPDX-License-Identifier: Apache-2.0
// The one Context: stream, memory, inputs of the current launch, and recorded steps.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "cuda/context.h"
#include "cuda/cuda_backend.h"
#include "cuda/device_memory.h"
#include "ops/ops.h"
#include "ops/round_layout.h"

namespace tessera::cuda {

class RuntimeContext final : public Context {
 public:
  explicit RuntimeContext(const Options& options);
  ~RuntimeContext() override;
  RuntimeContext(const RuntimeContext&) = delete;
  RuntimeContext& operator=(const RuntimeContext&) = delete;

  void* scratch(size_t bytes) override;
  void* persistent(const void* tag, size_t bytes) override;
  void* pinned(const void* tag, size_t bytes) override;

  ops::LaunchBuffers begin(const ops::LaunchInputs& inputs);
  void repeat(const ops::StepKey& key, const std::function<void()>& ops);
  void forget_steps();
  int repeated_kernels() const { return repeated_kernels_; }
  int64_t first_repeats() const { return first_repeats_; }
  DeviceMemory& memory() { return *memory_; }

  // In round/runtime_round.cpp. A recorded step may call use_rows, none of the others.
  ops::RoundState begin_round(const ops::RoundInputs& inputs);
  ops::RoundRows use_rows(ops::RoundPart part, int spans, int rows);
  void end_round();
  ops::RoundReport read_round();

 private:
  /// A host copy of the inputs that the device may still be reading.
  struct Staging {
    std::byte* host = nullptr;  // pinned
    size_t bytes = 0;
    cudaEvent_t copied = nullptr;
  };
  struct Pinned {
    void* host = nullptr;
    size_t bytes = 0;
  };
  /// A copy of what the host reads of a round.
  struct RoundReport {
    ops::RoundLayout layout{};
    std::byte* host = nullptr;  // pinned
    size_t bytes = 0;
    cudaEvent_t arrived = nullptr;
  };
  struct Round {
    ops::RoundLayout layout{};
    MemoryBlock block{};
    ops::RoundState state{};            // in `block`
    const int32_t* row_span = nullptr;  // [rows] in `block`: index of the span of each row
    std::vector<ops::RowSpan> spans{}, draft_spans{};  // as they were at first
    ops::ReportQueue queue{};
    std::array<RoundReport, ops::ReportQueue::kPlaces> reports{};
  };
  struct Step {
    ops::StepKey key;
    cudaGraphExec_t graph = nullptr;  // nullptr: ran once, not recorded yet
    int num_kernels = 0;
  };

  std::byte* stage(size_t bytes);
  /// What `stage` has yielded last.
  void upload(std::byte* to, size_t bytes);
  Step* find(const ops::StepKey& key);
  void record(Step& step, const std::function<void()>& ops);

  Options options_;
  std::unique_ptr<DeviceMemory> memory_{};
  MemoryBlock scratch_{};
  std::map<const void*, MemoryBlock> persistent_{};
  std::map<const void*, Pinned> pinned_{};
  MemoryBlock inputs_{};
  static constexpr size_t kStagingSets = 3;
  std::array<Staging, kStagingSets> staging_{};
  size_t current_set_ = 0;
  Round round_{};
  std::vector<Step> steps_{};  // least recently recorded first
  int repeated_kernels_ = 0;   // of the last replay
  int64_t first_repeats_ = 0;  // that ran directly or were recorded
};

}  // namespace tessera::cuda
