// SPDX-License-Identifier: Apache-2.0
// Reading a named file: bytes as they are, and a message when there is none.
#include "cli/input.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tessera::cli {
namespace {

constexpr size_t kMoreThanOneBuffer = 200'001;

TEST(InputTest, KeepsEveryByte) {
  std::string text(kMoreThanOneBuffer, 'x');
  text += std::string("\0\r\n\xff", 4);
  const std::string path = testing::TempDir() + "tessera_input_test";
  std::ofstream(path, std::ios::binary) << text;
  const auto read = read_input(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, text);
}

TEST(InputTest, AnEmptyFileIsEmptyText) {
  const auto read = read_input("/dev/null");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(*read, "");
}

TEST(InputTest, AMissingFileIsNamed) {
  const auto read = read_input("no/such/file");
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, Errc::kNotFound);
  EXPECT_EQ(read.error().where, "no/such/file");
}

TEST(InputTest, AFolderIsAnErrorNotEmptyText) {
  const auto read = read_input(testing::TempDir());
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, Errc::kNotFound);
}

}  // namespace
}  // namespace tessera::cli
