// SPDX-License-Identifier: Apache-2.0
// Weights as the checkpoint stores them. Non-owning: the memory map or the binder's buffers own the
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace tessera::ops {

inline constexpr int kScaleBlock = 128;  // FP8 weights carry one scale per 128 x 128 block

/// Linear weight, row-major [out_features, in_features]: y = x W^T.
struct LinearWeight {
  const void* data = nullptr;  // kF32, kBF16 or kF8E4M3
  DType dtype = DType::kBF16;
  const float* scale = nullptr;  // kF8E4M3: [ceil(out/128), ceil(in/128)]; w = fp8 * scale
  int out_features = 0;
  int in_features = 0;

  explicit operator bool() const { return data != nullptr; }
  size_t row_bytes() const { return static_cast<size_t>(in_features) * dtype_bytes(dtype); }
  size_t bytes() const { return row_bytes() * static_cast<size_t>(out_features); }
  int scale_cols() const { return (in_features + kScaleBlock - 1) / kScaleBlock; }
};

struct ExpertWeight {
  LinearWeight gate;  // [width, hidden]
  LinearWeight up;    // [width, hidden]
  LinearWeight down;  // [hidden, width]
};

/// Hashed n-gram table: equal shards in row order (the last may be shorter).
struct NgramTable {
  std::vector<const void*>
      shards{};  // each [rows_per_shard, row_dim], dtype kBF16, kF32 or kF8E4M3
  DType dtype = DType::kBF16;
  float scale = 1.0F;  // kF8E4M3: value = fp8 * scale
  int64_t rows_per_shard = 0;
  int64_t num_rows = 0;
  int row_dim = 0;

  const std::byte* row(int64_t index) const {
    const auto shard = static_cast<size_t>(index / rows_per_shard);
    const auto inner = static_cast<size_t>(index % rows_per_shard);
    return static_cast<const std::byte*>(shards[shard]) +
           inner * static_cast<size_t>(row_dim) * dtype_bytes(dtype);
  }
};

}  // namespace tessera::ops
