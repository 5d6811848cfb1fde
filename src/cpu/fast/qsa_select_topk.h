// SPDX-License-Identifier: Apache-2.0
// Exact top-k over scores, by the total order of block selection.
#pragma once

#include <cstdint>

namespace tessera::cpu {

/// Writes the ids of the best `k` of `count` scores (k <= count), ascending. Higher scores first,
/// ties to the lower id, -0 equals +0, NaN below every number. `keys` holds `count` values of
/// scratch. Takes O(count) whatever the distribution.
void select_top(const float* scores, int count, int k, uint32_t* keys, int32_t* ids);

}  // namespace tessera::cpu
