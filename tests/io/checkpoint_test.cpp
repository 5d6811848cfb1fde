// SPDX-License-Identifier: Apache-2.0
// Checkpoint folders: one file, an index with shards, and the ways the two can disagree.
#include "io/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <tessera/log.h>

#include "safetensors_writer.h"
#include "temp_dir.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::string file_with(const std::vector<std::string>& names) {
  test::CheckpointImage image;
  for (const std::string& name : names) image[name] = test::tensor_image<float>("F32", {1}, {1.0F});
  return test::safetensors_bytes(image);
}

std::string index_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string text = R"({"metadata":{"total_size":8},"weight_map":{)";
  for (const auto& [name, file] : entries) {
    if (text.back() != '{') text += ",";
    text += "\"" + name + "\":\"" + file + "\"";
  }
  return text + "}}";
}

class CheckpointFolder : public testing::Test {
 protected:
  void write_index(const std::vector<std::pair<std::string, std::string>>& entries) {
    dir_.write("model.safetensors.index.json", index_of(entries));
  }
  std::string failure() {
    const auto checkpoint = open_checkpoint(dir_.path());
    return checkpoint ? "opened" : checkpoint.error().message();
  }
  test::TempDir dir_;
};

TEST_F(CheckpointFolder, OpensASingleFile) {
  dir_.write("model.safetensors", file_with({"a", "b"}));
  const auto checkpoint = open_checkpoint(dir_.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  EXPECT_EQ((*checkpoint)->tensors.size(), 2U);
  EXPECT_EQ((*checkpoint)->dir, dir_.path());
  EXPECT_EQ((*checkpoint)->files.size(), 1U);
}

TEST_F(CheckpointFolder, JoinsShards) {
  dir_.write("x-1.safetensors", file_with({"a", "b"}));
  dir_.write("x-2.safetensors", file_with({"c"}));
  write_index({{"a", "x-1.safetensors"}, {"c", "x-2.safetensors"}, {"b", "x-1.safetensors"}});
  const auto checkpoint = open_checkpoint(dir_.path());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  EXPECT_EQ((*checkpoint)->tensors.size(), 3U);
  EXPECT_THAT((*checkpoint)->tensors.at("c").file, HasSubstr("x-2.safetensors"));
}

TEST_F(CheckpointFolder, NamesWhatIsMissing) {
  EXPECT_THAT(failure(), HasSubstr("no weights"));
  write_index({{"a", "x-1.safetensors"}});
  EXPECT_THAT(failure(), HasSubstr("missing shard"));
  EXPECT_THAT(failure(), HasSubstr("x-1.safetensors"));
}

TEST_F(CheckpointFolder, RefusesTwoSetsOfWeights) {
  dir_.write("model.safetensors", file_with({"a"}));
  write_index({{"a", "model.safetensors"}});
  EXPECT_THAT(failure(), HasSubstr("two sets of weights"));
}

TEST_F(CheckpointFolder, ComparesIndexAndShards) {
  dir_.write("x-1.safetensors", file_with({"a", "b"}));
  dir_.write("x-2.safetensors", file_with({"c"}));
  write_index({{"a", "x-1.safetensors"}, {"c", "x-2.safetensors"}});
  EXPECT_THAT(failure(), HasSubstr("tensor is not in the index"));
  write_index({{"a", "x-1.safetensors"},
               {"b", "x-1.safetensors"},
               {"c", "x-2.safetensors"},
               {"d", "x-2.safetensors"}});
  EXPECT_THAT(failure(), HasSubstr("tensor of the index is missing"));
  write_index({{"a", "x-1.safetensors"}, {"b", "x-2.safetensors"}, {"c", "x-2.safetensors"}});
  EXPECT_THAT(failure(), HasSubstr("tensor is in another shard than listed"));
}

TEST_F(CheckpointFolder, WarnsOfAnotherTotalSize) {
  std::string log;
  set_log_sink([&log](LogLevel level, std::string_view text) {
    if (level == LogLevel::kWarning) log += text;
  });
  dir_.write("x-1.safetensors", file_with({"a", "b"}));
  write_index({{"a", "x-1.safetensors"}, {"b", "x-1.safetensors"}});
  EXPECT_EQ(failure(), "opened");
  EXPECT_EQ(log, "");  // 8 bytes, as declared
  dir_.write("x-1.safetensors", file_with({"a", "b", "c"}));
  write_index({{"a", "x-1.safetensors"}, {"b", "x-1.safetensors"}, {"c", "x-1.safetensors"}});
  EXPECT_EQ(failure(), "opened");
  set_log_sink({});
  EXPECT_THAT(log, HasSubstr("index.json: metadata.total_size is 8, the tensors have 12 bytes"));
}

TEST_F(CheckpointFolder, RefusesATensorThatTwoShardsHold) {
  dir_.write("x-1.safetensors", file_with({"a"}));
  dir_.write("x-2.safetensors", file_with({"a", "b"}));
  write_index({{"a", "x-1.safetensors"}, {"b", "x-2.safetensors"}});
  EXPECT_THAT(failure(), HasSubstr("tensor is in another shard than listed"));
}

TEST_F(CheckpointFolder, RefusesShardNamesThatLeaveTheFolder) {
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors",
                           "..\\\\x.safetensors", "x.bin", ".safetensors", "", ".."}) {
    write_index({{"a", name}});
    EXPECT_THAT(failure(), HasSubstr("bad shard name")) << name;
  }
}

TEST_F(CheckpointFolder, RefusesDamagedIndexes) {
  for (const char* text : {"", "[]", "{}", R"({"weight_map":{}})", R"({"weight_map":[1]})",
                           R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":"x)"}) {
    dir_.write("model.safetensors.index.json", text);
    EXPECT_NE(failure(), "opened") << text;
  }
}

TEST_F(CheckpointFolder, ReportsADamagedShardByName) {
  std::string shard = file_with({"a"});
  shard.pop_back();
  dir_.write("x-1.safetensors", shard);
  write_index({{"a", "x-1.safetensors"}});
  EXPECT_THAT(failure(), HasSubstr("data_offsets leave the file"));
  EXPECT_THAT(failure(), HasSubstr("x-1.safetensors"));
}

TEST(MappedFile, ReportsWhyItCannotOpen) {
  const test::TempDir dir;
  const auto missing = MappedFile::open(dir.file("absent"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Errc::kNotFound);
  EXPECT_THAT(missing.error().message(), HasSubstr("No such file"));
  const auto folder = MappedFile::open(dir.path());
  ASSERT_FALSE(folder);
  EXPECT_THAT(folder.error().message(), HasSubstr("not a regular file"));
}

TEST(MappedFile, MapsEmptyAndFullFiles) {
  const test::TempDir dir;
  dir.write("empty", "");
  dir.write("full", "abc");
  const auto empty = MappedFile::open(dir.file("empty"));
  ASSERT_TRUE(empty);
  EXPECT_TRUE((*empty)->bytes().empty());
  const auto full = MappedFile::open(dir.file("full"));
  ASSERT_TRUE(full);
  EXPECT_EQ((*full)->bytes(), "abc");
  advise_random((*full)->bytes().data(), (*full)->bytes().size());
  EXPECT_EQ((*full)->bytes(), "abc");
}

TEST(ReadTextFile, HonoursItsLimit) {
  const test::TempDir dir;
  dir.write("text", "12345");
  EXPECT_EQ(read_text_file(dir.file("text"), 5).value(), "12345");
  const auto refused = read_text_file(dir.file("text"), 4);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("at most 4 bytes, found 5 bytes"));
}

TEST(ReadTextFile, RefusesWhatIsNoRegularFile) {
  const test::TempDir dir;
  ASSERT_EQ(::mkfifo(dir.file("fifo").c_str(), 0600), 0);
  for (const std::string& path : {dir.path(), dir.file("fifo"), std::string("/dev/zero")}) {
    const auto refused = read_text_file(path, 1000);  // a wait for a writer would hang the test
    ASSERT_FALSE(refused) << path;
    EXPECT_EQ(refused.error().what, "not a regular file");
    EXPECT_EQ(refused.error().where, path);
  }
}

}  // namespace
}  // namespace tessera
