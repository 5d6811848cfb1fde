// SPDX-License-Identifier: Apache-2.0
// What the warpgroups of a block of the grouped products share: arguments, stages, barriers.
#pragma once

#include "cuda/device/bf16.cuh"
#include "cuda/device/copy.cuh"
#include "cuda/device/ring_cursor.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/moe/grouped_tiles.cuh"
#include "cuda/moe/moe_weights.h"

namespace tessera::cuda::device {

struct GroupedArgs {
  const Bf16* tokens = nullptr;          // [.., depth]; FP8: in the order of code_order.cuh
  const int32_t* source_rows = nullptr;  // [entries] row of tokens; nullptr: the entry itself
  GroupTables groups;
  moe::ExpertStack experts;  // FP8: its scales; the weights come through the maps
  Bf16* out = nullptr;       // [entries, out_width]; FP8 up: in the order of code_order.cuh
  int depth = 0;
  int out_width = 0;
};

/// Config: Weight, kBlocks (m64 blocks of a consumer warpgroup), kUp, kColumnStep (between the
/// widths of products), kTokens (the widest), kOverlap (FP8: widen while products run), kStages,
/// kProducerRegisters, kConsumerRegisters.
template <class Config>
struct GroupedShared {
  static constexpr int kConsumers = 2;
  static constexpr bool kScaled = sizeof(typename Config::Weight) == 1;
  static constexpr int kWeightRows = kConsumers * Config::kBlocks * 64;
  static constexpr int kWeightRowBytes =
      moe::kGroupedStepK * static_cast<int>(sizeof(typename Config::Weight));  // of a stage
  static constexpr int kFeatures = (Config::kUp ? 32 : 64) * Config::kBlocks;  // per warpgroup
  static constexpr int kChunk = 32;                                            // tokens staged
  static constexpr int kChunkBuffers = 2;  // one is written while the other one is read
  static constexpr int kPad = 8;           // rows of the staged chunk start in different banks

  alignas(1024) std::byte weights[Config::kStages][kWeightRows * kWeightRowBytes];
  alignas(1024) std::byte tokens[Config::kStages][Config::kTokens * kSwizzleBytes];
  alignas(16) Bf16 staged[kConsumers][kChunkBuffers][kChunk][kFeatures + kPad];
  GroupTile tiles[Config::kStages];  // that begins with the stage; one without tokens ends all
  float scales[Config::kStages][2];  // FP8: of gate and up, or of the two warpgroups
  Barrier full[Config::kStages];
  Barrier empty[Config::kStages];
  GroupTile found[2];            // the producer's tile and its next one
  int rows[2][Config::kTokens];  // of their tokens
  GroupIndex groups;
};

}  // namespace tessera::cuda::device
