// SPDX-License-Identifier: Apache-2.0
// Scratch for an op that is built from other ops: those must not get the region that holds its own
// intermediate results.
#pragma once

#include <stdexcept>

#include "cuda/context.h"

namespace tessera::cuda {

/// The same context, whose scratch begins behind the first `reserved` bytes.
class ScratchTail final : public Context {
 public:
  /// `tail_bytes` is an estimate of what the inner ops need: scratch that has to grow loses its
  /// contents.
  ScratchTail(Context& whole, size_t reserved, size_t tail_bytes)
      : Context(whole),
        whole_(whole),
        reserved_(reserved),
        base_(static_cast<std::byte*>(whole.scratch(reserved + tail_bytes))) {}

  std::byte* reserved() const { return base_; }

  void* scratch(size_t bytes) override {
    auto* base = static_cast<std::byte*>(whole_.scratch(reserved_ + bytes));
    if (base != base_)
      throw std::logic_error("an inner op needs more scratch than its caller knew");
    return base + reserved_;
  }
  void* persistent(const void* tag, size_t bytes) override { return whole_.persistent(tag, bytes); }

 private:
  Context& whole_;
  size_t reserved_;
  std::byte* base_;
};

}  // namespace tessera::cuda
