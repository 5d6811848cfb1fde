// SPDX-License-Identifier: Apache-2.0
// Addresses inside the QSA page caches of a sequence.
#pragma once

#include "ops/qsa.h"

namespace tessera::cpu {

inline std::byte* page_of_token(const ops::PageRef& cache, const ops::RowSpan& span,
                                int64_t token) {
  return cache.page(span.pages[token / ops::kPageTokens]);
}

/// The vector of one token of one kv head; the tokens of a block follow each other.
inline std::byte* cached_vector(const ops::PageRef& cache, const ops::QsaShape& shape,
                                const ops::RowSpan& span, int kv_head, int64_t token) {
  const int64_t cell = int64_t{kv_head} * ops::kPageTokens + token % ops::kPageTokens;
  return page_of_token(cache, span, token) +
         static_cast<size_t>(cell * shape.head_dim) * dtype_bytes(cache.dtype);
}

inline std::byte* cached_index_key(const ops::PageRef& cache, const ops::QsaShape& shape,
                                   const ops::RowSpan& span, int64_t block) {
  const int64_t cell = block % shape.blocks_per_page();
  return page_of_token(cache, span, block * shape.block) +
         static_cast<size_t>(cell * shape.index_dim) * dtype_bytes(cache.dtype);
}

}  // namespace tessera::cpu
