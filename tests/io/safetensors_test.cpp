// SPDX-License-Identifier: Apache-2.0
// Headers of safetensors files, sound and damaged.
#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "safetensors_writer.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::string two_tensors() {
  test::CheckpointImage image;
  image["a"] = test::tensor_image<uint16_t>("BF16", {2, 3}, {1, 2, 3, 4, 5, 6});
  image["b"] = test::tensor_image<float>("F32", {}, {0.5F});
  return test::safetensors_bytes(image);
}

TEST(Safetensors, ReadsShapesTypesAndBytes) {
  const std::string file = two_tensors();
  const auto tensors = parse_safetensors(file, "m");
  ASSERT_TRUE(tensors) << tensors.error().message();
  ASSERT_EQ(tensors->size(), 2U);
  const TensorRef& a = tensors->at("a");
  EXPECT_EQ(a.describe(), "[2, 3] BF16");
  EXPECT_EQ(a.bytes, 12U);
  uint16_t third = 0;
  std::memcpy(&third, a.data + 4, sizeof(third));
  EXPECT_EQ(third, 3);
  EXPECT_EQ(tensors->at("b").elements(), 1);
  EXPECT_EQ(tensors->at("b").describe(), "[] F32");
}

TEST(Safetensors, AcceptsEmptyTensorsAndEmptyFiles) {
  test::CheckpointImage image;
  image["none"] = test::tensor_image<float>("F32", {int64_t{1} << 62, 4, 0}, {});
  image["one"] = test::tensor_image<uint8_t>("U8", {1}, {9});
  const std::string file = test::safetensors_bytes(image);
  const auto tensors = parse_safetensors(file, "m");
  ASSERT_TRUE(tensors) << tensors.error().message();
  EXPECT_EQ(tensors->at("none").elements(), 0);
  const std::string nothing = test::safetensors_file("{}", "");
  ASSERT_TRUE(parse_safetensors(nothing, "m"));
  EXPECT_TRUE(parse_safetensors(nothing, "m")->empty());
}

TEST(Safetensors, TellsUnalignedTensors) {
  test::CheckpointImage image;
  image["a"] = test::tensor_image<uint8_t>("F8_E4M3", {3}, {1, 2, 3});
  image["b"] = test::tensor_image<uint16_t>("BF16", {1}, {1});
  // A heap block is aligned for any type, so addresses follow from offsets.
  const std::string file = test::safetensors_bytes(image);
  const auto tensors = parse_safetensors(file, "m");
  ASSERT_TRUE(tensors);
  EXPECT_TRUE(tensors->at("a").aligned());
  EXPECT_FALSE(tensors->at("b").aligned());
}

struct BadHeader {
  const char* name;
  const char* header;
  size_t payload_bytes;
  const char* message;
};

class BadHeaders : public testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaders, AreRefusedWithAReason) {
  const BadHeader& test = GetParam();
  const std::string file =
      test::safetensors_file(test.header, std::string(test.payload_bytes, '\0'));
  const auto tensors = parse_safetensors(file, "m.safetensors");
  ASSERT_FALSE(tensors);
  EXPECT_THAT(tensors.error().message(), HasSubstr(test.message));
  EXPECT_THAT(tensors.error().message(), HasSubstr("m.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, BadHeaders,
    testing::Values(
        BadHeader{"NotJson", "{\"a\":", 0, "invalid JSON"},
        BadHeader{"NotAnObject", "[1]", 0, "not a safetensors file"},
        BadHeader{"Empty", "", 0, "not a safetensors file"},
        BadHeader{"Utf8", "{\"\xff\":1}", 0, "invalid JSON"},
        BadHeader{"TrailingText", "{} x", 0, "extra data"},
        BadHeader{"Deep", "{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1", 0, "invalid JSON"},
        BadHeader{"RepeatedTensor",
                  R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                  R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                  1, "key \"a\" twice"},
        BadHeader{"RepeatedField",
                  R"({"a":{"dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,1]}})", 1,
                  "key \"shape\" twice"},
        BadHeader{"UnknownType", R"({"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1,
                  "unknown element type: m.safetensors: a: expected F32, F16, BF16, F8_E4M3, I64, "
                  "I32 or U8, found F4"},
        BadHeader{"TypeIsNumber", R"({"a":{"dtype":3,"shape":[1],"data_offsets":[0,1]}})", 1,
                  "missing dtype"},
        BadHeader{"EntryIsList", R"({"a":[1]})", 1, "bad tensor entry"},
        BadHeader{"MissingField", R"({"a":{"dtype":"U8","shape":[1]}})", 1, "bad tensor entry"},
        BadHeader{"ExtraField", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}})", 1,
                  "bad tensor entry"},
        BadHeader{"NegativeShape", R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1,
                  "bad shape"},
        BadHeader{"RealShape", R"({"a":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1,
                  "bad shape"},
        BadHeader{"HugeDim",
                  R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", 1,
                  "bad shape"},
        BadHeader{"ShapeProductWraps",
                  R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
                  "shape and data_offsets disagree"},
        BadHeader{"NegativeOffset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1,
                  "bad data_offsets"},
        BadHeader{"OneOffset", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1,
                  "bad data_offsets"},
        BadHeader{"Backwards", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1,
                  "data_offsets leave the file"},
        BadHeader{"OutOfFile", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1,
                  "data_offsets leave the file"},
        BadHeader{"HugeOffset",
                  R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551615]}})", 1,
                  "data_offsets leave the file"},
        BadHeader{"WrongBytes", R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,2]}})", 2,
                  "shape and data_offsets disagree: m.safetensors: a: expected 4 bytes"},
        BadHeader{"Overlap",
                  R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                  R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                  3, "tensors overlap"},
        BadHeader{"Gap",
                  R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                  R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                  3,
                  "gap between tensors: m.safetensors: a and b: expected b to start at byte 1, "
                  "found [2, 3) "
                  "(an entry between them may be missing"},
        BadHeader{"Rest", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 2,
                  "bytes after the last tensor"},
        BadHeader{"Metadata", R"({"__metadata__":{"format":1}})", 0, "bad __metadata__"}),
    [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(Safetensors, RefusesFilesShorterThanTheirHeaderSays) {
  const std::string file = two_tensors();
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(parse_safetensors(std::string_view(file).substr(0, size), "m")) << size;
  }
}

TEST(Safetensors, RefusesHeaderLengthsAboveTheLimitOfTheFormat) {
  std::string file = two_tensors();
  for (size_t byte = 0; byte < 8; ++byte) file[byte] = '\xff';
  const auto tensors = parse_safetensors(file, "m");
  ASSERT_FALSE(tensors);
  EXPECT_THAT(tensors.error().message(), HasSubstr("header is too long"));
}

}  // namespace
}  // namespace tessera
