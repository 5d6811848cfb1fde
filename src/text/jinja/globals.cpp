// SPDX-License-Identifier: Apache-2.0
// Global functions: range, dict, raise_exception, strftime_now.
#include <algorithm>
#include <array>

#include "text/jinja/builtins.h"
#include "text/jinja/print.h"

namespace tessera::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;                // the sandbox of the reference has the same
constexpr int64_t kMaxRangeBound = int64_t{1} << 61;  // keeps the arithmetic within 64 bits
constexpr size_t kMaxDateFormat = 200;

Value range(Run& run, const Arguments& arguments) {
  if (!arguments.keywords.empty()) run.fail_type("range() takes no keyword arguments");
  std::array<int64_t, 3> bounds = {0, 0, 1};
  const List& given = arguments.positional;
  if (given.empty() || given.size() > bounds.size())
    run.fail_type("range() takes one to three arguments");
  if (!run.ok()) return {};
  for (size_t index = 0; index < given.size(); ++index) {
    const auto number = given[index].as_integer();
    if (!number) run.fail_type("range() needs integers");
    const int64_t bound = number.value_or(0);
    if (bound > kMaxRangeBound || bound < -kMaxRangeBound)
      run.fail_unsupported("range() with bounds beyond 61 bits");
    bounds[given.size() == 1 ? 1 : index] = bound;
  }
  if (bounds[2] == 0) run.fail_type("range() step must not be zero");
  if (!run.ok()) return {};
  const Range result{bounds[0], bounds[1], bounds[2]};
  if (result.size() > kMaxRange)
    run.fail_type("range() of more than " + std::to_string(kMaxRange) + " items");
  return Value(Value::Storage(result));
}

Value dict(Run& run, const Arguments& arguments) {
  Dict result;
  if (arguments.positional.size() > 1) run.fail_type("dict() takes at most one argument");
  for (const Value& source : arguments.positional) {
    if (source.is(Kind::kDict)) {
      result = source.dict();
      continue;
    }
    for (const Value& item : iterate(run, source)) {
      const List pair = run.ok() ? iterate(run, item) : List{};
      if (pair.size() != 2) run.fail_type("dict() needs pairs");
      if (!run.ok()) return {};
      dict_set(run, result, pair[0], pair[1]);
    }
  }
  for (const auto& [name, value] : arguments.keywords)
    dict_set(run, result, Value::literal(name), value);
  return make_dict(run, std::move(result));
}

/// The text a template fails with on purpose becomes the whole error.
Value raise_exception(Run& run, const Arguments& arguments) {
  ArgumentReader reader(run, "raise_exception", arguments);
  const Value message = reader.required("message");
  reader.done();
  if (run.ok()) run.fail_type(to_text(run, message));
  return {};
}

Value strftime_now(Run& run, const Surroundings& surroundings, const Arguments& arguments) {
  ArgumentReader reader(run, "strftime_now", arguments);
  const Value format = reader.required("format");
  reader.done();
  if (!format.is_string()) run.fail_type("strftime_now needs a format");
  if (!run.ok()) return {};
  const std::string& text = format.text();
  if (text.size() > kMaxDateFormat) run.fail_unsupported("a date format this long");
  // Only conversions that C and Python agree on; %c and %x would depend on a locale.
  constexpr std::string_view kConversions = "aAbBdHIjmMpSUwWyY%eDFTRnthCGguV";
  for (size_t pos = text.find('%'); pos != std::string::npos; pos = text.find('%', pos + 2))
    if (pos + 1 >= text.size() || kConversions.find(text[pos + 1]) == std::string_view::npos)
      run.fail_unsupported("the date format '" + text + "'");
  if (!run.ok() || text.empty()) return make_string(run, {});
  const std::time_t now = surroundings.clock();
  std::tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 32 * kMaxDateFormat> buffer{};
  const size_t size = std::strftime(buffer.data(), buffer.size(), text.c_str(), &parts);
  return make_string(run, std::string(buffer.data(), size));
}

// Jinja has these as well; templates may ask for them, so they are refused by name when called.
constexpr std::array<std::string_view, 3> kRefused = {"lipsum", "cycler", "joiner"};
constexpr std::array<std::string_view, 5> kGlobals = {"range", "dict", "namespace",
                                                      "raise_exception", "strftime_now"};

}  // namespace

bool has_global(std::string_view name) {
  return std::find(kGlobals.begin(), kGlobals.end(), name) != kGlobals.end() ||
         std::find(kRefused.begin(), kRefused.end(), name) != kRefused.end();
}

Value call_global(Run& run, const Surroundings& surroundings, std::string_view name,
                  const Arguments& arguments) {
  if (name == "range") return range(run, arguments);
  if (name == "dict") return dict(run, arguments);
  if (name == "raise_exception") return raise_exception(run, arguments);
  if (name == "strftime_now") return strftime_now(run, surroundings, arguments);
  run.fail_unsupported("the function " + std::string(name) + "()");
  return {};
}

}  // namespace tessera::jinja
