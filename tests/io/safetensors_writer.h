// SPDX-License-Identifier: Apache-2.0
// Writes safetensors files for tests: correct ones, and correct ones at odd addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"

namespace tessera::test {

struct TensorImage {
  std::string dtype{};  // as the file spells it
  std::vector<int64_t> shape{};
  std::string bytes{};
};

using CheckpointImage = std::map<std::string, TensorImage>;

template <class T>
TensorImage tensor_image(const std::string& dtype, std::vector<int64_t> shape,
                         const std::vector<T>& values) {
  TensorImage tensor{.dtype = dtype, .shape = std::move(shape)};
  tensor.bytes.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

/// Copies tensors out of a file so that a test can damage them.
inline CheckpointImage checkpoint_image(const TensorMap& tensors) {
  CheckpointImage image;
  for (const auto& [name, tensor] : tensors) {
    image[name] = {.dtype = dtype_name(tensor.dtype),
                   .shape = tensor.shape,
                   .bytes = std::string(reinterpret_cast<const char*>(tensor.data), tensor.bytes)};
  }
  return image;
}

/// Length prefix, header and payload as given: for headers that no writer would produce.
inline std::string safetensors_file(std::string_view header, std::string_view payload) {
  constexpr size_t kLengthBytes = 8;
  std::string file;
  for (size_t byte = 0; byte < kLengthBytes; ++byte) {
    file.push_back(static_cast<char>((header.size() >> (8 * byte)) & 0xFFU));
  }
  return file.append(header).append(payload);
}

/// A valid file. The header is padded to a multiple of 8, then by `shift` bytes more.
inline std::string safetensors_bytes(const CheckpointImage& image, size_t shift = 0) {
  constexpr size_t kAlign = 8;
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::string payload;
  for (const auto& [name, tensor] : image) {
    header += ",\"" + name + R"(":{"dtype":")" + tensor.dtype + R"(","shape":)" +
              shape_text(tensor.shape) + R"(,"data_offsets":[)" + std::to_string(payload.size()) +
              "," + std::to_string(payload.size() + tensor.bytes.size()) + "]}";
    payload += tensor.bytes;
  }
  header += "}";
  header.append((kAlign - header.size() % kAlign) % kAlign + shift, ' ');
  return safetensors_file(header, payload);
}

}  // namespace tessera::test
