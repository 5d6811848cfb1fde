// SPDX-License-Identifier: Apache-2.0
// The split pattern of tokenizer.json, run by PCRE2 with the meaning the reference gives it.
#pragma once

#include <tessera/error.h>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// Accepts the syntax that the reference's regex dialect and PCRE2 read alike; anything else is an
/// error that names the construct.
Result<void> screen_pattern(std::string_view pattern, const std::string& where);

class SplitRegex {
 public:
  static Result<SplitRegex> compile(std::string_view pattern, const std::string& where);
  SplitRegex(SplitRegex&&) noexcept;
  SplitRegex& operator=(SplitRegex&&) noexcept;
  ~SplitRegex();

  /// Appends the matches of `text` (valid UTF-8) and what lies between them, in order. When one
  /// match exceeds its step limit (patterns that are not linear) the rest of the text is one piece.
  /// Thread-safe.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Compiled;
  explicit SplitRegex(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace tessera::text
