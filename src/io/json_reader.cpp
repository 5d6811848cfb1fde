// SPDX-License-Identifier: Apache-2.0
// Two passes over the text: a streaming one that looks for repeated keys, then the tree.
#include "io/json_reader.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse_options.hpp>
#include <boost/json/parser.hpp>
#include <new>
#include <unordered_set>
#include <vector>

namespace tessera {
namespace {

namespace json = boost::json;

/// Receives the events of one document and stops at the first key an object holds twice.
class KeyWatch {
 public:
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = static_cast<size_t>(-1);
  static constexpr size_t max_string_size = static_cast<size_t>(-1);

  bool on_object_begin(json::error_code&) {
    open_objects_.emplace_back();
    return true;
  }
  bool on_object_end(size_t, json::error_code&) {
    open_objects_.pop_back();
    return true;
  }
  bool on_key_part(std::string_view part, size_t, json::error_code&) {
    key_.append(part);
    return true;
  }
  bool on_key(std::string_view part, size_t, json::error_code& error) {
    key_.append(part);
    if (!open_objects_.back().insert(key_).second) {
      repeated_ = key_;
      error = json::make_error_code(json::error::syntax);
      return false;
    }
    key_.clear();
    return true;
  }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t, json::error_code&) { return true; }
  bool on_string_part(std::string_view, size_t, json::error_code&) { return true; }
  bool on_string(std::string_view, size_t, json::error_code&) { return true; }
  bool on_number_part(std::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t, std::string_view, json::error_code&) { return true; }
  bool on_uint64(uint64_t, std::string_view, json::error_code&) { return true; }
  bool on_double(double, std::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(std::string_view, json::error_code&) { return true; }
  bool on_comment(std::string_view, json::error_code&) { return true; }

  const std::string& repeated() const { return repeated_; }

 private:
  std::vector<std::unordered_set<std::string>> open_objects_{};
  std::string key_{};
  std::string repeated_{};
};

tl::unexpected<Error> malformed(const std::string& where, const std::string& found) {
  return fail({.code = Errc::kCorruptFile, .what = "invalid JSON", .where = where, .found = found});
}

std::string position(const json::error_code& error, size_t offset) {
  return error.message() + " at byte " + std::to_string(offset);
}

}  // namespace

Result<json::value> parse_json(std::string_view text, const std::string& where) {
  try {
    json::error_code error;
    json::basic_parser<KeyWatch> watch{json::parse_options{}};
    const size_t watched = watch.write_some(false, text.data(), text.size(), error);
    if (!watch.handler().repeated().empty() && error) {
      return malformed(where, "key \"" + watch.handler().repeated() + "\" twice in one object");
    }
    if (error) return malformed(where, position(error, watched));

    const size_t rest = text.find_first_not_of(" \t\r\n", watched);
    if (rest != std::string_view::npos) {
      return malformed(where, "extra data at byte " + std::to_string(rest));
    }
    json::parser parser;
    parser.write(text.data(), text.size(), error);
    if (error) return malformed(where, position(error, text.size()));
    return parser.release();
  } catch (const std::bad_alloc&) {
    return fail({.code = Errc::kOutOfMemory,
                 .what = "JSON does not fit memory",
                 .where = where,
                 .found = std::to_string(text.size()) + " bytes of text"});
  }
}

}  // namespace tessera
