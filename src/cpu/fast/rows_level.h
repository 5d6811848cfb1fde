// SPDX-License-Identifier: Apache-2.0
// The inner kernels of GDN and QSA, compiled once per instruction set and chosen once at start.
#pragma once

#include <cstddef>
#include <cstdint>

// Like linear_level.h: files of one level see no standard containers or algorithms.
namespace tessera::cpu {

inline constexpr int kDeltaColumns = 32;  // state columns of one delta_step at most

/// Cache lines to ask for while computing: the start of each row's next operand. Gathered rows are
/// too short and too scattered for the processor to foresee.
struct Ahead {
  const std::byte* const* rows = nullptr;  // [count]
  int count = 0;
  int bytes = 0;  // of each row
};

/// out[row][lane] = sum over d of rows[row][d] * packed[d][lane]; the sum runs in ascending d
/// whatever the number of rows and lanes, so a product's bits depend on its own operands alone.
struct LaneProducts {
  const float* const* rows = nullptr;  // [count] pointers to `depth` floats
  int count = 0;
  int depth = 0;
  const float* packed = nullptr;  // [depth, lanes]
  int lanes = 0;
  float* out = nullptr;     // [count, lanes]
  bool accumulate = false;  // start from what `out` holds
  Ahead ahead{};
};

/// out[head][c] += sum over rows of weights[row][head] * rows[row][c], rows ascending.
struct WeightedSum {
  const float* const* rows = nullptr;  // [count] pointers to `width` floats
  int count = 0;
  int width = 0;
  const float* weights = nullptr;  // [count, weight_stride]
  int weight_stride = 0;
  int heads = 0;
  float* out = nullptr;  // [heads, width]
  Ahead ahead{};
};

/// One token of the delta rule on some columns of a state matrix, reading it once and updating it
/// once: u = beta (v - decay M^T k); o = decay M^T q + (k . q) u; M = decay M + k u^T.
struct DeltaStep {
  float* state = nullptr;  // [key_dim, columns], rows `state_stride` apart
  int64_t state_stride = 0;
  int key_dim = 0;
  int columns = 0;             // at most kDeltaColumns
  const float* key = nullptr;  // [key_dim]
  const float* query = nullptr;
  const float* value = nullptr;  // [columns]
  float key_query = 0;           // k . q
  float decay = 0;
  float beta = 0;
  float* out = nullptr;  // [columns]
};

/// scores[n] = scale * sum over heads of relu(queries[head] . keys[n]). A score's bits depend on
/// its own key and the queries alone.
struct BlockScores {
  const float* keys = nullptr;  // [count, dim]
  int count = 0;
  int dim = 0;
  const float* queries = nullptr;  // [heads, dim]
  int heads = 0;
  float scale = 0;
  float* scores = nullptr;       // [count]
  const float* ahead = nullptr;  // keys to ask for meanwhile, as many as `keys`; may be nullptr
};

struct RowKernels {
  const char* name = "";
  void (*lane_products)(const LaneProducts& task) = nullptr;
  void (*weighted_sum)(const WeightedSum& task) = nullptr;
  void (*delta_step)(const DeltaStep& task) = nullptr;
  void (*block_scores)(const BlockScores& task) = nullptr;
};

const RowKernels& base_row_kernels();
#if defined(__x86_64__)
const RowKernels& avx2_row_kernels();
const RowKernels& avx512_row_kernels();
#endif

/// The best level that this processor supports.
const RowKernels& row_kernels();

/// All levels that this processor supports, best first; tests run every one.
struct RowLevels {
  const RowKernels* levels[3] = {};
  int count = 0;
};
RowLevels supported_row_levels();

}  // namespace tessera::cpu
