// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet between its input and output projections: causal conv, gates, delta rule, gated
// norm. Decode rows run the recurrence row by row; prefill rows run the chunked form, chunks cut on
// the absolute grid of kGdnChunk tokens. Both advance the state of every span by all its rows,
// except that a verify launch leaves its rows pending until the next one knows how many count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

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

  constexpr int channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

/// What a verify launch leaves of its rows in the slot: rows of floats, each k [Hv, dk] (a copy for
/// every value head, so that a head reads and writes nothing but its own), v [Hv, dv], g [Hv], beta
/// [Hv].
struct GdnPending {
  static constexpr size_t kLineBytes = 64;

  GdnShape shape;

  // Places within a row, in floats.
  constexpr size_t key_at(int head) const { return floats(head, shape.key_dim); }
  constexpr size_t value_at(int head) const {
    return key_at(shape.value_heads) + floats(head, shape.value_dim);
  }
  constexpr size_t log_decay_at() const { return value_at(shape.value_heads); }
  constexpr size_t beta_at() const { return log_decay_at() + floats(shape.value_heads, 1); }
  /// A whole number of cache lines, so that vectors stay aligned in every row.
  constexpr size_t row_floats() const {
    constexpr size_t kLine = kLineBytes / sizeof(float);
    return (beta_at() + floats(shape.value_heads, 1) + kLine - 1) / kLine * kLine;
  }
  constexpr size_t bytes(int rows) const {
    return static_cast<size_t>(rows) * row_floats() * sizeof(float);
  }

  float* row(std::byte* pending, int index) const {
    return reinterpret_cast<float*>(pending) + static_cast<size_t>(index) * row_floats();
  }

 private:
  static constexpr size_t floats(int count, int each) {
    return static_cast<size_t>(count) * static_cast<size_t>(each);
  }
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
  /// Decode role only. The launch first applies the accepted rows of the verify launch before it,
  /// stores the matrix, and then runs its own rows without storing it: they become the pending
  /// rows. The caller sets the accepted count between two such launches; spans without rows only
  /// apply what is accepted. Rings are written as always.
  bool verify = false;
  size_t pending_offset = 0;   // in the slot: GdnPending
  int pending_rows = 0;        // rows that it holds
  size_t accepted_offset = 0;  // in the slot: int32, how many of them count, of all layers

  /// Of a slot in host memory; a count that no launch can have left is cut.
  int accepted_rows(const std::byte* slot) const {
    int32_t count = 0;
    std::memcpy(&count, slot + accepted_offset, sizeof count);
    return count < 0 ? 0 : count < pending_rows ? count : pending_rows;
  }
};

Cost cost(const GdnArgs& args);

}  // namespace tessera::ops
