// SPDX-License-Identifier: Apache-2.0
// tokenizer.json of the checkpoint: byte-level BPE, and the streaming way back from ids to text.
#pragma once

#include <tessera/error.h>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

class Tokenizer {
 public:
  /// Reads `model_dir`/tokenizer.json. Everything the file declares is either implemented or
  /// refused by name.
  static Result<Tokenizer> load(const std::string& model_dir);
  /// Same, from the text of the file; `where` names it in errors.
  static Result<Tokenizer> parse(std::string_view json, const std::string& where);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Any bytes; invalid UTF-8 becomes U+FFFD as the reference does. `parse_special` false: the text
  /// of special added tokens is encoded as plain text (user input that must not forge a turn).
  std::vector<int32_t> encode(std::string_view text, bool parse_special = true) const;

  /// A message that must not forge a turn: special tokens inside it are marked, so that
  /// `encode_rendered` reads them as plain text wherever a chat template put the message. The marks
  /// (U+FDD0, not a character) reach neither ids nor text; one that was in `text` becomes U+FFFD.
  std::string shield(std::string_view text) const;
  /// `encode` for a rendered prompt that holds shielded messages.
  std::vector<int32_t> encode_rendered(std::string_view text) const;

  /// Raw bytes of a token (not always valid UTF-8). Empty for ids outside the vocabulary.
  std::string_view token_bytes(int32_t id) const;
  /// Id of an added or base token by its exact text, -1 when there is none.
  int32_t token_id(std::string_view text) const;
  bool is_special(int32_t id) const;
  int vocab_size() const;  // highest id + 1
  /// Depends on the bytes of every token and on nothing else: equal where ids mean the same.
  uint64_t fingerprint() const;

  /// Whole-sequence decode; incomplete or invalid bytes become U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  struct Impl;

 private:
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Turns ids into text one at a time and never emits half a code point. Concatenated output equals
/// `Tokenizer::decode` of the same ids.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true);
  /// Text that became complete with this token (often all of it, sometimes empty).
  std::string push(int32_t id);
  /// What is still held back at the end: an incomplete code point as one U+FFFD, or nothing.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace tessera
