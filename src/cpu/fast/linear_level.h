// SPDX-License-Identifier: Apache-2.0
// The inner kernels of every product, compiled once per instruction set and chosen once at start.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "cpu/fast/gemm_tile.h"

// A level's file is compiled with flags that this machine may not support. It must not emit an
// inline function that other files share (the linker keeps one copy of those), hence no standard
// containers or algorithms here and in the headers that only those files include.
namespace tessera::cpu {

/// ops::LinearWeight without its header; sizes in elements.
struct WeightView {
  const unsigned char* data = nullptr;
  const float* scale = nullptr;  // kF8E4M3: one per 128 x 128 block, row-major
  int64_t row_bytes = 0;
  int64_t scale_cols = 0;
  DType dtype = DType::kF32;
  int out_features = 0;
  int in_features = 0;
};

/// y[row][n] = W[n] . x[row] for n in [first, last).
struct DotTask {
  WeightView weight;
  int first = 0;
  int last = 0;
  const float* const* x = nullptr;
  float* const* y = nullptr;
  int rows = 0;
};

/// y[row][n] = W[n] . x[row] for n in [first, last) and all rows; first is a multiple of
/// kColumnGrain.
struct ColumnsTask {
  WeightView weight;
  int first = 0;
  int last = 0;
  const float* x = nullptr;
  int64_t x_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  int rows = 0;
  float* workspace = nullptr;  // kWorkspaceFloats, 64-byte aligned
};

enum class GemmForm : uint8_t { kNT, kNN, kTN };

inline constexpr int kScaleSide = 128;     // of an FP8 scale block, ops::kScaleBlock
inline constexpr int kColumnGrain = 32;    // columns of the widest register tile
inline constexpr int kGroupColumns = 256;  // weight columns unpacked before rows pass over them
inline constexpr int kDepthBlock = 256;    // K elements unpacked at a time
inline constexpr int kMaxTileRows = 14;    // rows of the tallest register tile
inline constexpr size_t kWorkspaceFloats = size_t{kDepthBlock} * (kGroupColumns + kMaxTileRows);

struct LevelKernels {
  const char* name = "";
  void (*dot)(const DotTask& task) = nullptr;
  void (*columns)(const ColumnsTask& task) = nullptr;
  void (*gemm)(GemmForm form, const GemmSize& size, const GemmIn& a, const GemmIn& b,
               const GemmOut& c) = nullptr;
};

const LevelKernels& base_kernels();
#if defined(__x86_64__)
const LevelKernels& avx2_kernels();
const LevelKernels& avx512_kernels();
const LevelKernels& avx512_vbmi_kernels();
#endif

/// The best level that this processor supports.
const LevelKernels& level_kernels();

inline constexpr int kMaxLevels = 4;

/// All levels that this processor supports, best first; tests run every one.
struct LevelList {
  const LevelKernels* levels[kMaxLevels] = {};
  int count = 0;
};
LevelList supported_levels();

}  // namespace tessera::cpu
