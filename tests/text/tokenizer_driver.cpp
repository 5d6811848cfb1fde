// SPDX-License-Identifier: Apache-2.0
// Answers the oracle script over pipes: texts in, ids out, so that two implementations can be
// compared on thousands of strings.
#include <tessera/tokenizer.h>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

namespace {

constexpr int kHexBase = 16;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t at = 0; at + 1 < hex.size(); at += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(at, 2), nullptr, kHexBase)));
  return bytes;
}

std::string to_hex(const std::string& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string hex;
  for (const char character : bytes) {
    const auto byte = static_cast<unsigned char>(character);
    hex.push_back(kDigits[byte / kHexBase]);
    hex.push_back(kDigits[byte % kHexBase]);
  }
  return hex;
}

/// "encode FLAG HEX" -> ids; "decode FLAG ID..." -> hex. FLAG is parse_special or skip_special.
std::string answer(const tessera::Tokenizer& tokenizer, const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  bool flag = false;
  words >> verb >> flag;
  std::ostringstream out;
  if (verb == "encode") {
    std::string hex;
    words >> hex;
    for (const int32_t id : tokenizer.encode(from_hex(hex), flag)) out << id << ' ';
    return out.str();
  }
  const std::vector<int32_t> ids{std::istream_iterator<int32_t>(words), {}};
  return to_hex(tokenizer.decode(ids, flag));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenizer_driver TOKENIZER.json < questions\n";
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  const auto tokenizer = tessera::Tokenizer::parse(json, argv[1]);
  if (!tokenizer) {
    std::cerr << tokenizer.error().message() << "\n";
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);)
    std::cout << answer(*tokenizer, line) << '\n';
  return 0;
}
