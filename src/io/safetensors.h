// SPDX-License-Identifier: Apache-2.0
// One safetensors file, memory-mapped. The header is untrusted: every offset is checked before use.
#pragma once

#include <tessera/error.h>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "io/mapped_file.h"

namespace tessera {

/// A tensor inside a mapped file.
struct TensorRef {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape{};
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
  std::string file{};  // for messages

  int64_t elements() const;
  /// False when `data` may not be read through a pointer to the element type: the format packs
  /// tensors without gaps, so one-byte types can push the next tensor to an odd place.
  bool aligned() const;
  std::string describe() const;  // "[8192, 128] BF16"
};

using TensorMap = std::map<std::string, TensorRef, std::less<>>;

/// Parses header and offsets of a file image; `where` names it in errors. The views point into
/// `file`.
Result<TensorMap> parse_safetensors(std::string_view file, const std::string& where);

/// "[a, b, c]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace tessera
