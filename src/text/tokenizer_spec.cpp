// SPDX-License-Identifier: Apache-2.0
// tokenizer.json to TokenizerSpec: the steps around the model. Every key is known or refused.
#include "text/tokenizer_spec.h"

#include <boost/json.hpp>
#include "io/json_reader.h"
#include "text/tokenizer_fields.h"

namespace tessera::text {
namespace {

namespace json = boost::json;

/// The pattern that ByteLevel applies itself when `use_regex` is set.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Result<void> require_null(const Fields& root, std::string_view key) {
  const json::value* value = root.find(key);
  if (value == nullptr || value->is_null()) return {};
  return root.unsupported(key, json::serialize(*value));
}

Result<void> read_normalizer(const Fields& step, TokenizerSpec& spec, bool may_nest) {
  const auto type = step.string("type");
  if (!type) return fail(type.error());
  if (*type == "NFC") {
    spec.use_nfc = true;
    return step.only({"type"});
  }
  if (*type != "Sequence" || !may_nest) return step.unsupported("type", *type);
  const auto known = step.only({"type", "normalizers"});
  if (!known) return known;
  return step.for_each("normalizers",
                       [&](const Fields& inner) { return read_normalizer(inner, spec, false); });
}

/// ByteLevel comes last and once; the other steps cut the text for it.
struct PreTokenizerState {
  bool has_byte_level = false;
};

Result<void> read_split(const Fields& step, TokenizerSpec& spec) {
  const auto known = step.only({"type", "pattern", "behavior", "invert"});
  if (!known) return known;
  const auto behavior = step.string("behavior");
  if (!behavior) return fail(behavior.error());
  if (*behavior != "Isolated") return step.unsupported("behavior", *behavior);
  const auto invert = step.boolean("invert");  // no effect on isolated pieces
  if (!invert) return fail(invert.error());
  const auto pattern = step.object("pattern");
  if (!pattern) return fail(pattern.error());
  const auto only_regex = pattern->only({"Regex"});
  if (!only_regex) return only_regex;
  const auto regex = pattern->string("Regex");
  if (!regex) return fail(regex.error());
  spec.split_patterns.emplace_back(*regex);
  return {};
}

Result<void> read_byte_level(const Fields& step, TokenizerSpec& spec, PreTokenizerState& state) {
  const auto known = step.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (!known) return known;
  const auto prefix = step.boolean("add_prefix_space");
  if (!prefix) return fail(prefix.error());
  const auto use_regex = step.boolean("use_regex", true);
  if (!use_regex) return fail(use_regex.error());
  state.has_byte_level = true;
  spec.add_prefix_space = *prefix;
  if (*use_regex) spec.split_patterns.emplace_back(kByteLevelPattern);
  return {};
}

Result<void> read_pre_tokenizer(const Fields& step, TokenizerSpec& spec, PreTokenizerState& state,
                                bool may_nest) {
  const auto type = step.string("type");
  if (!type) return fail(type.error());
  if (state.has_byte_level)
    return step.unsupported("type", std::string(*type) + " after ByteLevel");
  if (*type == "Split") return read_split(step, spec);
  if (*type == "ByteLevel") return read_byte_level(step, spec, state);
  if (*type != "Sequence" || !may_nest) return step.unsupported("type", *type);
  const auto known = step.only({"type", "pretokenizers"});
  if (!known) return known;
  return step.for_each("pretokenizers", [&](const Fields& inner) {
    return read_pre_tokenizer(inner, spec, state, false);
  });
}

/// ByteLevel as a post-processor only moves offsets, which this library does not report.
Result<void> read_post_processor(const Fields& step, bool may_nest) {
  const auto type = step.string("type");
  if (!type) return fail(type.error());
  if (*type == "ByteLevel")
    return step.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (*type != "Sequence" || !may_nest) return step.unsupported("type", *type);
  const auto known = step.only({"type", "processors"});
  if (!known) return known;
  return step.for_each("processors",
                       [](const Fields& inner) { return read_post_processor(inner, false); });
}

Result<void> read_decoder(const Fields& step) {
  const auto type = step.string("type");
  if (!type) return fail(type.error());
  if (*type != "ByteLevel") return step.unsupported("type", *type);
  return step.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
}

Result<void> read_steps(const Fields& root, TokenizerSpec& spec) {
  const json::value* normalizer = root.find("normalizer");
  if (normalizer != nullptr && !normalizer->is_null()) {
    const auto done = root.object("normalizer").and_then([&](const Fields& step) {
      return read_normalizer(step, spec, true);
    });
    if (!done) return done;
  }
  PreTokenizerState state;
  const auto cut = root.object("pre_tokenizer").and_then([&](const Fields& step) {
    return read_pre_tokenizer(step, spec, state, true);
  });
  if (!cut) return cut;
  if (!state.has_byte_level) return root.unsupported("pre_tokenizer", "no ByteLevel step");
  const json::value* post = root.find("post_processor");
  if (post != nullptr && !post->is_null()) {
    const auto done = root.object("post_processor").and_then([](const Fields& step) {
      return read_post_processor(step, true);
    });
    if (!done) return done;
  }
  return root.object("decoder").and_then(read_decoder);
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer_spec(std::string_view text, const std::string& where) {
  const auto document = parse_json(text, where);
  if (!document) return fail(document.error());
  const auto root = Fields::of(*document, where);
  if (!root) return fail(root.error());

  TokenizerSpec spec;
  const auto version = root->string("version");
  if (!version) return fail(version.error());
  if (*version != "1.0") return root->unsupported("version", *version);
  for (const auto& check :
       {root->only({"version", "truncation", "padding", "added_tokens", "normalizer",
                    "pre_tokenizer", "post_processor", "decoder", "model"}),
        require_null(*root, "truncation"), require_null(*root, "padding"), read_steps(*root, spec)})
    if (!check) return fail(check.error());

  const auto model = root->object("model").and_then(
      [&](const Fields& fields) { return read_bpe_model(fields, spec); });
  if (!model) return fail(model.error());
  const auto added = read_added_tokens(*root, spec);
  if (!added) return fail(added.error());
  return spec;
}

}  // namespace tessera::text
