// SPDX-License-Identifier: Apache-2.0
// The stages of a GDN launch: rows are prepared window by window, then every value head runs its
// tokens through its state matrix, by the recurrence or in chunks.
#pragma once

#include <span>

#include "core/arena.h"
#include "cpu/floats.h"
#include "ops/gdn.h"

namespace tessera::cpu {

/// Rows of one span between two lines of the absolute grid of kGdnChunk tokens.
struct GdnChunk {
  const ops::RowSpan* span = nullptr;
  int first = 0;  // row within the span
  int rows = 0;

  int64_t launch_row() const { return span->row_begin + first; }
};

/// Consecutive chunks whose intermediates are in memory together.
struct GdnWindow {
  std::span<const GdnChunk> chunks{};
  int64_t first_row = 0;  // in the launch
  int rows = 0;
};

/// Per window row.
struct GdnPrepared {
  float* mixed = nullptr;        // [rows, channels]: q (normalised, scaled), k (normalised), v
  float* log_decay = nullptr;    // [rows, Hv], g <= 0
  float* beta = nullptr;         // [rows, Hv]
  float* key_query = nullptr;    // [rows, Hk], k . q
  const float* zeros = nullptr;  // [channels]
};

/// Rows of one head inside `mixed`.
struct GdnHead {
  int key_head = 0;
  int64_t query_at = 0;  // offsets within a row of `mixed`
  int64_t key_at = 0;
  int64_t value_at = 0;
};

inline GdnHead gdn_head(const ops::GdnShape& shape, int head) {
  const int key_head = head / (shape.value_heads / shape.key_heads);
  const int64_t keys = int64_t{shape.key_heads} * shape.key_dim;
  const int64_t key_offset = int64_t{key_head} * shape.key_dim;
  return {key_head, key_offset, keys + key_offset, 2 * keys + int64_t{head} * shape.value_dim};
}

inline float* gdn_matrix(const ops::GdnArgs& args, const ops::RowSpan& span, int head) {
  return reinterpret_cast<float*>(span.slot + args.matrix_offset) +
         int64_t{head} * args.shape.key_dim * args.shape.value_dim;
}

/// Convolution, normalisation and gates of the window's rows, in parallel.
void gdn_prepare(const ops::GdnArgs& args, const GdnWindow& window, const GdnPrepared& prepared);

/// Gated norm of one row and head, in place in floats(args.out).
void gdn_finish_row(const ops::GdnArgs& args, int64_t launch_row, int head);

/// Recurrence of one head over chunks of one span.
void gdn_run_recurrence(const ops::GdnArgs& args, const GdnWindow& window,
                        std::span<const GdnChunk> chunks, int head, const GdnPrepared& prepared);

/// k k^T and q k^T of a chunk and key head, shared by the value heads that read it.
struct GdnProducts {
  float* key_key = nullptr;    // [kGdnChunk, kGdnChunk]
  float* query_key = nullptr;  // [kGdnChunk, kGdnChunk]
};
void gdn_chunk_products(const ops::GdnArgs& args, const GdnWindow& window, const GdnChunk& chunk,
                        int key_head, const GdnPrepared& prepared, const GdnProducts& products);

/// Per-thread buffers of the chunked form.
struct GdnChunkWorkspace {
  float* system = nullptr;     // [kGdnChunk, kGdnChunk]
  float* attention = nullptr;  // [kGdnChunk, kGdnChunk]
  float* update = nullptr;     // [kGdnChunk, dv]
  float* out = nullptr;        // [kGdnChunk, dv]
};
GdnChunkWorkspace take_gdn_chunk_workspace(const ops::GdnShape& shape, Arena& scratch);

/// Chunked form of one head over one chunk.
void gdn_run_chunk(const ops::GdnArgs& args, const GdnWindow& window, const GdnChunk& chunk,
                   int head, const GdnPrepared& prepared, const GdnProducts& products,
                   const GdnChunkWorkspace& work);

}  // namespace tessera::cpu
