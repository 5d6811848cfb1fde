// SPDX-License-Identifier: Apache-2.0
// Read-only memory map of a file (RAII).
#pragma once

#include <tessera/error.h>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

class MappedFile {
 public:
  static Result<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile() = default;
  const char* data_ = nullptr;
  size_t size_ = 0;
  std::string path_{};
};

/// Tells the kernel that a mapped range is read in small pieces at random: no read-ahead.
void advise_random(const void* data, size_t bytes);

/// Whole small text file; refuses files above `max_bytes`.
Result<std::string> read_text_file(const std::string& path, size_t max_bytes);

}  // namespace tessera
