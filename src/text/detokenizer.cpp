// SPDX-License-Identifier: Apache-2.0
// Ids back to text, one at a time: bytes wait until the code point they belong to is decided.
#include <tessera/tokenizer.h>
#include <utility>
#include "text/unicode.h"

namespace tessera {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special), pending_() {}

std::string Detokenizer::push(int32_t id) {
  // A skipped token does not end a code point: decode() joins the bytes around it.
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  pending_.append(tokenizer_->token_bytes(id));
  std::string text;
  pending_.erase(0, text::append_complete_utf8(pending_, text));
  return text;
}

std::string Detokenizer::flush() {
  // What waits is a prefix of one well-formed sequence, hence one error.
  return std::exchange(pending_, {}).empty() ? std::string() : std::string(text::kReplacement);
}

}  // namespace tessera
