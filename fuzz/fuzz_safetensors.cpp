// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a safetensors file: an error, or views that lie inside the bytes.
#include <cstdint>
#include <cstdlib>

#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto tensors = tessera::parse_safetensors(file, "fuzz");
  if (!tensors) {
    if (tensors.error().message().empty()) std::abort();
    return 0;
  }
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  for (const auto& [name, tensor] : *tensors) {
    if (tensor.data < begin || tensor.data + tensor.bytes > begin + size) std::abort();
  }
  return 0;
}
