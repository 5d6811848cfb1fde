// SPDX-License-Identifier: Apache-2.0
// Copies between host arrays and exact device blocks.
#include "cuda/staged_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "core/arena.h"
#include "core/dtype.h"

namespace tessera::test {
namespace {

constexpr std::byte kPoison{0xFF};  // NaN in every float type
constexpr size_t kCacheLimit = size_t{16} << 30;
/// Larger blocks (sparse page pools) are copied piece by piece and their gaps are not checked.
constexpr size_t kImageLimit = size_t{256} << 20;

void put(const StagedPiece& piece, std::byte* to) {
  if (piece.count == 0) return;  // nothing may lie at nullptr
  if (!piece.rounded) {
    std::memcpy(to, piece.host, piece.count);
    return;
  }
  for (size_t index = 0; index < piece.count; ++index) {
    float value = 0;
    std::memcpy(&value, piece.host + index * sizeof(value), sizeof(value));
    const uint16_t bits = float_to_bf16(value);
    std::memcpy(to + index * sizeof(bits), &bits, sizeof(bits));
  }
}

void get(const StagedPiece& piece, const std::byte* before, const std::byte* after) {
  if (piece.count == 0) return;
  if (!piece.rounded) {
    std::memcpy(piece.host, after, piece.count);
    return;
  }
  for (size_t index = 0; index < piece.count; ++index) {
    uint16_t bits = 0;
    if (std::memcmp(before + index * sizeof(bits), after + index * sizeof(bits), sizeof(bits)) == 0)
      continue;
    std::memcpy(&bits, after + index * sizeof(bits), sizeof(bits));
    const float value = bf16_to_float(bits);
    std::memcpy(piece.host + index * sizeof(value), &value, sizeof(value));
  }
}

size_t total_bytes(const std::vector<StagedPiece>& pieces) {
  size_t bytes = 0;
  for (const StagedPiece& piece : pieces) bytes += piece.device_bytes();
  return bytes;
}

}  // namespace

std::byte* DeviceCache::take(size_t bytes) {
  std::vector<MemoryBlock>& fitting = free_[bytes];
  if (fitting.empty()) {
    fitting.emplace_back(memory_, bytes);
    held_bytes_ += bytes;
  }
  taken_.push_back(std::move(fitting.back()));
  fitting.pop_back();
  return taken_.back().data();
}

void DeviceCache::give_back_all() {
  for (MemoryBlock& block : taken_) free_[block.bytes()].push_back(std::move(block));
  taken_.clear();
  if (held_bytes_ <= kCacheLimit) return;
  free_.clear();
  held_bytes_ = 0;
}

StagedBlock::StagedBlock(DeviceCache& cache, size_t bytes, std::vector<StagedPiece> pieces)
    : memory_(cache.memory()),
      data_(cache.take(bytes)),
      pieces_(std::move(pieces)),
      whole_(bytes <= kImageLimit) {
  image_.assign(whole_ ? bytes : total_bytes(pieces_), kPoison);
  size_t packed = 0;
  for (const StagedPiece& piece : pieces_) {
    put(piece, image_.data() + (whole_ ? piece.offset : packed));
    if (!whole_)
      memory_.copy_in(data_ + piece.offset, image_.data() + packed, piece.device_bytes());
    packed += piece.device_bytes();
  }
  if (whole_) memory_.copy_in(data_, image_.data(), bytes);
}

void StagedBlock::download() {
  std::vector<std::byte> after(image_.size());
  if (whole_) memory_.copy_out(after.data(), data_, after.size());
  size_t packed = 0;
  for (const StagedPiece& piece : pieces_) {
    const size_t bytes = piece.device_bytes(), at = whole_ ? piece.offset : packed;
    if (!whole_) memory_.copy_out(after.data() + at, data_ + piece.offset, bytes);
    get(piece, image_.data() + at, after.data() + at);
    std::copy_n(image_.data() + at, bytes, after.data() + at);  // what is left may not differ
    packed += bytes;
  }
  const auto changed = std::mismatch(after.begin(), after.end(), image_.begin()).first;
  if (changed != after.end())
    ADD_FAILURE() << "the op wrote between the parts of a device block, at byte "
                  << changed - after.begin() << " of " << after.size();
}

std::byte* Staging::block(size_t bytes, std::vector<StagedPiece> pieces, bool written) {
  StagedBlock staged(cache_, bytes, std::move(pieces));
  std::byte* data = staged.data();
  if (written) written_.push_back(std::move(staged));
  return data;
}

std::byte* Staging::stage(const void* host, size_t count, bool rounded, bool written) {
  if (host == nullptr) return nullptr;
  auto* bytes = const_cast<std::byte*>(static_cast<const std::byte*>(host));
  const StagedPiece piece{.host = bytes, .count = count, .rounded = rounded};
  return block(piece.device_bytes(), {piece}, written);
}

const void* Staging::activations_in(const void* host, size_t count) {
  return stage(host, rounds_ ? count : count * sizeof(float), rounds_, false);
}

void* Staging::activations_out(void* host, size_t count) {
  return stage(host, rounds_ ? count : count * sizeof(float), rounds_, true);
}

ops::LinearWeight Staging::weight(const ops::LinearWeight& host) {
  ops::LinearWeight device = host;
  if (!host) return device;
  device.data = in(static_cast<const std::byte*>(host.data), host.bytes());
  device.scale =
      in(host.scale,
         static_cast<size_t>(host.scale_cols()) *
             ((static_cast<size_t>(host.out_features) + ops::kScaleBlock - 1) / ops::kScaleBlock));
  return device;
}

std::vector<ops::ExpertWeight> Staging::experts(std::span<const ops::ExpertWeight> host) {
  std::vector<ops::ExpertWeight> device(host.begin(), host.end());
  std::vector<StagedPiece> pieces;
  std::vector<size_t> places;  // of every weight and its scales, in the order of the loop
  size_t end = 0;
  const auto add = [&](const void* data, size_t bytes) {
    places.push_back(end);
    if (data != nullptr)
      pieces.push_back({.host = const_cast<std::byte*>(static_cast<const std::byte*>(data)),
                        .offset = end,
                        .count = bytes});
    end += data == nullptr ? 0 : align_up(bytes, kDeviceAlign);
  };
  for (const ops::ExpertWeight& expert : host)
    for (const ops::LinearWeight* weight : {&expert.gate, &expert.up, &expert.down}) {
      const auto outs = static_cast<size_t>(weight->out_features);
      const size_t scale_rows = (outs + ops::kScaleBlock - 1) / ops::kScaleBlock;
      add(weight->data, weight->bytes());
      add(weight->scale, scale_rows * static_cast<size_t>(weight->scale_cols()) * sizeof(float));
    }
  if (host.empty()) return device;
  const std::byte* base = block(end, std::move(pieces), false);
  auto place = places.begin();
  for (ops::ExpertWeight& expert : device)
    for (ops::LinearWeight* weight : {&expert.gate, &expert.up, &expert.down}) {
      weight->data = base + *place++;
      const size_t scale_at = *place++;
      if (weight->scale != nullptr) weight->scale = reinterpret_cast<const float*>(base + scale_at);
    }
  return device;
}

void Staging::finish() {
  for (StagedBlock& block : written_) block.download();
  written_.clear();
  cache_.give_back_all();
}

}  // namespace tessera::test
