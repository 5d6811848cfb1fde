// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet between its input and output projections: causal conv, gates, delta rule, gated
// norm. Decode rows run the recurrence row by row; prefill rows run the chunked form, chunks cut on
// the absolute grid of kGdnChunk tokens. Both advance the state of every span by all its rows.
#pragma once

#include "ops/cost.h"
#include "ops/rows.h"

namespace tessera::ops {

inline constexpr int kGdnChunk = 64;

enum class GateActivation : uint8_t { kSigmoid, kSilu };

struct GdnShape {
  int key_heads = 0;    // Hk
  int value_heads = 0;  // Hv; value head h reads key head h / (Hv / Hk)
  int key_dim = 0;      // dk
  int value_dim = 0;    // dv
  int conv_kernel = 0;  // taps, the last one is the current token

  int channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

struct GdnArgs {
  GdnShape shape;
  const void* qkv = nullptr;           // [rows, channels] activations: q heads, k heads, v heads
  const void* z = nullptr;             // [rows, Hv * dv] activations
  const float* a = nullptr;            // [rows, Hv]
  const float* b = nullptr;            // [rows, Hv]
  const float* conv_weight = nullptr;  // [channels, conv_kernel]
  const float* a_log = nullptr;        // [Hv]
  const float* dt_bias = nullptr;      // [Hv]
  const float* norm = nullptr;         // [dv], plain weight
  GateActivation gate = GateActivation::kSigmoid;
  float eps = 0;
  RowBatch batch;
  RingRef conv_ring;         // entries [channels] activations: conv inputs, before the convolution
  size_t matrix_offset = 0;  // in the slot: [Hv, dk, dv] float
  void* out = nullptr;       // [rows, Hv * dv] activations, written
};

Cost cost(const GdnArgs& args);

}  // namespace tessera::ops
