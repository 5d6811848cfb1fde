// SPDX-License-Identifier: Apache-2.0
#include "eval/reference_file.h"

#include <boost/json.hpp>

#include "io/json_reader.h"

namespace tessera {
namespace {

namespace json = boost::json;

Error malformed(const std::string& where, const std::string& key, const char* expected) {
  return {.code = Errc::kCorruptFile,
          .what = "malformed reference file",
          .where = where + ": " + key,
          .expected = expected,
          .found = "something else or nothing",
          .hint = "models/README.md describes the format"};
}

/// Text of a string member; empty when absent.
std::string text_of(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

bool read_ids(const json::object& object, const char* key, std::vector<int32_t>& ids) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_array()) return false;
  for (const json::value& item : value->get_array()) {
    if (!item.is_int64()) return false;
    ids.push_back(static_cast<int32_t>(item.get_int64()));
  }
  return true;
}

void read_margins(const json::object& object, std::vector<double>& margins) {
  const json::value* value = object.if_contains("margin");
  if (value == nullptr || !value->is_array()) return;
  for (const json::value& item : value->get_array()) {
    boost::system::error_code error;
    margins.push_back(item.to_number<double>(error));
  }
}

/// The file's own verdict, or else whether the text it got is the wanted one.
bool reference_right(const json::object& object) {
  const json::value* value = object.if_contains("correct");
  if (value != nullptr && value->is_bool()) return value->get_bool();
  return text_of(object, "text") == text_of(object, "want");
}

Result<void> read_greedy(const json::object& root, const std::string& where, ReferenceFile& file) {
  const json::value* greedy = root.if_contains("greedy");
  if (greedy == nullptr) return {};
  if (!greedy->is_object()) return fail(malformed(where, "greedy", "an object of named cases"));
  for (const json::key_value_pair& entry : greedy->get_object()) {
    const std::string key = "greedy." + std::string(entry.key());
    if (!entry.value().is_object()) return fail(malformed(where, key, "an object"));
    const json::object& object = entry.value().get_object();
    ReferenceCase item{.name = key, .want = text_of(object, "want")};
    item.reference_right = reference_right(object);
    if (!read_ids(object, "prompt_ids", item.prompt))
      return fail(malformed(where, key + ".prompt_ids", "an array of token ids"));
    if (!read_ids(object, "output_ids", item.output))
      return fail(malformed(where, key + ".output_ids", "an array of token ids"));
    item.prompt_text = text_of(object, "prompt");
    read_margins(object, item.margin);
    file.cases.push_back(std::move(item));
  }
  return {};
}

Result<void> read_needles(const json::object& root, const std::string& where, ReferenceFile& file) {
  const json::value* needles = root.if_contains("needle");
  if (needles == nullptr) return {};
  if (!needles->is_array()) return fail(malformed(where, "needle", "an array of cases"));
  for (const json::value& entry : needles->get_array()) {
    const std::string key = "needle[" + std::to_string(file.cases.size()) + "]";
    if (!entry.is_object()) return fail(malformed(where, key, "an object"));
    const json::object& object = entry.get_object();
    ReferenceCase item{.name = key, .want = text_of(object, "want"), .retrieval = true};
    item.reference_right = reference_right(object);
    item.prompt_text = text_of(object, "prompt");
    if (!read_ids(object, "greedy_ids", item.output))
      return fail(malformed(where, key + ".greedy_ids", "an array of token ids"));
    file.cases.push_back(std::move(item));
  }
  return {};
}

Result<void> read_texts(const json::object& root, const std::string& where, ReferenceFile& file) {
  const json::value* texts = root.if_contains("perplexity");
  if (texts == nullptr) return {};
  if (!texts->is_object()) return fail(malformed(where, "perplexity", "an object of named texts"));
  for (const json::key_value_pair& entry : texts->get_object()) {
    const std::string key = "perplexity." + std::string(entry.key());
    if (!entry.value().is_object()) return fail(malformed(where, key, "an object"));
    const json::object& object = entry.value().get_object();
    ReferenceText item{.name = key, .text = text_of(object, "text")};
    const json::value* tokens = object.if_contains("tokens");
    const json::value* nll = object.if_contains("nll");
    if (tokens == nullptr || !tokens->is_int64() || nll == nullptr || !nll->is_number())
      return fail(malformed(where, key, "text, tokens and nll"));
    item.tokens = static_cast<int>(tokens->get_int64());
    boost::system::error_code error;
    item.nll = nll->to_number<double>(error);
    file.texts.push_back(std::move(item));
  }
  return {};
}

}  // namespace

Result<ReferenceFile> parse_reference_file(std::string_view text, const std::string& where) {
  Result<json::value> root = parse_json(text, where);
  if (!root) return fail(root.error());
  if (!root->is_object()) return fail(malformed(where, "top level", "an object"));
  const json::object& object = root->get_object();
  ReferenceFile file{.source = text_of(object, "source")};
  if (auto status = read_greedy(object, where, file); !status) return fail(status.error());
  if (auto status = read_needles(object, where, file); !status) return fail(status.error());
  if (auto status = read_texts(object, where, file); !status) return fail(status.error());
  if (file.cases.empty() && file.texts.empty())
    return fail(malformed(where, "top level", "at least one of greedy, needle, perplexity"));
  return file;
}

}  // namespace tessera
