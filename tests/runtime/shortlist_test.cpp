// SPDX-License-Identifier: Apache-2.0
// Which ids are frequent, and that a damaged or forged list is refused.
#include <gtest/gtest.h>
#include <tessera/shortlist.h>

#include <cstring>
#include <filesystem>

namespace tessera {
namespace {

Shortlist sample_list() {
  return {.vocab_size = 100, .vocabulary = 0x1234567890ABCDEFU, .ids = {0, 3, 7, 64, 99}};
}

TEST(Shortlist, KeepsTheMostFrequentIds) {
  const std::vector<uint64_t> counts = {5, 0, 9, 5, 1, 5, 0, 2};
  EXPECT_EQ(most_frequent_ids(counts, 1), (std::vector<int32_t>{2}));
  EXPECT_EQ(most_frequent_ids(counts, 3), (std::vector<int32_t>{0, 2, 3})) << "ties: the lower id";
  EXPECT_EQ(most_frequent_ids(counts, 100), (std::vector<int32_t>{0, 2, 3, 4, 5, 7}));
  EXPECT_TRUE(most_frequent_ids({}, 3).empty());
}

TEST(Shortlist, SurvivesAFile) {
  const Shortlist list = sample_list();
  const std::string path = testing::TempDir() + "tessera.shortlist";
  ASSERT_TRUE(save_shortlist(list, path));
  const auto read = load_shortlist(path);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->vocab_size, list.vocab_size);
  EXPECT_EQ(read->vocabulary, list.vocabulary);
  EXPECT_EQ(read->ids, list.ids);
  std::filesystem::remove(path);
  EXPECT_EQ(load_shortlist(path).error().code, Errc::kNotFound);
  EXPECT_FALSE(save_shortlist(list, testing::TempDir() + "absent/tessera.shortlist"));
}

TEST(Shortlist, EveryDamagedBitAndEveryCutIsRefused) {
  const std::vector<std::byte> whole = encode_shortlist(sample_list());
  ASSERT_TRUE(decode_shortlist(whole, "memory"));
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::vector<std::byte> file = whole;
    file[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(decode_shortlist(file, "memory")) << bit;
  }
  for (size_t size = 0; size < whole.size(); ++size) {
    std::vector<std::byte> file(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_FALSE(decode_shortlist(file, "memory")) << size;
    reseal_shortlist(file);
    EXPECT_FALSE(decode_shortlist(file, "memory")) << size;
  }
  std::vector<std::byte> longer = whole;
  longer.resize(longer.size() + sizeof(int32_t));
  reseal_shortlist(longer);
  EXPECT_FALSE(decode_shortlist(longer, "memory"));
}

/// Behind a right checksum.
TEST(Shortlist, ForgedListsAreRefused) {
  const auto refused = [](const std::vector<int32_t>& ids, uint32_t vocab_size = 100) {
    const auto list =
        decode_shortlist(encode_shortlist({.vocab_size = vocab_size, .ids = ids}), "memory");
    return !list && list.error().code == Errc::kCorruptFile;
  };
  EXPECT_FALSE(refused({1, 2, 99}));
  EXPECT_TRUE(refused({})) << "empty";
  EXPECT_TRUE(refused({2, 1})) << "unsorted";
  EXPECT_TRUE(refused({1, 1})) << "repeated";
  EXPECT_TRUE(refused({-1, 1})) << "negative";
  EXPECT_TRUE(refused({1, 100})) << "beyond the vocabulary";
  EXPECT_TRUE(refused({0}, 0)) << "no vocabulary";
  std::vector<std::byte> huge = encode_shortlist(sample_list());
  const uint64_t count = uint64_t{1} << 62;
  constexpr size_t kCountAt = 24;
  std::memcpy(huge.data() + kCountAt, &count, sizeof count);
  reseal_shortlist(huge);
  EXPECT_FALSE(decode_shortlist(huge, "memory"));
}

}  // namespace
}  // namespace tessera
