// SPDX-License-Identifier: Apache-2.0
// Names of error codes and the one layout of messages: what, where, expected, found, hint.
#include <tessera/error.h>

namespace tessera {

const char* errc_name(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument: return "invalid_argument";
    case Errc::kNotFound: return "not_found";
    case Errc::kCorruptFile: return "corrupt_file";
    case Errc::kUnsupported: return "unsupported";
    case Errc::kMismatch: return "mismatch";
    case Errc::kOutOfMemory: return "out_of_memory";
    case Errc::kContextLimit: return "context_limit";
    case Errc::kNumerics: return "numerics";
    case Errc::kCancelled: return "cancelled";
    case Errc::kInternal: return "internal";
  }
  return "unknown";
}

std::string Error::message() const {
  std::string text = what;
  if (!where.empty()) text += ": " + where;
  if (!expected.empty()) text += ": expected " + expected;
  if (!found.empty()) text += (expected.empty() ? ": found " : ", found ") + found;
  if (!hint.empty()) text += " (" + hint + ")";
  return text;
}

}  // namespace tessera
