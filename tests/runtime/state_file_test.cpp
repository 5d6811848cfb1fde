// SPDX-License-Identifier: Apache-2.0
// State files: round trips, and every way in which a file can be wrong.
#include "runtime/state_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "runtime/state_codec.h"
#include "runtime/state_fixture.h"

namespace tessera {
namespace {

using namespace state_fixture;
using state_codec::Header;
using state_codec::kFixedBytes;
using state_codec::PartRecord;

constexpr int kTokens = 67;

/// A snapshot with a pattern in every region.
std::shared_ptr<const StateSnapshot> make_snapshot(const StateLayout& layout, int tokens) {
  const auto pool = make_pool(layout, 4);
  SequenceStore store(layout, pool, 1);
  const SequenceId id = store.create().value();
  EXPECT_TRUE(store.reserve(id, tokens));
  for_each_part(layout, [&](const StateEntry& entry, int layer, size_t offset) {
    if (entry.rule != IndexRule::kPage)
      write_pattern(store.slot(id) + offset, entry.layer_bytes(), entry.part, layer, 1);
    else
      for (size_t page = 0; page < pages_for(tokens); ++page)
        write_pattern(pool->page(store.span(id, 0, 0).pages[page]) + offset, entry.layer_bytes(),
                      entry.part, layer, 2 + page);
  });
  std::vector<int32_t> ids;
  for (int token = 0; token < tokens; ++token) ids.push_back(token * 5 % kVocab);
  store.commit(id, ids);
  return store.snapshot(id);
}

class StateFile : public testing::Test {
 protected:
  StateLayout layout_ = tiny_layout();
  std::shared_ptr<PagePool> pool_ = make_pool(layout_, 4);
  std::shared_ptr<const StateSnapshot> snapshot_ = make_snapshot(layout_, kTokens);
  std::vector<std::byte> file_ = encode(*snapshot_, identity_of(layout_));

  Result<std::shared_ptr<const StateSnapshot>> decode(std::span<const std::byte> file) {
    return decode_state(file, identity_of(layout_), pool_, "test");
  }
  /// Decodes a damaged copy with a right checksum and expects a refusal that leaks no page.
  Error refusal(std::vector<std::byte> file) {
    reseal_state(file);
    const auto result = decode(file);
    EXPECT_FALSE(result.has_value());
    EXPECT_EQ(pool_->used(), 0);
    return result ? Error{} : result.error();
  }
  template <class T>
  std::vector<std::byte> with(size_t offset, T value) const {
    std::vector<std::byte> file = file_;
    std::memcpy(file.data() + offset, &value, sizeof(value));
    return file;
  }
};

TEST_F(StateFile, RoundTripGivesTheSameBytes) {
  for (const int tokens : {0, 1, 63, 64, 65, 200}) {
    const auto file = encode(*make_snapshot(layout_, tokens), identity_of(layout_));
    EXPECT_EQ(file.size(), state_codec::file_bytes(layout_, tokens));
    const auto loaded = decode(file);
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
    EXPECT_EQ((*loaded)->tokens().size(), static_cast<size_t>(tokens));
    EXPECT_EQ(encode(**loaded, identity_of(layout_)), file);
  }
  EXPECT_EQ(pool_->used(), 0);
}

TEST_F(StateFile, EveryTruncationIsRefused) {
  for (size_t bytes = 0; bytes < file_.size(); ++bytes) {
    const auto result = decode(std::span(file_).first(bytes));
    ASSERT_FALSE(result.has_value()) << bytes;
    ASSERT_EQ(result.error().code, Errc::kCorruptFile) << bytes;
  }
}

TEST_F(StateFile, EveryFlippedByteIsRefused) {
  for (size_t offset = 0; offset < file_.size(); ++offset) {
    std::vector<std::byte> file = file_;
    file[offset] ^= std::byte{0x10};
    ASSERT_FALSE(decode(file).has_value()) << offset;
  }
  EXPECT_EQ(pool_->used(), 0);
}

TEST_F(StateFile, EveryFixedByteMattersBehindARightChecksum) {
  for (size_t offset = 0; offset < kFixedBytes; ++offset) {
    std::vector<std::byte> file = file_;
    file[offset] ^= std::byte{0x10};
    ASSERT_FALSE(refusal(std::move(file)).what.empty()) << offset;
  }
}

TEST_F(StateFile, RefusesAppendedBytes) {
  std::vector<std::byte> file = file_;
  file.push_back(std::byte{0});
  EXPECT_EQ(refusal(file).what, "state file has the wrong size");
}

TEST_F(StateFile, SaysWhatDoesNotMatch) {
  const auto code_and_text = [](const Error& error) { return std::pair(error.code, error.what); };
  EXPECT_EQ(code_and_text(refusal(with(offsetof(Header, magic), 'X'))),
            std::pair(Errc::kCorruptFile, std::string("not a state file")));
  EXPECT_EQ(code_and_text(refusal(with(offsetof(Header, format), uint32_t{99}))),
            std::pair(Errc::kUnsupported, std::string("unknown state file version")));
  EXPECT_EQ(code_and_text(refusal(with(offsetof(Header, numerics), kNumericsVersion + 1))),
            std::pair(Errc::kMismatch, std::string("other numerics version")));
  EXPECT_EQ(code_and_text(refusal(with(offsetof(Header, weights), kWeights + 1))),
            std::pair(Errc::kMismatch, std::string("other weights or config")));
  EXPECT_EQ(code_and_text(refusal(with(offsetof(Header, vocab_size), kVocab + 1))),
            std::pair(Errc::kMismatch, std::string("other vocabulary")));
  EXPECT_EQ(code_and_text(refusal(with(offsetof(Header, num_parts), kNumStateParts - 1))),
            std::pair(Errc::kMismatch, std::string("missing or extra state part")));
}

// The cheap checks come first: a wrong file is refused by its header and size, not by its checksum.
TEST_F(StateFile, LooksAtHeaderAndSizeBeforeItReadsTheRest) {
  EXPECT_EQ(decode(with(offsetof(Header, magic), 'X')).error().what, "not a state file");
  EXPECT_EQ(decode(with(offsetof(Header, weights), kWeights + 1)).error().what,
            "other weights or config");
  EXPECT_EQ(decode(std::span(file_).first(file_.size() - 1)).error().what,
            "state file has the wrong size");
  EXPECT_EQ(decode(with(file_.size() - sizeof(uint64_t) - 1, 'X')).error().what,
            "checksum differs");
}

TEST_F(StateFile, RefusesTokensOutsideTheVocabulary) {
  for (const int32_t token : {-1, kVocab, INT32_MIN, INT32_MAX}) {
    const Error error = refusal(with(kFixedBytes + sizeof(int32_t), token));
    EXPECT_EQ(error.code, Errc::kCorruptFile);
    EXPECT_EQ(error.found, std::to_string(token));
  }
}

TEST_F(StateFile, RefusesImpossibleTokenCounts) {
  for (const uint64_t count : {uint64_t{0}, uint64_t{kTokens - 1}, uint64_t{kTokens + 1},
                               uint64_t{4 * ops::kPageTokens + 1}, UINT64_MAX, UINT64_MAX / 4 + 1})
    EXPECT_FALSE(refusal(with(offsetof(Header, num_tokens), count)).what.empty()) << count;
}

// A record of another part, as if one part had been left out when the file was written.
TEST_F(StateFile, NamesThePartThatDiffers) {
  for (size_t index = 0; index + 1 < size_t{kNumStateParts}; ++index) {
    const size_t offset = sizeof(Header) + index * sizeof(PartRecord);
    std::vector<std::byte> file = file_;
    std::memmove(file.data() + offset, file.data() + offset + sizeof(PartRecord),
                 sizeof(PartRecord));
    const Error error = refusal(std::move(file));
    EXPECT_EQ(error.code, Errc::kMismatch);
    EXPECT_THAT(error.expected, testing::StartsWith(layout_.entries()[index].name));
  }
}

TEST_F(StateFile, RefusesAnotherGeometry) {
  StateOptions bf16 = kOptions, shallow = kOptions, plain = kOptions;
  bf16.cache = DType::kBF16;
  shallow.max_draft = 0;
  plain.draft_layer = false;
  for (const StateOptions& options : {bf16, shallow, plain}) {
    const StateLayout other = tiny_layout(options);
    const auto pool = make_pool(other, 4);
    const auto result = decode_state(file_, identity_of(other), pool, "test");
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, Errc::kMismatch) << result.error().message();
  }
}

TEST_F(StateFile, NeedsFreePages) {
  const auto full = make_pool(layout_, 2);
  const PageList taken = [&] {
    PageList pages(full);
    EXPECT_TRUE(pages.grow_to(1));
    return pages;
  }();
  const auto busy = decode_state(file_, identity_of(layout_), full, "test");
  ASSERT_FALSE(busy.has_value());
  EXPECT_EQ(busy.error().code, Errc::kOutOfMemory);
  EXPECT_EQ(full->used(), 1);
  const auto small = decode_state(file_, identity_of(layout_), make_pool(layout_, 1), "test");
  ASSERT_FALSE(small.has_value());
  EXPECT_EQ(small.error().code, Errc::kOutOfMemory);
}

TEST_F(StateFile, StopsWhenTheSinkRefuses) {
  int calls = 0;
  EXPECT_FALSE(encode_state(*snapshot_, identity_of(layout_),
                            [&calls](std::span<const std::byte>) { return ++calls < 3; }));
  EXPECT_EQ(calls, 3);
}

class StateFileOnDisk : public StateFile {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-state-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return (folder_ / "state.bin").string(); }
  size_t files_in_folder() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  Result<std::shared_ptr<const StateSnapshot>> load() {
    return load_state_file(path(), identity_of(layout_), pool_);
  }

  std::filesystem::path folder_;
};

TEST_F(StateFileOnDisk, SavesReplacesAndLoads) {
  ASSERT_TRUE(save_state_file(*make_snapshot(layout_, 3), identity_of(layout_), path()));
  ASSERT_TRUE(save_state_file(*snapshot_, identity_of(layout_), path()));
  EXPECT_EQ(files_in_folder(), 1U);
  const auto loaded = load();
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  EXPECT_EQ(encode(**loaded, identity_of(layout_)), file_);
}

TEST_F(StateFileOnDisk, ReportsWhereWritingFailed) {
  const std::string missing = (folder_ / "no" / "state.bin").string();
  const Result<void> saved = save_state_file(*snapshot_, identity_of(layout_), missing);
  ASSERT_FALSE(saved.has_value());
  EXPECT_EQ(saved.error().code, Errc::kNotFound);
  EXPECT_EQ(saved.error().where, missing);
  std::filesystem::create_directory(path());
  EXPECT_FALSE(save_state_file(*snapshot_, identity_of(layout_), path()).has_value());
  EXPECT_EQ(files_in_folder(), 1U);
}

TEST_F(StateFileOnDisk, RefusesWhatIsNoStateFile) {
  EXPECT_EQ(load().error().code, Errc::kNotFound);
  std::ofstream(path()) << "hello";
  EXPECT_EQ(load().error().code, Errc::kCorruptFile);
}

TEST_F(StateFileOnDisk, RefusesWhatIsLargerThanAnyState) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer's memory map has no room for 1 TiB";
#endif
  std::ofstream(path()) << "hello";
  std::filesystem::resize_file(path(), uint64_t{1} << 40);
  const auto huge = load();
  ASSERT_FALSE(huge.has_value());
  EXPECT_EQ(huge.error().code, Errc::kCorruptFile);
  EXPECT_THAT(huge.error().what, testing::HasSubstr("larger than any state"));
}

// Sanitizers have their own allocator, which ends the program when memory is short.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

/// Leaves no room for new memory, then runs `work` and ends with 0 when it returned kOutOfMemory.
template <class Work>
[[noreturn]] void exit_without_memory(Work&& work) {
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  if (setrlimit(RLIMIT_AS, &none) != 0) _exit(2);
  const auto result = work();
  _exit(!result && result.error().code == Errc::kOutOfMemory ? 0 : 1);
}

TEST_F(StateFileOnDisk, ReportsThatMemoryIsShort) {
  constexpr size_t kPathBytes = size_t{64} << 20;  // more than the heap has lying about
  const std::string long_path(kPathBytes, 'x');
  const StateIdentity identity = identity_of(layout_);
  EXPECT_EXIT(exit_without_memory([&] { return save_state_file(*snapshot_, identity, long_path); }),
              testing::ExitedWithCode(0), "");
  EXPECT_EXIT(exit_without_memory([&] { return load_state_file(long_path, identity, pool_); }),
              testing::ExitedWithCode(0), "");
}

#endif

}  // namespace
}  // namespace tessera
