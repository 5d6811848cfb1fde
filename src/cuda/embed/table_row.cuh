// SPDX-License-Identifier: Apache-2.0
// Values of an embedding table of any stored type, one at a time.
#pragma once

#include "cuda/device/bf16.cuh"
#include "ops/weight.h"

namespace tessera::cuda::device {

/// Columns of one row of the table, scales applied.
class TableRow {
 public:
  __device__ TableRow(const ops::LinearWeight& table, int id)
      : table_(table), start_(static_cast<size_t>(id) * static_cast<size_t>(table.in_features)) {
    const int scale_cols = (table.in_features + ops::kScaleBlock - 1) / ops::kScaleBlock;
    if (table.dtype == DType::kF8E4M3 && table.scale != nullptr)
      scale_ = table.scale +
               static_cast<size_t>(id / ops::kScaleBlock) * static_cast<size_t>(scale_cols);
  }
  __device__ float at(int col) const {
    const float value = load_element(table_.dtype, table_.data, start_ + static_cast<size_t>(col));
    return scale_ == nullptr ? value : value * scale_[col / ops::kScaleBlock];
  }

 private:
  const ops::LinearWeight& table_;
  size_t start_;
  const float* scale_ = nullptr;
};

}  // namespace tessera::cuda::device
