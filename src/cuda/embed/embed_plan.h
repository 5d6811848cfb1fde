// SPDX-License-Identifier: Apache-2.0
// Which embedding kernel a table can use.
#pragma once

#include <cstdint>
#include <string_view>

#include "ops/embed.h"

namespace tessera::cuda {

inline constexpr int kEmbedThreads = 128;

/// Empty when table rows can be copied as 16-byte vectors, else why not.
inline std::string_view supports_embed_vectors(const ops::EmbedArgs& args) {
  constexpr uintptr_t kAccessBytes = 16;
  constexpr int kAccessElements = 8;
  if (args.table.dtype != DType::kBF16) return "the table is not BF16";
  if (args.table.in_features % kAccessElements != 0) return "hidden is no multiple of 8";
  if (reinterpret_cast<uintptr_t>(args.table.data) % kAccessBytes != 0 ||
      reinterpret_cast<uintptr_t>(args.wide) % kAccessBytes != 0)
    return "table or output is not 16-byte aligned";
  return {};
}

}  // namespace tessera::cuda
