// SPDX-License-Identifier: Apache-2.0
// The bump allocator: alignment, no overlap, reuse after reset.
#include "core/arena.h"

#include <gtest/gtest.h>
#include <cstring>
#include <vector>

namespace tessera {
namespace {

constexpr size_t kMebibyte = size_t{1} << 20;

TEST(Arena, AlignsUpToPowersOfTwo) {
  EXPECT_EQ(align_up(0), 0U);
  EXPECT_EQ(align_up(1), kCacheLine);
  EXPECT_EQ(align_up(kCacheLine), kCacheLine);
  EXPECT_EQ(align_up(4097, 4096), 8192U);
}

TEST(Arena, AllocationsAreAlignedAndDoNotOverlap) {
  Arena arena;
  struct Piece {
    unsigned char* data;
    size_t bytes;
  };
  std::vector<Piece> pieces;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65},
                             kMebibyte - 1, 3 * kMebibyte + 1, size_t{7}}) {
    auto* data = arena.take<unsigned char>(bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kCacheLine, 0U);
    std::memset(data, static_cast<int>(pieces.size() + 1), bytes);
    pieces.push_back({data, bytes});
  }
  for (size_t index = 0; index < pieces.size(); ++index)
    for (size_t offset = 0; offset < pieces[index].bytes; ++offset)
      ASSERT_EQ(pieces[index].data[offset], index + 1);
}

TEST(Arena, EmptyAllocationsDiffer) {
  Arena arena;
  EXPECT_NE(arena.take<int>(0), arena.take<int>(0));
}

TEST(Arena, ResetKeepsTheMemory) {
  Arena arena;
  arena.take<float>(kMebibyte);
  arena.take<float>(kMebibyte);
  arena.take<float>(kMebibyte);
  arena.reset();
  const size_t capacity = arena.capacity();
  EXPECT_GE(capacity, 3 * kMebibyte * sizeof(float));
  for (int round = 0; round < 3; ++round) {
    arena.reset();
    const float* first = arena.take<float>(kMebibyte);
    arena.take<float>(kMebibyte);
    arena.take<float>(kMebibyte);
    EXPECT_EQ(arena.capacity(), capacity);
    arena.reset();
    EXPECT_EQ(arena.take<float>(1), first);
  }
}

}  // namespace
}  // namespace tessera
