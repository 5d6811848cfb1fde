// SPDX-License-Identifier: Apache-2.0
// Describes stacks of expert matrices to the copy engine. The driver's encoder is looked up at run
// time: the program starts on machines without a driver.
#pragma once

#include <cuda.h>

#include <string_view>

#include "cuda/moe/moe_weights.h"

namespace tessera::cuda::moe {

/// Empty when every matrix can be described: distances are multiples of 16 bytes.
std::string_view why_not_mapped(const ExpertStack& stack);
/// Empty when gate and up fit into one map, too: up lies behind gate.
std::string_view why_not_mapped_together(const ExpertStack& stack);

/// Boxes of 64 columns by `tile_rows` rows, swizzled over 128 bytes (BF16) or 64 (FP8 codes). Gate
/// and up rows alternate in groups of eight; dimensions: K, row in group, gate or up, group,
/// expert.
CUtensorMap map_gate_up(const ExpertStack& stack, int width, int hidden, int num_experts,
                        int tile_rows);
/// Dimensions: K, row, expert.
CUtensorMap map_down(const ExpertStack& stack, int width, int hidden, int num_experts,
                     int tile_rows);

/// One matrix of every expert for the streaming kernel: boxes of eight rows by `slices` slices of
/// 128 bytes, slice after slice, swizzled over 128 bytes. Dimensions: element of a slice, row,
/// slice, expert.
CUtensorMap map_slices(const MatrixStack& stack, DType dtype, int rows, int depth, int num_experts,
                       int slices);

}  // namespace tessera::cuda::moe
