// SPDX-License-Identifier: Apache-2.0
// Hashed n-gram memory: table rows of each token, then gate, norm and dilated convolution.
#pragma once

#include <cstdint>

#include "ops/cost.h"
#include "ops/ngram_hash.h"
#include "ops/rows.h"
#include "ops/weight.h"

namespace tessera::ops {

/// Rows of the table for every token: its id and those before it, from this launch or the ring.
struct NgramIdsArgs {
  const int32_t* ids = nullptr;  // [rows]
  RowBatch batch;
  RingRef token_ring;  // entries int64: ids of earlier tokens; reach ngram_size - 1
  const NgramHash* hash = nullptr;
  int64_t* table_rows = nullptr;  // [rows, heads], written
};

struct NgramGatherArgs {
  const int64_t* table_rows = nullptr;  // [rows, heads]
  const NgramTable* table = nullptr;
  void* out = nullptr;  // [rows, heads * row_dim] activations, written
  int rows = 0;
  int heads = 0;
};

/// Per branch g: s = <GRMS1(K)_g, GRMS1(R)_g> / sqrt(H); gate = sigmoid(sign(s) sqrt(max(|s|,
/// 1e-6))); v_g = gate * V; x = GRMS1(v, norm_conv); delta = v + silu(conv(x)); R += delta.
struct PleMixArgs {
  const void* key = nullptr;           // [rows, branches * hidden] activations, key_proj e
  const void* value = nullptr;         // [rows, hidden] activations, value_proj e
  const float* norm_key = nullptr;     // [branches * hidden], 1 + w
  const float* norm_query = nullptr;   // [branches * hidden], 1 + w
  const float* norm_conv = nullptr;    // [branches * hidden], 1 + w
  const float* conv_weight = nullptr;  // [branches * hidden, conv_kernel]
  void* wide = nullptr;                // [rows, branches * hidden] activations, updated in place
  void* delta = nullptr;  // [rows, branches * hidden] activations, written when not nullptr
  RowBatch batch;
  RingRef
      conv_ring;  // entries [branches * hidden] activations: x; reach (conv_kernel - 1) * dilation
  int branches = 0;
  int hidden = 0;
  int conv_kernel = 0;
  int dilation = 0;
  float eps = 0;
};

Cost cost(const NgramIdsArgs& args);
Cost cost(const NgramGatherArgs& args);
Cost cost(const PleMixArgs& args);

}  // namespace tessera::ops
