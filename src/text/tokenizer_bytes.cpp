// SPDX-License-Identifier: Apache-2.0
// The byte alphabet: printable Latin-1 stands for itself, the other bytes follow from U+0100.
#include <array>
#include "text/tokenizer_spec.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

constexpr int kNumBytes = 256;
constexpr char32_t kFirstShifted = 0x100;
constexpr int kNumShifted = 68;  // bytes that are not printable in Latin-1
constexpr int kNumSpellings = 256 + kNumShifted;

constexpr bool is_printable_latin1(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteAlphabet {
  std::array<char32_t, kNumBytes> character{};
  std::array<int, kNumSpellings> byte{};  // by character, -1: not in the alphabet
};

constexpr ByteAlphabet make_alphabet() {
  ByteAlphabet alphabet;
  for (int& byte : alphabet.byte) byte = -1;
  char32_t next = kFirstShifted;
  for (int byte = 0; byte < kNumBytes; ++byte) {
    const char32_t character = is_printable_latin1(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.character[static_cast<size_t>(byte)] = character;
    alphabet.byte[character] = byte;
  }
  return alphabet;
}

constexpr ByteAlphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.character[' '] == 0x120 && kAlphabet.character[0xAD] == 0x143);

}  // namespace

std::optional<std::string> bytes_of_spelling(std::string_view spelled) {
  std::string bytes;
  while (!spelled.empty()) {
    const Utf8Step step = decode_utf8(spelled);
    if (step.status != Utf8Status::kValid || step.code_point >= kNumSpellings) return std::nullopt;
    const int byte = kAlphabet.byte[step.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    spelled.remove_prefix(static_cast<size_t>(step.length));
  }
  return bytes;
}

std::string spelling_of_byte(unsigned char byte) {
  std::string spelled;
  append_utf8(kAlphabet.character[byte], spelled);
  return spelled;
}

}  // namespace tessera::text
