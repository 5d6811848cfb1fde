// SPDX-License-Identifier: Apache-2.0
// Whatever bytes a file holds, parsing ends with an error or with views inside the file.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "io/safetensors.h"
#include "safetensors_writer.h"

namespace tessera {
namespace {

bool inside(const TensorMap& tensors, std::string_view file) {
  const auto* begin = reinterpret_cast<const std::byte*>(file.data());
  for (const auto& [name, tensor] : tensors) {
    const auto count = static_cast<uint64_t>(tensor.elements());
    if (tensor.data < begin || tensor.data + tensor.bytes > begin + file.size()) return false;
    if (count * dtype_bytes(tensor.dtype) != tensor.bytes) return false;
  }
  return true;
}

std::string sound_file() {
  test::CheckpointImage image;
  image["first"] = test::tensor_image<uint16_t>("BF16", {2, 2}, {1, 2, 3, 4});
  image["second"] = test::tensor_image<uint8_t>("F8_E4M3", {3}, {5, 6, 7});
  image["third"] = test::tensor_image<int64_t>("I64", {1}, {8});
  return test::safetensors_bytes(image);
}

TEST(SafetensorsProperty, FlippedBytesNeverLeaveTheFile) {
  const std::string sound = sound_file();
  EXPECT_TRUE(rc::check([&sound] {
    std::string file = sound;
    const auto flips = *rc::gen::inRange(1, 5);
    for (int flip = 0; flip < flips; ++flip) {
      const auto at = *rc::gen::inRange<size_t>(0, file.size());
      file[at] = *rc::gen::arbitrary<char>();
    }
    const auto tensors = parse_safetensors(file, "flipped");
    const bool sound_outcome = tensors ? inside(*tensors, file) : !tensors.error().what.empty();
    RC_ASSERT(sound_outcome);
  }));
}

TEST(SafetensorsProperty, WritingAndReadingAgree) {
  EXPECT_TRUE(rc::check([] {
    test::CheckpointImage image;
    const auto count = *rc::gen::inRange(0, 6);
    for (int tensor = 0; tensor < count; ++tensor) {
      const auto rows = *rc::gen::inRange<int64_t>(0, 5);
      const auto cols = *rc::gen::inRange<int64_t>(0, 5);
      const auto bytes = *rc::gen::container<std::vector<uint8_t>>(static_cast<size_t>(rows * cols),
                                                                   rc::gen::arbitrary<uint8_t>());
      image["t" + std::to_string(tensor)] = test::tensor_image<uint8_t>("U8", {rows, cols}, bytes);
    }
    const std::string file = test::safetensors_bytes(image);
    const auto tensors = parse_safetensors(file, "written");
    RC_ASSERT(tensors.has_value());
    const test::CheckpointImage read = test::checkpoint_image(*tensors);
    RC_ASSERT(read.size() == image.size());
    for (const auto& [name, tensor] : image) {
      RC_ASSERT(read.at(name).bytes == tensor.bytes);
      RC_ASSERT(read.at(name).shape == tensor.shape);
    }
  }));
}

}  // namespace
}  // namespace tessera
