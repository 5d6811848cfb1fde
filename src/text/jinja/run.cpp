// SPDX-License-Identifier: Apache-2.0
// Budgets of a template run and the one error it may end with.
#include "text/jinja/run.h"

namespace tessera::jinja {

void Run::fail(Error error) {
  if (error_) return;
  error_ = std::move(error);
  error_position_ = position_;
}

void Run::fail_type(std::string what) {
  fail({.code = Errc::kInvalidArgument, .what = std::move(what)});
}

void Run::fail_unsupported(std::string what) {
  fail({.code = Errc::kUnsupported, .what = std::move(what)});
}

void Run::fail_syntax(std::string what, std::string found) {
  fail({.code = Errc::kCorruptFile, .what = std::move(what), .found = std::move(found)});
}

bool Run::spend(uint64_t steps) {
  steps_ += steps;
  if (steps_ > limits_.steps)
    fail({.code = Errc::kUnsupported,
          .what = "the template does not come to an end",
          .expected = "at most " + std::to_string(limits_.steps) + " steps"});
  return ok();
}

bool Run::allocate(uint64_t bytes) {
  created_bytes_ =
      bytes > limits_.created_bytes ? limits_.created_bytes + 1 : created_bytes_ + bytes;
  if (created_bytes_ > limits_.created_bytes)
    fail({.code = Errc::kUnsupported,
          .what = "the template creates too much data",
          .expected = "at most " + std::to_string(limits_.created_bytes) + " bytes"});
  return ok();
}

bool Run::check_depth(int depth, int limit, const char* what) {
  if (depth > limit)
    fail({.code = Errc::kUnsupported,
          .what = std::string(what) + " nested too deeply",
          .expected = "at most " + std::to_string(limit) + " levels"});
  return ok();
}

}  // namespace tessera::jinja
