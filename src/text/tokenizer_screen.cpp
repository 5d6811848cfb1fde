// SPDX-License-Identifier: Apache-2.0
// Reads a split pattern and refuses, by name, what Oniguruma and PCRE2 understand differently.
#include <algorithm>
#include <array>
#include "text/tokenizer_regex.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kMaxGroupDepth = 32;
constexpr size_t kMaxQuoted = 24;

constexpr std::array<std::string_view, 7> kGroupHeads = {"?:",  "?i:", "?=", "?!",
                                                         "?<=", "?<!", "?>"};
constexpr std::string_view kCaselessHead = "?i:";
/// Letter pairs that full case folding maps to or from one character (sharp s, ligatures): the
/// reference matches both ways, PCRE2 does not.
constexpr std::array<std::string_view, 5> kFoldingPairs = {"ss", "ff", "fi", "fl", "st"};
constexpr std::array<std::string_view, 36> kCategories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd",
    "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm",
    "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn"};

template <size_t kSize>
bool contains(const std::array<std::string_view, kSize>& list, std::string_view text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

bool is_ascii_punctuation(char character) {
  return std::string_view("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~").find(character) !=
         std::string_view::npos;
}

char to_lower(char character) {
  return character >= 'A' && character <= 'Z' ? static_cast<char>(character - 'A' + 'a')
                                              : character;
}

class Screen {
 public:
  Screen(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}
  Result<void> run();

 private:
  struct Group {
    bool is_caseless = false;
    bool has_unbounded = false;
  };
  struct Atom {
    bool is_literal = false;
    char32_t code_point = 0;
  };

  char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool done() const { return at_ >= pattern_.size(); }
  bool is_caseless() const {
    return std::any_of(groups_.begin(), groups_.end(), [](Group g) { return g.is_caseless; });
  }

  tl::unexpected<Error> refuse(std::string_view what) const;
  Result<void> element();
  Result<void> open_group();
  Result<void> close_group();
  Result<void> char_class();
  Result<Atom> class_atom();
  Result<Atom> escape();
  Result<Atom> property();
  Result<Atom> literal();
  Result<void> quantifier(bool repeats_unbounded);
  Result<bool> interval();

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  char previous_ = '\0';  // last literal inside a caseless group
  std::vector<Group> groups_{Group{}};
};

tl::unexpected<Error> Screen::refuse(std::string_view what) const {
  const std::string_view rest = at_ < pattern_.size() ? pattern_.substr(at_, kMaxQuoted) : "";
  return fail({.code = Errc::kUnsupported,
               .what = "split pattern not implemented: " + std::string(what),
               .where = where_ + ", byte " + std::to_string(at_),
               .found = std::string(rest)});
}

Result<void> Screen::run() {
  if (pattern_.empty() || pattern_.size() > kMaxPatternBytes)
    return refuse("length must be 1 to 65536 bytes");
  if (!is_valid_utf8(pattern_)) return refuse("invalid UTF-8");
  while (!done()) {
    const auto read = element();
    if (!read) return read;
  }
  if (groups_.size() != 1) return refuse("unclosed group");
  return {};
}

Result<void> Screen::element() {
  switch (peek()) {
    case '(': return open_group();
    case ')': return close_group();
    case '|':
      ++at_;
      previous_ = '\0';
      return {};
    case '[': {
      const auto read = char_class();
      if (!read) return read;
      return quantifier(false);
    }
    case '.':
      if (is_caseless()) return refuse("anything but letters in a caseless group");
      ++at_;
      return quantifier(false);
    case '^':
    case '$': return refuse("line anchors");
    case '*':
    case '+':
    case '?':
    case '{': return refuse("a quantifier without an operand");
    default: {
      const auto atom = peek() == '\\' ? escape() : literal();
      if (!atom) return fail(atom.error());
      return quantifier(false);
    }
  }
}

Result<void> Screen::open_group() {
  ++at_;
  if (groups_.size() > kMaxGroupDepth) return refuse("groups nested too deep");
  if (peek() == '*') return refuse("a verb");
  Group group;
  if (peek() == '?') {
    const auto head = std::find_if(kGroupHeads.begin(), kGroupHeads.end(), [&](auto candidate) {
      return pattern_.substr(at_, candidate.size()) == candidate;
    });
    if (head == kGroupHeads.end()) return refuse("this kind of group");
    group.is_caseless = *head == kCaselessHead;
    at_ += head->size();
  }
  previous_ = '\0';
  groups_.push_back(group);
  return {};
}

Result<void> Screen::close_group() {
  if (groups_.size() == 1) return refuse("unmatched )");
  ++at_;
  const Group closed = groups_.back();
  groups_.pop_back();
  previous_ = '\0';
  if (closed.has_unbounded) groups_.back().has_unbounded = true;
  return quantifier(closed.has_unbounded);
}

/// Reads the quantifier after an operand, if there is one. Repeating something that itself repeats
/// without bound can take exponential time.
Result<void> Screen::quantifier(bool repeats_unbounded) {
  const char sign = peek();
  const bool is_interval = sign == '{';
  if (sign != '*' && sign != '+' && sign != '?' && !is_interval) return {};
  previous_ = '\0';
  bool is_unbounded = sign == '*' || sign == '+';
  if (is_interval) {
    const auto open_ended = interval();
    if (!open_ended) return fail(open_ended.error());
    is_unbounded = *open_ended;
    if (peek() == '?' || peek() == '+') return refuse("a suffix after {}");
  } else {
    ++at_;
    if (peek() == '?' || peek() == '+') ++at_;
  }
  if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{')
    return refuse("a quantifier of a quantifier");
  if (repeats_unbounded && sign != '?') return refuse("nested repetition");
  if (is_unbounded) groups_.back().has_unbounded = true;
  return {};
}

/// "{n}", "{n,}" or "{n,m}"; true when it has no upper bound.
Result<bool> Screen::interval() {
  const auto digits = [this] {
    const size_t start = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ - start;
  };
  ++at_;
  if (digits() == 0) return refuse("{ without a number");
  bool is_open_ended = false;
  if (peek() == ',') {
    ++at_;
    is_open_ended = digits() == 0;
  }
  if (peek() != '}') return refuse("this form of {}");
  ++at_;
  return is_open_ended;
}

Result<void> Screen::char_class() {
  if (is_caseless()) return refuse("anything but letters in a caseless group");
  ++at_;
  if (peek() == '^') ++at_;
  if (peek() == ']') return refuse("] first in a class");
  while (peek() != ']') {
    if (done()) return refuse("unclosed class");
    const auto first = class_atom();
    if (!first) return fail(first.error());
    const bool is_range = peek() == '-' && peek(1) != ']';
    if (!is_range) continue;
    ++at_;
    const auto last = class_atom();
    if (!last) return fail(last.error());
    if (!first->is_literal || !last->is_literal) return refuse("a range of classes");
    if (range_needs_stand_ins(first->code_point, last->code_point))
      return refuse("a range over characters newer than Unicode 14");
  }
  ++at_;
  return {};
}

Result<Screen::Atom> Screen::class_atom() {
  if (peek() == '[') return refuse("a class inside a class");
  if (peek() == '&' && peek(1) == '&') return refuse("intersection of classes");
  return peek() == '\\' ? escape() : literal();
}

Result<Screen::Atom> Screen::literal() {
  if (done()) return refuse("unexpected end");
  const Utf8Step step = decode_utf8(pattern_.substr(at_));
  if (range_needs_stand_ins(step.code_point, step.code_point))
    return refuse("a character newer than Unicode 14");
  if (is_caseless()) {
    if (step.code_point >= 0x80) return refuse("anything but ASCII in a caseless group");
    const char current = to_lower(pattern_[at_]);
    const std::array<char, 2> pair = {previous_, current};
    if (contains(kFoldingPairs, std::string_view(pair.data(), pair.size())))
      return refuse("letters with a ligature in a caseless group");
    previous_ = current;
  }
  at_ += static_cast<size_t>(step.length);
  return Atom{.is_literal = true, .code_point = step.code_point};
}

Result<Screen::Atom> Screen::escape() {
  if (is_caseless()) return refuse("anything but letters in a caseless group");
  const char kind = peek(1);
  if (kind == 'p' || kind == 'P') return property();
  if (std::string_view("sSdD").find(kind) != std::string_view::npos && kind != '\0') {
    at_ += 2;
    return Atom{};
  }
  const std::string_view controls = "rnt";
  if (kind == '\0' ||
      (controls.find(kind) == std::string_view::npos && !is_ascii_punctuation(kind)))
    return refuse("this escape");
  at_ += 2;
  if (is_ascii_punctuation(kind))
    return Atom{.is_literal = true, .code_point = static_cast<char32_t>(kind)};
  return Atom{.is_literal = true, .code_point = kind == 'r' ? U'\r' : kind == 'n' ? U'\n' : U'\t'};
}

Result<Screen::Atom> Screen::property() {
  const size_t close = pattern_.find('}', at_);
  if (peek(2) != '{' || close == std::string_view::npos) return refuse("this property");
  const size_t name_at = at_ + 3;
  if (!contains(kCategories, pattern_.substr(name_at, close - name_at)))
    return refuse("a property that is no general category");
  at_ = close + 1;
  return Atom{};
}

}  // namespace

Result<void> screen_pattern(std::string_view pattern, const std::string& where) {
  return Screen(pattern, where).run();
}

}  // namespace tessera::text
