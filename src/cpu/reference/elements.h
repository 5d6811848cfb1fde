// SPDX-License-Identifier: Apache-2.0
// Reading stored elements (weights, tables, caches) as numbers, and writing caches.
#pragma once

#include <span>
#include <vector>

#include "ops/rows.h"
#include "ops/weight.h"

namespace tessera::cpu::reference {

float load_element(DType dtype, const void* base, size_t index);

/// `out.size()` consecutive elements from `first` on.
void load_elements(DType dtype, const void* base, size_t first, std::span<float> out);

/// kF32 as is, kBF16 rounded to nearest even.
void store_element(DType dtype, void* base, size_t index, float value);

/// One output's weights with the block scale applied; `out` has in_features values.
void decode_weight_row(const ops::LinearWeight& weight, int row, std::span<double> out);

/// y [rows, out_features] = x [rows, in_features] W^T.
void product(const float* x, int rows, const ops::LinearWeight& weight, float* y);

/// Page holding the token at `position`.
inline std::byte* page_of(const ops::PageRef& ref, const ops::RowSpan& span, int64_t position) {
  return ref.page(span.pages[position / ops::kPageTokens]);
}

}  // namespace tessera::cpu::reference
