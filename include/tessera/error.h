// SPDX-License-Identifier: Apache-2.0
// Expected failures as values: what went wrong, where, what was expected, what was found, what to
// do.
#pragma once

#include <string>
#include <tl/expected.hpp>

namespace tessera {

enum class Errc {
  kInvalidArgument,  // the caller asked for something impossible
  kNotFound,         // a file or tensor that must exist does not
  kCorruptFile,      // bytes from outside break the format
  kUnsupported,      // well-formed, but not something this build can run
  kMismatch,         // two inputs that must agree do not (shape, fingerprint, config)
  kOutOfMemory,
  kContextLimit,  // the request does not fit the context window
  kNumerics,      // NaN or Inf where a finite number is needed
  kCancelled,
  kInternal,
};

/// Stable lower-case name of a code, e.g. "corrupt_file".
const char* errc_name(Errc code);

/// One failure. Every field but `what` may be empty; `message()` leaves empty ones out.
struct Error {
  Errc code = Errc::kInternal;
  std::string what{};      // "wrong shape"
  std::string where{};     // "model-00001.safetensors: model.language_model.embed_tokens.weight"
  std::string expected{};  // "[8192, 128] BF16"
  std::string found{};     // "[8192, 64] BF16"
  std::string hint{};      // "config.json and the weights belong to different models"

  /// "wrong shape: embed_tokens.weight: expected [8192, 128], found [8192, 64] (hint)".
  std::string message() const;
};

template <class T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

}  // namespace tessera
