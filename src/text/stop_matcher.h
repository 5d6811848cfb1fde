// SPDX-License-Identifier: Apache-2.0
// Stop strings in streamed text: releases what can no longer be part of one.
#pragma once

#include <tessera/error.h>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// The stop string that ends first wins, the longest of those that end together. How the text is
/// cut into chunks never changes the result.
class StopMatcher {
 public:
  /// Refuses empty strings and more than 64 KiB of them.
  static Result<StopMatcher> create(std::vector<std::string> stop_strings);

  /// Text that is safe to show. Once a stop string is complete it and all later text are dropped.
  std::string push(std::string_view chunk);
  /// The end of the text: what was held back turns out not to be a stop string.
  std::string flush();

  bool stopped() const { return hit_ >= 0; }
  /// Index of the stop string that was found, -1 before.
  int hit() const { return hit_; }

 private:
  struct Pattern {
    std::string text{};
    std::vector<size_t> border{};  // by matched length: longest proper prefix that is a suffix
    size_t matched = 0;
  };
  static void advance(Pattern& pattern, char byte);

  std::vector<Pattern> patterns_{};
  std::string held_{};
  int hit_ = -1;
};

}  // namespace tessera::text
