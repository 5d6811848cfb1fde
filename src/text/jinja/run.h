// SPDX-License-Identifier: Apache-2.0
// What one parse or render may use, and its first failure: templates are untrusted input.
#pragma once

#include <tessera/error.h>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::jinja {

/// String bytes that count as much work as one evaluated node.
inline constexpr uint64_t kBytesPerStep = 16;

struct Limits {
  size_t source_bytes = size_t{1} << 20;
  size_t output_bytes = size_t{64} << 20;
  uint64_t steps = 20'000'000;                   // nodes evaluated, items visited, comparisons
  uint64_t created_bytes = uint64_t{512} << 20;  // all values made during one render, freed or not
  int parse_depth = 100;                         // open brackets, prefix operators and blocks
  int tree_depth = 250;                          // operators on one path, e.g. a + b + c + ...
  int eval_depth = 1000;                         // the same across macro calls
  int value_depth = 100;                         // lists in lists
};

/// Failures stick: after the first one every helper returns early with a harmless value, loops
/// stop, and whoever started the run hands the error back. This keeps the evaluator readable
/// without exceptions.
class Run {
 public:
  explicit Run(const Limits& limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }
  bool ok() const { return !error_.has_value(); }

  /// Offset in the source of what is being parsed or evaluated; errors point there.
  void set_position(size_t offset) { position_ = offset; }
  size_t position() const { return position_; }
  size_t error_position() const { return error_position_; }
  const Error& error() const { return *error_; }

  /// Each returns false when the run has failed, now or before.
  bool spend(uint64_t steps = 1);
  bool spend_on(std::string_view text) { return spend(1 + text.size() / kBytesPerStep); }
  bool allocate(uint64_t bytes);
  bool check_depth(int depth, int limit, const char* what);

  void fail(Error error);
  void fail_type(std::string what);         // Python would raise here
  void fail_unsupported(std::string what);  // Jinja could do it, this engine does not
  void fail_syntax(std::string what, std::string found = {});

 private:
  Limits limits_;
  uint64_t steps_ = 0;
  uint64_t created_bytes_ = 0;
  size_t position_ = 0;
  size_t error_position_ = 0;
  std::optional<Error> error_{};
};

/// Counts a level of recursion for the lifetime of a scope.
class DepthGuard {
 public:
  explicit DepthGuard(int& depth) : depth_(depth) { ++depth_; }
  ~DepthGuard() { --depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  int& depth_;
};

}  // namespace tessera::jinja
