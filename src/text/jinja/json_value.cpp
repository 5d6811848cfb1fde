// SPDX-License-Identifier: Apache-2.0
// A Boost.JSON event handler that builds template values. Numbers are converted here, because the
// library's own doubles are not always the nearest ones and its integers end at 64 bits.
#include "text/jinja/json_value.h"

#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cstdlib>
#include <limits>

namespace tessera::jinja {
namespace {

constexpr size_t kMaxJsonDepth = 90;  // below Limits::value_depth, so that values can be wrapped

Value number_from_text(std::string_view text) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  if (text.find_first_of(".eE") == std::string_view::npos) {
    int64_t integer = 0;
    if (std::from_chars(begin, end, integer).ec == std::errc{}) return Value::integer(integer);
    auto digits = std::make_shared<const std::string>(text);
    return Value(Value::Storage(BigInteger{std::move(digits)}));
  }
  double real = 0.0;
  // from_chars leaves numbers out of range alone; strtod gives infinity or zero, as Python does.
  if (std::from_chars(begin, end, real).ec == std::errc::result_out_of_range)
    real = std::strtod(std::string(text).c_str(), nullptr);
  return Value::real(real);
}

struct Handler {
  static constexpr size_t max_object_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_array_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_key_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_string_size = std::numeric_limits<size_t>::max();

  using Code = boost::json::error_code;
  struct Level {
    bool is_object = false;
    List items{};
    Dict dict{};
    std::string key{};
  };

  Run& run;
  std::vector<Level> levels{};
  std::string text{};
  Value result{};

  bool add(Value value) {
    if (levels.empty()) {
      result = std::move(value);
    } else if (levels.back().is_object) {
      dict_set(run, levels.back().dict, make_string(run, std::move(levels.back().key)),
               std::move(value));
    } else {
      levels.back().items.push_back(std::move(value));
    }
    return run.ok();
  }
  bool open(bool is_object) {
    levels.push_back({.is_object = is_object});
    return true;
  }
  bool close() {
    Level level = std::move(levels.back());
    levels.pop_back();
    return add(level.is_object ? make_dict(run, std::move(level.dict))
                               : make_list(run, std::move(level.items)));
  }
  bool collect(boost::json::string_view part) {
    text.append(part.data(), part.size());
    return true;
  }
  std::string take(boost::json::string_view last) {
    collect(last);
    return std::exchange(text, {});
  }
  bool number(boost::json::string_view last) { return add(number_from_text(take(last))); }

  bool on_document_begin(Code&) { return true; }
  bool on_document_end(Code&) { return true; }
  bool on_object_begin(Code&) { return open(true); }
  bool on_object_end(size_t, Code&) { return close(); }
  bool on_array_begin(Code&) { return open(false); }
  bool on_array_end(size_t, Code&) { return close(); }
  bool on_key_part(boost::json::string_view part, size_t, Code&) { return collect(part); }
  bool on_key(boost::json::string_view last, size_t, Code&) {
    levels.back().key = take(last);
    return true;
  }
  bool on_string_part(boost::json::string_view part, size_t, Code&) { return collect(part); }
  bool on_string(boost::json::string_view last, size_t, Code&) {
    return add(make_string(run, take(last)));
  }
  bool on_number_part(boost::json::string_view part, Code&) { return collect(part); }
  bool on_int64(int64_t, boost::json::string_view last, Code&) { return number(last); }
  bool on_uint64(uint64_t, boost::json::string_view last, Code&) { return number(last); }
  bool on_double(double, boost::json::string_view last, Code&) { return number(last); }
  bool on_bool(bool flag, Code&) { return add(Value::boolean(flag)); }
  bool on_null(Code&) { return add(Value::none()); }
  bool on_comment_part(boost::json::string_view, Code&) { return true; }
  bool on_comment(boost::json::string_view, Code&) { return true; }
};

}  // namespace

Result<Value> parse_json(Run& run, std::string_view json, const std::string& where) {
  boost::json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  boost::json::basic_parser<Handler> parser(options, Handler{.run = run});
  boost::json::error_code code;
  const size_t used = parser.write_some(false, json.data(), json.size(), code);
  if (!run.ok()) return fail(run.error());
  if (code || used < json.size() || !parser.done())
    return fail({.code = Errc::kInvalidArgument,
                 .what = "invalid JSON",
                 .where = where + " at byte " + std::to_string(used),
                 .found = code ? code.message() : "text after the end"});
  return std::move(parser.handler().result);
}

}  // namespace tessera::jinja
