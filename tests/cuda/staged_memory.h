// SPDX-License-Identifier: Apache-2.0
// Device copies of host arrays for the time of one op: activations are FP32 on the host and what
// the backend wants on the device.
#pragma once

#include <map>
#include <set>
#include <span>
#include <vector>

#include "core/memory.h"
#include "ops/ops.h"

namespace tessera::test {

/// Blocks of exactly the size asked for, so that a memory checker sees the first byte of an
/// overrun; kept for the next op, because allocating is slow.
class DeviceCache {
 public:
  explicit DeviceCache(Memory& memory) : memory_(memory) {}
  std::byte* take(size_t bytes);
  /// Everything taken so far is free again.
  void give_back_all();
  Memory& memory() { return memory_; }

 private:
  Memory& memory_;
  std::map<size_t, std::vector<MemoryBlock>> free_{};
  std::vector<MemoryBlock> taken_{};
  size_t held_bytes_ = 0;
};

/// A run of host memory and its place in a device block.
struct StagedPiece {
  std::byte* host = nullptr;  // written only when the piece is downloaded
  size_t offset = 0;          // in the device block
  size_t count = 0;           // bytes, or floats when `rounded`
  bool rounded = false;       // FP32 on the host, BF16 on the device

  size_t device_bytes() const { return rounded ? count * sizeof(uint16_t) : count; }
};

/// A device block made of pieces; what lies between them is poison and must stay so.
class StagedBlock {
 public:
  StagedBlock(DeviceCache& cache, size_t bytes, std::vector<StagedPiece> pieces);
  std::byte* data() const { return data_; }
  /// Brings changed elements back: an element that the op left alone keeps its host bits.
  void download();

 private:
  Memory& memory_;
  std::byte* data_;
  std::vector<StagedPiece> pieces_;
  std::vector<std::byte> image_;  // of the whole block, or of the pieces one after the other
  bool whole_;
};

/// Arguments of one op.
class Staging {
 public:
  Staging(DeviceCache& cache, const ops::Traits& traits)
      : cache_(cache), rounds_(traits.activation == DType::kBF16) {}

  bool rounds() const { return rounds_; }
  /// `count` activations that the op reads; nullptr stays nullptr.
  const void* activations_in(const void* host, size_t count);
  /// Activations that it writes; the host's values are there before.
  void* activations_out(void* host, size_t count);
  template <class T>
  const T* in(const T* host, size_t count) {
    return reinterpret_cast<const T*>(stage(const_cast<T*>(host), count * sizeof(T), false, false));
  }
  template <class T>
  T* out(T* host, size_t count) {
    return reinterpret_cast<T*>(stage(host, count * sizeof(T), false, true));
  }
  ops::LinearWeight weight(const ops::LinearWeight& host);
  /// Equally spaced, as the binder places the experts of a layer.
  std::vector<ops::ExpertWeight> experts(std::span<const ops::ExpertWeight> host);
  /// A block of pieces, downloaded by `finish` when `written`.
  std::byte* block(size_t bytes, std::vector<StagedPiece> pieces, bool written);

  /// Waits for the op and brings back what it wrote.
  void finish();

 private:
  std::byte* stage(const void* host, size_t count, bool rounded, bool written);

  DeviceCache& cache_;
  bool rounds_;
  std::vector<StagedBlock> written_{};
};

inline constexpr size_t kDeviceAlign = 256;

}  // namespace tessera::test
