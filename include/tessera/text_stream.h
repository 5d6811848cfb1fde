// SPDX-License-Identifier: Apache-2.0
// Generated ids to text that is safe to show: whole characters, and never a part of a stop string.
#pragma once

#include <tessera/error.h>
#include <tessera/tokenizer.h>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

class TextStream {
 public:
  struct Delta {
    std::string text{};    // to show now; never holds the stop string or what follows it
    bool stopped = false;  // a stop string is complete, here or earlier
  };

  /// `tokenizer` must outlive the stream. Fails with kInvalidArgument on an empty stop string or
  /// more than 64 KiB of them.
  static Result<TextStream> create(const Tokenizer& tokenizer,
                                   std::vector<std::string> stop_strings, bool skip_special = true);

  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;
  ~TextStream();

  Delta push(int32_t id);
  /// The end of the generation: releases what was held back. Call once.
  Delta flush();
  /// Index of the stop string that was found, -1 when none was.
  int stop_index() const;

 private:
  struct Impl;
  explicit TextStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
