// SPDX-License-Identifier: Apache-2.0
// The public tokenizer: repair, added tokens, NFC, split pattern, merges; and ids back to bytes.
#include <tessera/tokenizer.h>
#include <algorithm>
#include "io/mapped_file.h"
#include "text/string_map.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_bpe.h"
#include "text/tokenizer_regex.h"
#include "text/unicode.h"

namespace tessera {
namespace {

using namespace text;

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr std::string_view kShield = "\xEF\xB7\x90";  // U+FDD0: no text has it, no token spells it

struct TokenEntry {
  std::string bytes{};
  bool special = false;
};

/// An added token decodes by the same rule as a base token: the byte alphabet when all of its
/// characters belong to it.
std::string decoded_bytes(const std::string& content) {
  return bytes_of_spelling(content).value_or(content);
}

std::string without_shields(std::string_view text) {
  std::string plain;
  for (size_t begin = 0; begin < text.size();) {
    const size_t mark = std::min(text.find(kShield, begin), text.size());
    plain.append(text.substr(begin, mark - begin));
    begin = mark + kShield.size();
  }
  return plain;
}

bool starts_code_point(char unit) { return (static_cast<unsigned char>(unit) & 0xC0U) != 0x80U; }

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerSpec spec);
  Result<void> compile_patterns(const std::vector<std::string>& patterns, const std::string& where);

  /// What `encode` finds in a text besides merges.
  struct Mode {
    bool parse_special = true;
    bool shielded = false;  // marks are taken out of plain stretches
  };
  void encode_any(std::string_view text, Mode mode, std::vector<int32_t>& ids) const;
  void encode_raw(std::string_view text, Mode mode, std::vector<int32_t>& ids) const;
  void encode_normalized(std::string_view text, Mode mode, std::vector<int32_t>& ids) const;
  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;

  bool use_nfc = false;
  bool add_prefix_space = false;
  std::vector<TokenEntry> tokens{};
  StringMap<int32_t> ids_by_text{};
  AddedTokenMatcher raw_added{};
  AddedTokenMatcher normalized_added{};
  std::vector<std::string> specials{};  // as written in the file
  std::vector<SplitRegex> splits{};
  BpeModel model;
};

Tokenizer::Impl::Impl(TokenizerSpec spec)
    : use_nfc(spec.use_nfc), add_prefix_space(spec.add_prefix_space), model(spec) {
  int32_t last_id = static_cast<int32_t>(spec.base.size()) - 1;
  for (const AddedToken& token : spec.added) last_id = std::max(last_id, token.id);
  tokens.resize(static_cast<size_t>(last_id) + 1);
  for (const AddedToken& token : spec.added) {
    const bool is_changed = token.normalized && use_nfc;
    const std::string sought = is_changed ? to_nfc(token.content) : token.content;
    (token.normalized ? normalized_added : raw_added).add(sought, token);
    ids_by_text.emplace(token.content, token.id);
    if (token.special) specials.push_back(token.content);
    tokens[static_cast<size_t>(token.id)] = {decoded_bytes(sought), token.special};
  }
  for (size_t id = 0; id < spec.base.size(); ++id) {
    if (!spec.base[id].in_vocabulary) continue;
    tokens[id].bytes = std::move(spec.base[id].bytes);
    ids_by_text.emplace(tokens[id].bytes, static_cast<int32_t>(id));
  }
}

Result<void> Tokenizer::Impl::compile_patterns(const std::vector<std::string>& patterns,
                                               const std::string& where) {
  for (const std::string& pattern : patterns) {
    auto regex = SplitRegex::compile(pattern, where + ".pre_tokenizer");
    if (!regex) return fail(regex.error());
    splits.push_back(*std::move(regex));
  }
  return {};
}

void Tokenizer::Impl::encode_raw(std::string_view text, Mode mode,
                                 std::vector<int32_t>& ids) const {
  std::vector<AddedPiece> pieces;
  raw_added.split(text, mode.parse_special, pieces);
  for (const AddedPiece& piece : pieces) {
    if (piece.id >= 0) {
      ids.push_back(piece.id);
    } else if (use_nfc && !is_surely_nfc(piece.text)) {
      encode_normalized(to_nfc(piece.text), mode, ids);
    } else {
      encode_normalized(piece.text, mode, ids);
    }
  }
}

void Tokenizer::Impl::encode_normalized(std::string_view text, Mode mode,
                                        std::vector<int32_t>& ids) const {
  std::vector<AddedPiece> pieces;
  normalized_added.split(text, mode.parse_special, pieces);
  for (const AddedPiece& piece : pieces) {
    if (piece.id >= 0)
      ids.push_back(piece.id);
    else if (mode.shielded && piece.text.find(kShield) != std::string_view::npos)
      encode_plain(without_shields(piece.text), ids);
    else
      encode_plain(piece.text, ids);
  }
}

void Tokenizer::Impl::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  std::vector<std::string_view> words = {text};
  std::vector<std::string_view> finer;
  for (const SplitRegex& split : splits) {
    finer.clear();
    for (const std::string_view word : words) split.split(word, finer);
    words.swap(finer);
  }
  for (const std::string_view word : words) {
    if (add_prefix_space && word[0] != ' ')
      model.encode_word(' ' + std::string(word), ids);
    else
      model.encode_word(word, ids);
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& model_dir) {
  const std::string path = model_dir + "/tokenizer.json";
  const auto json = read_text_file(path, kMaxFileBytes);
  if (!json) return fail(json.error());
  return parse(*json, path);
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, const std::string& where) {
  if (json.size() > kMaxFileBytes)
    return fail({.code = Errc::kCorruptFile,
                 .what = "tokenizer too large",
                 .where = where,
                 .expected = "at most " + std::to_string(kMaxFileBytes) + " bytes",
                 .found = std::to_string(json.size())});
  auto spec = parse_tokenizer_spec(json, where);
  if (!spec) return fail(spec.error());
  const std::vector<std::string> patterns = std::move(spec->split_patterns);
  auto impl = std::make_unique<Impl>(*std::move(spec));
  const auto compiled = impl->compile_patterns(patterns, where);
  if (!compiled) return fail(compiled.error());
  return Tokenizer(std::move(impl));
}

void Tokenizer::Impl::encode_any(std::string_view text, Mode mode,
                                 std::vector<int32_t>& ids) const {
  if (is_valid_utf8(text)) return encode_raw(text, mode, ids);
  std::string repaired;
  if (append_complete_utf8(text, repaired) < text.size()) repaired.append(kReplacement);
  encode_raw(repaired, mode, ids);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<int32_t> ids;
  impl_->encode_any(text, {.parse_special = parse_special}, ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode_rendered(std::string_view text) const {
  std::vector<int32_t> ids;
  impl_->encode_any(text, {.shielded = true}, ids);
  return ids;
}

std::string Tokenizer::shield(std::string_view text) const {
  std::vector<bool> inside(text.size() + 1, false);  // boundaries within a special token
  for (const std::string& special : impl_->specials)
    for (size_t at = text.find(special); at != std::string_view::npos;
         at = text.find(special, at + 1))
      std::fill_n(inside.begin() + static_cast<ptrdiff_t>(at + 1), special.size() - 1, true);
  std::string shielded;
  for (size_t at = 0; at < text.size();) {
    if (inside[at] && starts_code_point(text[at])) shielded += kShield;
    const bool forged = text.substr(at).starts_with(kShield);
    shielded += forged ? kReplacement : text.substr(at, 1);
    at += forged ? kShield.size() : 1;
  }
  return shielded;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->tokens[static_cast<size_t>(id)].bytes;
}

int32_t Tokenizer::token_id(std::string_view text) const {
  const auto found = impl_->ids_by_text.find(text);
  return found == impl_->ids_by_text.end() ? -1 : found->second;
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->tokens[static_cast<size_t>(id)].special;
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->tokens.size()); }

/// FNV-1a over every token and its length.
uint64_t Tokenizer::fingerprint() const {
  constexpr uint64_t kOffset = 0xCBF29CE484222325U, kPrime = 0x100000001B3U;
  uint64_t hash = kOffset;
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * kPrime; };
  for (const TokenEntry& token : impl_->tokens) {
    mix(token.bytes.size());
    for (const char byte : token.bytes) mix(static_cast<unsigned char>(byte));
  }
  return hash;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Detokenizer stream(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.flush();
}

}  // namespace tessera
