// SPDX-License-Identifier: Apache-2.0
// Prefill kernel: the register tile and the loops around it. Local to the including file.
#pragma once

#include "cpu/fast/linear_pack.h"

namespace tessera::cpu {
namespace {

/// Rows of the full tile: sums, two weight vectors and one broadcast fill the registers.
inline constexpr int kTileRows = kVectorBytes == 64 ? 14 : 6;
static_assert(kTileRows <= kMaxTileRows);

struct TileOut {
  float* y = nullptr;
  int64_t stride = 0;
  int columns = 0;          // of the panel, the rest is padding
  bool accumulate = false;  // false for the first K block
};

template <int kM, int kV>
[[gnu::always_inline]] inline void write_tile(const Vec (&sum)[kM][kV], const TileOut& out) {
  for (int m = 0; m < kM; ++m) {
    float* y = out.y + m * out.stride;
    if (out.columns == kV * kLanes) {
      for (int v = 0; v < kV; ++v) {
        float* to = y + v * kLanes;
        store(to, out.accumulate ? load<Vec>(to) + sum[m][v] : sum[m][v]);
      }
    } else {
      float lane[kV * kLanes];
      for (int v = 0; v < kV; ++v) store(lane + v * kLanes, sum[m][v]);
      for (int n = 0; n < out.columns; ++n) y[n] = out.accumulate ? y[n] + lane[n] : lane[n];
    }
  }
}

/// y[kM][columns] (+)= a[kM][depth] b[depth][kPanel]. Every output is one chain of multiply-adds
/// in K order whatever kM and kV are.
template <int kM, int kV>
[[gnu::noinline]] void tile(const float* a, const float* b, int depth, const TileOut& out) {
  Vec sum[kM][kV] = {};
  for (int k = 0; k < depth; ++k) {
    Vec weight[kV];
    for (int v = 0; v < kV; ++v) weight[v] = load<Vec>(b + k * kPanel + v * kLanes);
    for (int m = 0; m < kM; ++m) {
      const Vec x = broadcast(a[m * kDepthBlock + k]);
      for (int v = 0; v < kV; ++v) sum[m][v] += x * weight[v];
    }
  }
  write_tile(sum, out);
}

template <int kM>
[[gnu::always_inline]] inline void tile_rows(const float* a, const float* b, int depth,
                                             const TileOut& out) {
  if (out.columns > kLanes)
    tile<kM, 2>(a, b, depth, out);
  else
    tile<kM, 1>(a, b, depth, out);
}

/// What is left of a tile that is shorter than kTileRows.
struct TileRest {
  int rows = 0;
  const float* a = nullptr;
  TileOut out;
};

template <int kM>
[[gnu::always_inline]] inline void take_rows(TileRest& rest, const float* b, int depth) {
  if (rest.rows < kM) return;
  tile_rows<kM>(rest.a, b, depth, rest.out);
  rest.rows -= kM;
  rest.a += kM * kDepthBlock;
  rest.out.y += kM * rest.out.stride;
}

/// Any number of rows up to kTileRows.
inline void tile_any(int rows, const float* a, const float* b, int depth, const TileOut& out) {
  TileRest rest{rows, a, out};
  take_rows<kTileRows>(rest, b, depth);
  if constexpr (kTileRows > 8) take_rows<8>(rest, b, depth);
  take_rows<4>(rest, b, depth);
  take_rows<2>(rest, b, depth);
  take_rows<1>(rest, b, depth);
}

inline void clear(float* y, int64_t stride, int rows, int columns) {
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) y[row * stride + column] = 0.0F;
}

/// Columns [first, last) of y: unpack kGroupColumns weight rows of one K block, pass all activation
/// rows over them, next K block. Weights are decoded once, activations are read once per group.
inline void multiply_columns(const ColumnsTask& task) {
  float* panels = task.workspace;
  float* rows_of_x = panels + size_t{kDepthBlock} * kGroupColumns;
  const int depth_all = task.weight.in_features;
  if (depth_all == 0) clear(task.y + task.first, task.y_stride, task.rows, task.last - task.first);
  for (int group = task.first; group < task.last; group += kGroupColumns) {
    const int columns = task.last - group < kGroupColumns ? task.last - group : kGroupColumns;
    for (int k = 0; k < depth_all; k += kDepthBlock) {
      const int depth = depth_all - k < kDepthBlock ? depth_all - k : kDepthBlock;
      for (int n = 0; n < columns; n += kPanel) {
        const int here = columns - n < kPanel ? columns - n : kPanel;
        pack_any(task.weight, group + n, here, k, depth, panels + int64_t{n} * kDepthBlock);
      }
      for (int row = 0; row < task.rows; row += kTileRows) {
        const int height = task.rows - row < kTileRows ? task.rows - row : kTileRows;
        pack_rows(task.x + row * task.x_stride + k, task.x_stride, height, depth, rows_of_x);
        for (int n = 0; n < columns; n += kPanel) {
          const int here = columns - n < kPanel ? columns - n : kPanel;
          tile_any(height, rows_of_x, panels + int64_t{n} * kDepthBlock, depth,
                   {task.y + row * task.y_stride + group + n, task.y_stride, here, k > 0});
        }
      }
    }
  }
}

inline void pack_transposed_rows(const GemmIn& a, int k, int depth, int row, int rows, float* out) {
  for (int step = 0; step < depth; ++step) {
    const float* from = a.data + (k + step) * a.stride + row;
    for (int m = 0; m < rows; ++m) out[m * kDepthBlock + step] = from[m];
  }
}

/// b[k..k+depth][n..n+columns] as it lies, padded to the panel width.
inline void pack_plain_panel(const GemmIn& b, int k, int depth, int n, int columns, float* out) {
  for (int step = 0; step < depth; ++step) {
    const float* from = b.data + (k + step) * b.stride + n;
    float* to = out + step * kPanel;
    if (columns == kPanel) {
      store(to, load<Vec>(from));
      store(to + kLanes, load<Vec>(from + kLanes));
    } else {
      for (int column = 0; column < kPanel; ++column)
        to[column] = column < columns ? from[column] : 0.0F;
    }
  }
}

inline void gemm_any(GemmForm form, const GemmSize& size, const GemmIn& a, const GemmIn& b,
                     const GemmOut& c) {
  constexpr int kColumns = 64;  // bounds the stack
  alignas(64) float panels[kColumns * kDepthBlock];
  alignas(64) float rows_of_a[kTileRows * kDepthBlock];
  if (size.k == 0 && !c.accumulate) clear(c.data, c.stride, size.m, size.n);
  WeightView view;
  view.data = reinterpret_cast<const unsigned char*>(b.data);
  view.row_bytes = b.stride * int64_t{sizeof(float)};
  view.out_features = size.n;
  view.in_features = size.k;
  for (int group = 0; group < size.n; group += kColumns) {
    const int columns = size.n - group < kColumns ? size.n - group : kColumns;
    for (int k = 0; k < size.k; k += kDepthBlock) {
      const int depth = size.k - k < kDepthBlock ? size.k - k : kDepthBlock;
      for (int n = 0; n < columns; n += kPanel) {
        const int here = columns - n < kPanel ? columns - n : kPanel;
        float* panel = panels + n * kDepthBlock;
        if (form == GemmForm::kNT)
          pack_panel<F32Weight>(view, group + n, here, k, depth, panel);
        else
          pack_plain_panel(b, k, depth, group + n, here, panel);
      }
      for (int row = 0; row < size.m; row += kTileRows) {
        const int height = size.m - row < kTileRows ? size.m - row : kTileRows;
        if (form == GemmForm::kTN)
          pack_transposed_rows(a, k, depth, row, height, rows_of_a);
        else
          pack_rows(a.data + row * a.stride + k, a.stride, height, depth, rows_of_a);
        for (int n = 0; n < columns; n += kPanel) {
          const int here = columns - n < kPanel ? columns - n : kPanel;
          tile_any(height, rows_of_a, panels + n * kDepthBlock, depth,
                   {c.data + row * c.stride + group + n, c.stride, here, c.accumulate || k > 0});
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cpu
