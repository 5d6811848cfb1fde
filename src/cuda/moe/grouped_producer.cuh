// SPDX-License-Identifier: Apache-2.0
// Fills the stages of the grouped products: weights by the copy engine, token rows gathered.
#pragma once

#include "cuda/device/named_barrier.cuh"
#include "cuda/device/tensor_copy.cuh"
#include "cuda/moe/grouped_shared.cuh"
#include "ops/weight.h"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// One warpgroup. A stage is full when its weights have landed and every producer thread has
/// arrived; a thread arrives for a stage only after its copies for the next one are under way. The
/// next tile is found while this one is filled, so the copies never pause between tiles.
template <class Config>
class GroupedProducer {
 public:
  using Shared = GroupedShared<Config>;
  static constexpr int kArrivals = kWarpgroup + 1;  // the copy engine's announcement

  __device__ __forceinline__ GroupedProducer(const GroupedArgs& args, Shared& shared,
                                             const CUtensorMap& routed_map,
                                             const CUtensorMap& shared_map)
      : args_(args), shared_(shared), routed_map_(routed_map), shared_map_(shared_map) {}

  __device__ __forceinline__ void run() {
    if (thread() == 0) find(static_cast<int>(blockIdx.x), 0);
    named_barrier_sync(kBarrier, kWarpgroup);  // the first tile is found
    take_rows(0);
    commit_copies();
    wait_copies<0>();
    for (int half = 0; shared_.found[half].tokens > 0; half ^= 1) fill(half);
    if (filled_) {
      wait_copies<0>();
      publish(last_);
    }
    finish();
  }

 private:
  static constexpr int kStepK = moe::kGroupedStepK;
  static constexpr int kPieces = kSwizzleBytes / kVectorBytes;
  static constexpr int kBarrier = 1;
  static constexpr int kAhead = 4;  // steps before the end of a tile at which the next one is found

  static __device__ __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x) % kWarpgroup;
  }

  /// Tile `index`, or one without tokens past the last one. One thread.
  __device__ __forceinline__ void find(int index, int half) {
    shared_.found[half] = index < shared_.groups.tiles(args_.groups)
                              ? shared_.groups.locate(args_.groups, index)
                              : GroupTile{};
  }

  /// Asks for the rows of the tile's tokens: part of this thread's next group of copies.
  __device__ __forceinline__ void take_rows(int half) {
    const int tokens = shared_.found[half].tokens, entry = shared_.found[half].first_entry;
    for (int token = thread(); token < tokens; token += kWarpgroup) {
      int* row = &shared_.rows[half][token];
      if (args_.source_rows == nullptr)
        *row = entry + token;
      else
        copy_async_4(row, args_.source_rows + entry + token);
    }
  }

  /// Tiles go to whichever block is free: the next one is found, and its rows are on their way,
  /// when this one is filled.
  __device__ __forceinline__ void fill(int half) {
    const int steps = args_.depth / kStepK;
    const int find_step = max(steps - kAhead, 0);
    int next_index = 0;
    if (thread() == 0) next_index = static_cast<int>(gridDim.x) + atomicAdd(args_.groups.taken, 1);
    [[maybe_unused]] const float* scale = nullptr;
    if constexpr (Shared::kScaled) {
      if (thread() < 2) scale = scale_of(shared_.found[half], thread());
    }
    // The tile's rows are there; nobody reads the other half any more.
    named_barrier_sync(kBarrier, kWarpgroup);
    const int tokens = shared_.found[half].tokens;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait_barrier(&shared_.empty[cursor_.stage], cursor_.phase ^ 1);
      if (thread() == 0) {
        if (step == 0) shared_.tiles[cursor_.stage] = shared_.found[half];
        ask_weights(shared_.found[half], step);
      }
      gather_tokens(tokens, shared_.rows[half], step);
      if constexpr (Shared::kScaled) {
        if (thread() < 2)
          copy_async_4(&shared_.scales[cursor_.stage][thread()],
                       scale + step * kStepK / ops::kScaleBlock);
      }
      if (step == find_step) {
        if (thread() == 0) find(next_index, half ^ 1);
        named_barrier_sync(kBarrier, kWarpgroup);  // the next tile is found
        take_rows(half ^ 1);
      }
      commit_copies();
      if (filled_) {
        wait_copies<1>();
        publish(last_);
      }
      filled_ = true;
      last_ = cursor_.stage;
      cursor_.advance();
    }
    if (find_step == steps - 1) wait_copies<0>();  // the next rows came with the last step
  }

  __device__ __forceinline__ void gather_tokens(int count, const int* rows, int step) {
    const int piece = thread() % kPieces;
    std::byte* tokens = shared_.tokens[cursor_.stage];
    const Bf16* source = args_.tokens + step * kStepK + piece * kVectorBf16;
#pragma unroll 4  // registers are scarce here
    for (int token = thread() / kPieces; token < count; token += kWarpgroup / kPieces)
      copy_async_16(tokens + swizzled_offset(token, piece),
                    source + static_cast<size_t>(rows[token]) * static_cast<size_t>(args_.depth));
  }

  /// This thread's copies for the stage have landed.
  __device__ __forceinline__ void publish(int stage) {
    fence_async_proxy();  // wgmma reads what the copies of this thread wrote
    arrive(&shared_.full[stage]);
  }

  /// A stage that tells the consumers that there is no more.
  __device__ __forceinline__ void finish() {
    Barrier* full = &shared_.full[cursor_.stage];
    wait_barrier(&shared_.empty[cursor_.stage], cursor_.phase ^ 1);
    if (thread() == 0) {
      shared_.tiles[cursor_.stage] = {};
      arrive(full);  // in place of the announcement
    }
    arrive(full);
  }

  __device__ __forceinline__ void ask_weights(const GroupTile& tile, int step) {
    Barrier* barrier = &shared_.full[cursor_.stage];
    std::byte* weights = shared_.weights[cursor_.stage];
    const CUtensorMap& map = tile.expert < 0 ? shared_map_ : routed_map_;
    const int expert = max(tile.expert, 0);
    arrive_expect(barrier, Shared::kWeightRows * Shared::kWeightRowBytes);
    if constexpr (Config::kUp) {
      const int at[5] = {step * kStepK, 0, 0, tile.weight_tile * (Shared::kWeightRows / 16),
                         expert};
      copy_box(weights, map, at, barrier);
    } else {
      const int at[3] = {step * kStepK, tile.weight_tile * Shared::kWeightRows, expert};
      copy_box(weights, map, at, barrier);
    }
  }

  /// First scale of gate (`which` 0) or up (1), or of the rows of consumer warpgroup `which`.
  __device__ __forceinline__ const float* scale_of(const GroupTile& tile, int which) const {
    constexpr int kRows = Shared::kWeightRows / 2;
    const moe::MatrixStack& stack =
        Config::kUp ? (which == 0 ? args_.experts.gate : args_.experts.up) : args_.experts.down;
    const int row = Config::kUp ? tile.weight_tile * kRows : (2 * tile.weight_tile + which) * kRows;
    return stack.scale + max(tile.expert, 0) * stack.scale_stride +
           row / ops::kScaleBlock * stack.scale_cols;
  }

  const GroupedArgs& args_;
  Shared& shared_;
  const CUtensorMap& routed_map_;
  const CUtensorMap& shared_map_;
  RingCursor<Config::kStages> cursor_;
  int last_ = 0;         // stage of the step before, not yet announced
  bool filled_ = false;  // there is one
};

#endif

}  // namespace tessera::cuda::device
