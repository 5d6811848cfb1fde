// SPDX-License-Identifier: Apache-2.0
// The "model" and "added_tokens" parts of tokenizer.json: ids, merges, and what ties them together.
#include <boost/json.hpp>
#include <unordered_set>
#include "text/tokenizer_fields.h"

namespace tessera::text {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxTokens = int64_t{1} << 22;  // ids above are a damaged file, not a vocabulary
constexpr size_t kMaxAddedBytes = 1024;
constexpr int kNumBytes = 256;

std::optional<int32_t> token_id_of(const json::value& value) {
  if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() >= kMaxTokens)
    return std::nullopt;
  return static_cast<int32_t>(value.get_int64());
}

Result<void> read_vocabulary(const Fields& model, const json::object& vocabulary,
                             TokenizerSpec& spec) {
  for (const auto& item : vocabulary) {
    const std::string_view spelled(item.key().data(), item.key().size());
    const auto id = token_id_of(item.value());
    if (!id) return model.wrong("vocab", "ids from 0 to 4194303", json::serialize(item.value()));
    const auto slot = static_cast<size_t>(*id);
    if (slot >= spec.base.size()) spec.base.resize(slot + 1);
    BaseToken& token = spec.base[slot];
    if (token.in_vocabulary)
      return model.wrong("vocab", "distinct ids", "id " + std::to_string(*id) + " twice");
    std::optional<std::string> bytes = bytes_of_spelling(spelled);
    token.is_byte_string = bytes.has_value();
    token.bytes = bytes ? *std::move(bytes) : std::string(spelled);
    token.in_vocabulary = true;
  }
  for (int byte = 0; byte < kNumBytes; ++byte)
    if (!vocabulary.contains(spelling_of_byte(static_cast<unsigned char>(byte))))
      return model.wrong("vocab", "a token for each of the 256 bytes",
                         "none for byte " + std::to_string(byte));
  return {};
}

/// The two halves of a merge, given as a pair or as "left right".
std::optional<std::pair<std::string_view, std::string_view>> halves_of(const json::value& rule) {
  const auto view = [](const json::string& text) {
    return std::string_view(text.data(), text.size());
  };
  if (const json::array* pair = rule.if_array()) {
    if (pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_string())
      return std::nullopt;
    return std::pair{view((*pair)[0].get_string()), view((*pair)[1].get_string())};
  }
  if (!rule.is_string()) return std::nullopt;
  const std::string_view text = view(rule.get_string());
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
    return std::nullopt;
  return std::pair{text.substr(0, space), text.substr(space + 1)};
}

Result<void> read_merges(const Fields& model, const json::object& vocabulary,
                         const json::array& merges, TokenizerSpec& spec) {
  const auto id_of = [&](std::string_view spelled) -> int32_t {
    const json::value* value = vocabulary.if_contains(spelled);
    return value == nullptr ? -1 : static_cast<int32_t>(value->get_int64());
  };
  spec.merges.reserve(merges.size());
  for (const json::value& rule : merges) {
    const auto halves = halves_of(rule);
    if (!halves)
      return model.wrong("merges", "pairs of tokens or \"left right\"", json::serialize(rule));
    const MergeRule merge{.left = id_of(halves->first),
                          .right = id_of(halves->second),
                          .merged = id_of(std::string(halves->first).append(halves->second))};
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0)
      return model.wrong("merges", "tokens of the vocabulary, and their join",
                         json::serialize(rule));
    spec.merges.push_back(merge);
  }
  return {};
}

/// Options that would change ids if they were set.
Result<void> refuse_bpe_options(const Fields& model) {
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json::value* value = model.find(key);
    const bool is_unset =
        value == nullptr || value->is_null() || (value->is_string() && value->get_string().empty());
    if (!is_unset) return model.unsupported(key, json::serialize(*value));
  }
  for (const std::string_view key : {"dropout", "unk_token"}) {
    const json::value* value = model.find(key);
    if (value != nullptr && !value->is_null())
      return model.unsupported(key, json::serialize(*value));
  }
  const auto byte_fallback = model.boolean("byte_fallback", false);
  if (!byte_fallback) return fail(byte_fallback.error());
  if (*byte_fallback) return model.unsupported("byte_fallback", "true");
  const auto fuse_unk = model.boolean("fuse_unk", false);  // no effect without an unk_token
  if (!fuse_unk) return fail(fuse_unk.error());
  return {};
}

/// An added token may repeat a base token under the same id, and nothing else.
bool fits_base(const AddedToken& token, const json::object& vocabulary, const TokenizerSpec& spec) {
  const auto slot = static_cast<size_t>(token.id);
  const bool is_id_taken = slot < spec.base.size() && spec.base[slot].in_vocabulary;
  const json::value* same_text = vocabulary.if_contains(token.content);
  if (same_text == nullptr) return !is_id_taken;
  return same_text->get_int64() == token.id;
}

Result<AddedToken> read_added_token(const Fields& fields) {
  const auto known =
      fields.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  if (!known) return fail(known.error());
  const json::value* id_value = fields.find("id");
  const auto id = id_value != nullptr ? token_id_of(*id_value) : std::nullopt;
  if (!id) return fields.wrong("id", "an id from 0 to 4194303", "something else");
  const auto content = fields.string("content");
  if (!content) return fail(content.error());
  if (content->empty() || content->size() > kMaxAddedBytes)
    return fields.wrong("content", "1 to 1024 bytes", std::to_string(content->size()) + " bytes");
  AddedToken token{.id = *id, .content = std::string(*content)};
  bool single_word = false;
  for (const auto& [key, target] : {std::pair<std::string_view, bool*>{"single_word", &single_word},
                                    {"lstrip", &token.lstrip},
                                    {"rstrip", &token.rstrip},
                                    {"normalized", &token.normalized},
                                    {"special", &token.special}}) {
    const auto flag = fields.boolean(key);
    if (!flag) return fail(flag.error());
    *target = *flag;
  }
  if (single_word) return fields.unsupported("single_word", "true");
  return token;
}

}  // namespace

Result<void> read_bpe_model(const Fields& model, TokenizerSpec& spec) {
  const auto known =
      model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (!known) return known;
  const auto type = model.string("type");
  if (!type) return fail(type.error());
  if (*type != "BPE") return model.unsupported("type", *type);
  const auto options = refuse_bpe_options(model);
  if (!options) return options;
  const auto ignore_merges = model.boolean("ignore_merges", false);
  if (!ignore_merges) return fail(ignore_merges.error());
  spec.ignore_merges = *ignore_merges;

  const json::value* vocabulary = model.find("vocab");
  if (vocabulary == nullptr || !vocabulary->is_object())
    return model.wrong("vocab", "object", "something else");
  const json::value* merges = model.find("merges");
  if (merges == nullptr || !merges->is_array())
    return model.wrong("merges", "array", "something else");
  const auto read = read_vocabulary(model, vocabulary->get_object(), spec);
  if (!read) return read;
  return read_merges(model, vocabulary->get_object(), merges->get_array(), spec);
}

Result<void> read_added_tokens(const Fields& root, TokenizerSpec& spec) {
  if (root.find("added_tokens") == nullptr) return {};
  const json::object& vocabulary = root.find("model")->get_object().at("vocab").get_object();
  std::unordered_set<std::string> texts;
  std::unordered_set<int32_t> ids;
  return root.for_each("added_tokens", [&](const Fields& fields) -> Result<void> {
    auto token = read_added_token(fields);
    if (!token) return fail(token.error());
    if (!fits_base(*token, vocabulary, spec))
      return fields.wrong("id", "the id and the text of one token",
                          std::to_string(token->id) + " for " + token->content);
    if (!texts.insert(token->content).second || !ids.insert(token->id).second)
      return fields.wrong("content", "distinct added tokens", token->content);
    spec.added.push_back(*std::move(token));
    return {};
  });
}

}  // namespace tessera::text
