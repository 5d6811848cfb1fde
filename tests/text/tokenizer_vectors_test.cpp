// SPDX-License-Identifier: Apache-2.0
// Committed answers of the reference (tokenizer_oracle.py --write-vectors) on three small models.
#include <boost/json.hpp>
#include <map>
#include "tokenizer_fixture.h"

namespace tessera::test {
namespace {

namespace json = boost::json;

std::string as_string(const json::value& value) {
  return {value.as_string().data(), value.as_string().size()};
}

std::string from_hex(const std::string& hex) {
  constexpr int kHexBase = 16;
  std::string bytes;
  for (size_t at = 0; at < hex.size(); at += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, kHexBase)));
  return bytes;
}

TEST(TokenizerVectors, EqualTheReference) {
  std::map<std::string, Tokenizer> models;
  for (const std::string name : {"a", "b", "c"}) {
    const std::string path = "tests/text/tokenizer_synthetic_" + name + ".json";
    auto tokenizer = Tokenizer::parse(file_text(path), path);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message();
    models.emplace(name, *std::move(tokenizer));
  }
  const json::value vectors = json::parse(file_text("tests/text/tokenizer_vectors.json"));
  ASSERT_GT(vectors.as_array().size(), 500U);
  for (const json::value& vector : vectors.as_array()) {
    const Tokenizer& tokenizer = models.at(as_string(vector.at("tokenizer")));
    const auto ids = json::value_to<std::vector<int32_t>>(vector.at("ids"));
    if (const json::value* hex = vector.as_object().if_contains("hex")) {
      const bool parse_special = vector.at("parse_special").as_bool();
      EXPECT_EQ(tokenizer.encode(from_hex(as_string(*hex)), parse_special), ids) << vector;
    } else {
      const bool skip_special = vector.at("skip_special").as_bool();
      EXPECT_EQ(tokenizer.decode(ids, skip_special), as_string(vector.at("text"))) << vector;
    }
  }
}

}  // namespace
}  // namespace tessera::test
