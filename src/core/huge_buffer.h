// SPDX-License-Identifier: Apache-2.0
// Memory that is read at full speed: in huge pages wherever the system grants them.
#pragma once

#include <cstddef>
#include <memory>

namespace tessera {

/// Zeroed bytes from the system. Small pages lie wherever earlier programs left a gap, and reading
/// through scattered ones is slower and differs from run to run.
class HugeBuffer {
 public:
  /// Throws std::bad_alloc.
  explicit HugeBuffer(size_t bytes);

  std::byte* data() const { return data_.get(); }
  size_t size() const { return data_.get_deleter().bytes; }

 private:
  struct Unmap {
    size_t bytes = 0;
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Unmap> data_;
};

}  // namespace tessera
