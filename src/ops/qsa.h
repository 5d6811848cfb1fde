// SPDX-License-Identifier: Apache-2.0
// Qwen Sparse Attention: front (norms, RoPE, cache writes, pooled index keys), exact block
// selection, attention over the gathered blocks.
#pragma once

#include <cstdint>

#include "ops/cost.h"
#include "ops/rows.h"

namespace tessera::ops {

struct QsaShape {
  int heads = 0;        // Hq
  int kv_heads = 0;     // Hkv; query head h reads kv head h / (Hq / Hkv)
  int head_dim = 0;     // D
  int index_heads = 0;  // Hi
  int index_dim = 0;    // Di
  int block = 0;        // c, tokens per block; divides kPageTokens
  int rotary_dim = 0;   // rotated dims at the front of D and of Di (half-split form)

  constexpr int blocks_per_page() const { return kPageTokens / block; }
};

/// Angles: frequency i of rotary_dim / 2 uses coordinate axis[i] (0 t, 1 h, 2 w) of the position.
struct RopeTable {
  const float* inv_freq = nullptr;  // [rotary_dim / 2]
  const int32_t* axis = nullptr;    // [rotary_dim / 2]
  float attention_scale = 1.0F;     // multiplies cos and sin (YaRN), 1 otherwise
};

/// Cache layout of a layer. Pages hold K and V as [kv head][token in page][D], index keys as
/// [block in page][Di]. Rings hold raw index keys [Di] activations and positions int32[3].
struct QsaCache {
  PageRef keys;
  PageRef values;
  PageRef index_keys;
  RingRef raw_keys;   // reach block - 1
  RingRef positions;  // reach block - 1, entries int32[3]
};

/// q, k: RMS1 per head then RoPE; K and V to their page; raw index key to its ring; each block that
/// completes in this launch: key = RoPE at its first token's position of RMS1(mean of raw keys).
struct QsaFrontArgs {
  QsaShape shape;
  RopeTable rope;
  QsaCache cache;
  /// [rows, Hq, 2 * D] activations: per head query then gate; nullptr (with q and index_q): the
  /// rows leave keys, values and index keys only. Backends with Traits::drafts.
  const void* q_gate = nullptr;
  const void* k = nullptr;              // [rows, Hkv, D] activations
  const void* v = nullptr;              // [rows, Hkv, D] activations
  const void* index_qk = nullptr;       // [rows, Hi + 1, Di] activations: queries then the key
  const int32_t* positions = nullptr;   // [rows, 3] RoPE positions (t, h, w)
  const float* q_norm = nullptr;        // [D], 1 + w
  const float* k_norm = nullptr;        // [D], 1 + w
  const float* index_q_norm = nullptr;  // [Di], 1 + w
  const float* index_k_norm = nullptr;  // [Di], 1 + w
  float eps = 0;
  RowBatch batch;
  void* q = nullptr;        // [rows, Hq, D] activations, written
  void* index_q = nullptr;  // [rows, Hi, Di] activations, written
};

/// Query at index p sees n = (p + 1) / c complete blocks. n <= budget: all of them (identity, not
/// scored). Else the best `budget` by score_j = sum_h relu(q_h . key_j) / sqrt(Di); higher score
/// first, then the lower block id; NaN scores rank below every number. Lists are emitted ascending.
struct QsaSelectArgs {
  QsaShape shape;
  QsaCache cache;
  const void* index_q = nullptr;  // [rows, Hi, Di] activations
  int budget_blocks = 0;          // indexer_budget / c
  RowBatch batch;
  int32_t* blocks = nullptr;  // [rows, budget_blocks], first counts[row] entries written
  int32_t* counts = nullptr;  // [rows]
  /// Most tokens of a sequence in this launch or a repetition of it; 0: as many as the spans show.
  int64_t max_context = 0;
};

/// Lists without scores, for rows that follow rows whose lists are known: row r takes the list of
/// row source_rows[r] of an earlier launch, which was one position before, and its own block where
/// it completes one. Lists stay ascending. In place where source_rows[r] >= r ascend.
struct QsaExtendArgs {
  int block = 0;
  const int32_t* source_rows = nullptr;  // [rows]
  const int32_t* from_blocks = nullptr;  // [earlier rows, from_stride]
  const int32_t* from_counts = nullptr;  // [earlier rows]
  int from_stride = 0;
  RowBatch batch;             // one row a span
  int32_t* blocks = nullptr;  // [rows, stride], stride has room for one block more
  int32_t* counts = nullptr;  // [rows]
  int stride = 0;
};

/// Softmax over the tokens of the selected blocks, ascending, then the open tail (p + 1) / c * c ..
/// p. out = softmax(q k^T / sqrt(D)) v * sigmoid(gate).
struct QsaAttendArgs {
  QsaShape shape;
  QsaCache cache;
  const void* q = nullptr;          // [rows, Hq, D] activations
  const void* q_gate = nullptr;     // [rows, Hq, 2 * D] activations, the gate half is read
  const int32_t* blocks = nullptr;  // [rows, budget_blocks]
  const int32_t* counts = nullptr;  // [rows]
  int budget_blocks = 0;
  RowBatch batch;
  void* out = nullptr;  // [rows, Hq * D] activations, written
};

Cost cost(const QsaFrontArgs& args);
Cost cost(const QsaSelectArgs& args);
Cost cost(const QsaExtendArgs& args);
Cost cost(const QsaAttendArgs& args);

}  // namespace tessera::ops
