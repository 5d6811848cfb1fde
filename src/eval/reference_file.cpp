// SPDX-License-Identifier: Apache-2.0
// Reads the members of reference.json that verification uses.
#include "eval/reference_file.h"

#include <boost/json.hpp>
#include <cmath>
#include <limits>
#include <utility>

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

/// One object of the file; a member that is there with another type is an error, never ignored.
class CaseReader {
 public:
  CaseReader(const json::object& object, std::string where, std::string name)
      : object_(object), where_(std::move(where)), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  bool has(const char* key) const { return object_.if_contains(key) != nullptr; }
  tl::unexpected<Error> bad(const std::string& key, const char* expected) const {
    return fail(malformed(where_, name_ + "." + key, expected));
  }

  /// Empty when absent.
  Result<std::string> text(const char* key) const;
  Result<std::vector<int32_t>> ids(const char* key) const;
  /// One finite number per output token, none of them negative; empty when absent.
  Result<std::vector<double>> margins(size_t count) const;
  Result<std::vector<bool>> first_drafts(size_t outputs) const;
  Result<double> finite(const char* key) const;
  Result<int> at_least(const char* key, int least) const;
  /// The file's own verdict, or else whether the text it got is the wanted one.
  Result<bool> reference_right(const std::string& want) const;

 private:
  const json::object& object_;
  std::string where_;
  std::string name_;
};

Result<std::string> CaseReader::text(const char* key) const {
  const json::value* value = object_.if_contains(key);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return bad(key, "a string");
  return std::string(value->get_string());
}

Result<std::vector<int32_t>> CaseReader::ids(const char* key) const {
  const json::value* value = object_.if_contains(key);
  if (value == nullptr || !value->is_array()) return bad(key, "an array of token ids");
  std::vector<int32_t> ids;
  for (const json::value& item : value->get_array()) {
    const int64_t* id = item.if_int64();
    if (id == nullptr || *id < 0 || *id > std::numeric_limits<int32_t>::max())
      return fail(
          {.code = Errc::kCorruptFile,
           .what = "malformed reference file",
           .where = where_ + ": " + name_ + "." + key + "[" + std::to_string(ids.size()) + "]",
           .expected = "a token id",
           .found = json::serialize(item)});
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

Result<double> CaseReader::finite(const char* key) const {
  const json::value* value = object_.if_contains(key);
  if (value == nullptr || !value->is_number()) return bad(key, "a number");
  const auto number = value->to_number<double>();
  if (!std::isfinite(number)) return bad(key, "a finite number");
  return number;
}

Result<std::vector<double>> CaseReader::margins(size_t count) const {
  const json::value* value = object_.if_contains("margin");
  if (value == nullptr) return std::vector<double>();
  if (!value->is_array()) return bad("margin", "an array of numbers");
  const json::array& array = value->get_array();
  if (array.size() != count)
    return fail({.code = Errc::kCorruptFile,
                 .what = "malformed reference file",
                 .where = where_ + ": " + name_ + ".margin",
                 .expected = "one number per output token, " + std::to_string(count),
                 .found = std::to_string(array.size())});
  std::vector<double> margins;
  for (const json::value& item : array) {
    const double margin = item.is_number() ? item.to_number<double>() : -1;
    if (!std::isfinite(margin) || margin < 0) return bad("margin", "numbers from 0 up");
    margins.push_back(margin);
  }
  return margins;
}

Result<int> CaseReader::at_least(const char* key, int least) const {
  const json::value* value = object_.if_contains(key);
  const int64_t* number = value == nullptr ? nullptr : value->if_int64();
  if (number != nullptr && *number >= least && *number <= std::numeric_limits<int>::max())
    return static_cast<int>(*number);
  return fail({.code = Errc::kCorruptFile,
               .what = "malformed reference file",
               .where = where_ + ": " + name_ + "." + key,
               .expected = "an integer from " + std::to_string(least) + " up",
               .found = value == nullptr ? "nothing" : json::serialize(*value)});
}

Result<bool> CaseReader::reference_right(const std::string& want) const {
  if (const json::value* value = object_.if_contains("correct")) {
    if (!value->is_bool()) return bad("correct", "true or false");
    return value->get_bool();
  }
  Result<std::string> text_got = text("text");
  if (!text_got) return fail(text_got.error());
  return *text_got == want;
}

/// One flag, 0 or 1, per output token but the last.
Result<std::vector<bool>> CaseReader::first_drafts(size_t outputs) const {
  constexpr const char* kKey = "mtp_first_draft_accepted";
  if (!has(kKey)) return std::vector<bool>();
  const Result<std::vector<int32_t>> flags = ids(kKey);
  if (!flags) return fail(flags.error());
  const bool counted = flags->size() + 1 == outputs;
  if (!counted || std::ranges::any_of(*flags, [](int32_t flag) { return flag > 1; }))
    return bad(kKey, "0 or 1 for each output token but the last");
  return std::vector<bool>(flags->begin(), flags->end());
}

/// What greedy and needle cases have in common; `output_key` names their ids.
Result<ReferenceCase> read_case(const CaseReader& reader, const char* output_key) {
  Result<std::string> want = reader.text("want");
  if (!want) return fail(want.error());
  Result<bool> right = reader.reference_right(*want);
  if (!right) return fail(right.error());
  Result<std::string> prompt_text = reader.text("prompt");
  if (!prompt_text) return fail(prompt_text.error());
  ReferenceCase item{.name = reader.name(),
                     .prompt_text = std::move(*prompt_text),
                     .want = std::move(*want),
                     .reference_right = *right};
  if (reader.has("prompt_ids")) {
    Result<std::vector<int32_t>> prompt = reader.ids("prompt_ids");
    if (!prompt) return fail(prompt.error());
    if (prompt->empty()) return reader.bad("prompt_ids", "at least one token id");
    item.prompt = std::move(*prompt);
  } else if (item.prompt_text.empty()) {
    return reader.bad("prompt", "prompt or prompt_ids, not empty");
  }
  Result<std::vector<int32_t>> output = reader.ids(output_key);
  if (!output) return fail(output.error());
  Result<std::vector<double>> margin = reader.margins(output->size());
  if (!margin) return fail(margin.error());
  item.output = std::move(*output);
  item.margin = std::move(*margin);
  item.output_key = output_key;
  return item;
}

Result<void> read_greedy(const json::object& root, const std::string& where, ReferenceFile& file) {
  const json::value* greedy = root.if_contains("greedy");
  if (greedy == nullptr) return {};
  if (!greedy->is_object()) return fail(malformed(where, "greedy", "an object of named cases"));
  for (const json::key_value_pair& entry : greedy->get_object()) {
    const std::string key = "greedy." + std::string(entry.key());
    if (!entry.value().is_object()) return fail(malformed(where, key, "an object"));
    const CaseReader reader(entry.value().get_object(), where, key);
    Result<ReferenceCase> item = read_case(reader, "output_ids");
    if (!item) return fail(item.error());
    // Without margins nothing excuses a mismatch.
    item->compare_ids = !item->output.empty();
    Result<std::vector<bool>> drafts = reader.first_drafts(item->output.size());
    if (!drafts) return fail(drafts.error());
    item->first_drafts = std::move(*drafts);
    file.cases.push_back(std::move(*item));
  }
  return {};
}

Result<void> read_needles(const json::object& root, const std::string& where, ReferenceFile& file) {
  const json::value* needles = root.if_contains("needle");
  if (needles == nullptr) return {};
  if (!needles->is_array()) return fail(malformed(where, "needle", "an array of cases"));
  size_t index = 0;
  for (const json::value& entry : needles->get_array()) {
    const std::string key = "needle[" + std::to_string(index++) + "]";
    if (!entry.is_object()) return fail(malformed(where, key, "an object"));
    const CaseReader reader(entry.get_object(), where, key);
    Result<ReferenceCase> item = read_case(reader, "greedy_ids");
    if (!item) return fail(item.error());
    item->retrieval = true;
    // A long prompt makes near ties likely: without margins only the answer counts.
    item->compare_ids = !item->margin.empty();
    file.cases.push_back(std::move(*item));
  }
  return {};
}

Result<void> read_texts(const json::object& root, const std::string& where, ReferenceFile& file) {
  constexpr int kFewestTokens = 2;  // the first one has no prediction
  const json::value* texts = root.if_contains("perplexity");
  if (texts == nullptr) return {};
  if (!texts->is_object()) return fail(malformed(where, "perplexity", "an object of named texts"));
  for (const json::key_value_pair& entry : texts->get_object()) {
    const std::string key = "perplexity." + std::string(entry.key());
    if (!entry.value().is_object()) return fail(malformed(where, key, "an object"));
    const CaseReader reader(entry.value().get_object(), where, key);
    Result<std::string> text = reader.text("text");
    if (!text) return fail(text.error());
    if (text->empty()) return reader.bad("text", "a text");
    Result<int> tokens = reader.at_least("tokens", kFewestTokens);
    if (!tokens) return fail(tokens.error());
    Result<double> nll = reader.finite("nll");
    if (!nll) return fail(nll.error());
    file.texts.push_back({.name = key, .text = std::move(*text), .tokens = *tokens, .nll = *nll});
  }
  return {};
}

}  // namespace

Result<ReferenceFile> parse_reference_file(std::string_view text, const std::string& where) {
  Result<json::value> root = parse_json(text, where);
  if (!root) return fail(root.error());
  if (!root->is_object()) return fail(malformed(where, "top level", "an object"));
  const json::object& object = root->get_object();
  ReferenceFile file;
  if (const json::value* source = object.if_contains("source")) {
    if (!source->is_string()) return fail(malformed(where, "source", "a string"));
    file.source = std::string(source->get_string());
  }
  if (auto status = read_greedy(object, where, file); !status) return fail(status.error());
  if (auto status = read_needles(object, where, file); !status) return fail(status.error());
  if (auto status = read_texts(object, where, file); !status) return fail(status.error());
  if (file.cases.empty() && file.texts.empty())
    return fail(malformed(where, "top level", "at least one of greedy, needle, perplexity"));
  return file;
}

}  // namespace tessera
