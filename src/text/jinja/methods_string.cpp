// SPDX-License-Identifier: Apache-2.0
// Methods of strings.
#include <algorithm>
#include <array>

#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

using Transform = std::string (*)(std::string_view);
using Strip = std::string_view (*)(std::string_view, std::optional<std::string_view>);
using Split = std::vector<std::string> (*)(std::string_view, std::optional<std::string_view>,
                                           int64_t);

std::string text_argument(Run& run, ArgumentReader& reader, std::string_view name) {
  const Value value = reader.required(name);
  if (!value.is_string()) run.fail_type("expected a string, not " + std::string(value.type_name()));
  return run.ok() ? value.text() : std::string();
}

/// A string, or nothing for None and for an absent argument.
std::optional<std::string> optional_text(Run& run, ArgumentReader& reader, std::string_view name) {
  const Value value = reader.optional(name, Value::none());
  if (value.is_none()) return std::nullopt;
  if (!value.is_string()) run.fail_type("expected a string, not " + std::string(value.type_name()));
  return run.ok() ? std::optional(value.text()) : std::nullopt;
}

template <Transform kTransform>
Value transformed(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader(run, "method", arguments).done();
  return make_string(run, kTransform(self.text()));
}

template <Strip kStrip>
Value stripped(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, "strip", arguments);
  const auto chars = optional_text(run, reader, "chars");
  reader.done();
  if (!run.spend(chars ? chars->size() : 1)) return {};
  return make_string(run, std::string(kStrip(self.text(), chars)));
}

/// Pays for the parts of a split before they exist. `may_split` accepts every byte that can.
bool afford_parts(Run& run, std::string_view text, bool (*may_split)(unsigned char)) {
  const auto marks = std::count_if(text.begin(), text.end(), [&](char byte) {
    return may_split(static_cast<unsigned char>(byte));
  });
  return run.allocate(static_cast<uint64_t>(marks + 1) * sizeof(std::string));
}

/// Control characters, the space and the lead bytes of wider white space.
bool may_be_space(unsigned char byte) { return byte <= ' ' || byte >= 0xC2; }

Value text_list(Run& run, std::vector<std::string> parts) {
  List items;
  for (std::string& part : parts) {
    if (!run.ok()) return {};
    items.push_back(make_string(run, std::move(part)));
  }
  return make_list(run, std::move(items));
}

template <Split kSplit>
Value split(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, "split", arguments);
  const auto separator = optional_text(run, reader, "sep");
  const int64_t limit = reader.integer("maxsplit", -1);
  reader.done();
  if (separator && separator->empty()) run.fail_type("empty separator");
  if (!run.ok()) return {};
  const bool affordable =
      separator ? run.allocate(static_cast<uint64_t>(strings::count(self.text(), *separator)) *
                               sizeof(std::string))
                : afford_parts(run, self.text(), may_be_space);
  return affordable ? text_list(run, kSplit(self.text(), separator, limit)) : Value{};
}

Value split_lines(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, "splitlines", arguments);
  const bool keep_ends = reader.flag("keepends");
  reader.done();
  if (!afford_parts(run, self.text(), may_be_space)) return {};
  return text_list(run, strings::split_lines(self.text(), keep_ends));
}

/// self[start:end] when these are given.
std::string window(Run& run, const Value& self, ArgumentReader& reader) {
  if (!reader.has("start")) return self.text();
  const Value start = reader.optional("start", Value::none());
  const Value end = reader.optional("end", Value::none());
  const Value part = slice(run, self, start, end, Value::none());
  return part.is_string() ? part.text() : std::string();
}

bool has_affix(const std::string& text, const std::string& affix, bool at_start) {
  if (affix.size() > text.size()) return false;
  return text.compare(at_start ? 0 : text.size() - affix.size(), affix.size(), affix) == 0;
}

template <bool kAtStart>
Value with_affix(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, kAtStart ? "startswith" : "endswith", arguments);
  const Value affix = reader.required("prefix");
  if (reader.has("start")) run.fail_unsupported("startswith() or endswith() with a position");
  reader.done();
  const List choices = affix.is(Kind::kTuple) ? affix.items() : List{affix};
  for (const Value& choice : choices) {
    if (!choice.is_string()) run.fail_type("expected a string or a tuple of strings");
    if (!run.ok() || !run.spend_on(choice.text())) return {};
    if (has_affix(self.text(), choice.text(), kAtStart)) return Value::boolean(true);
  }
  return Value::boolean(false);
}

template <bool kAtStart>
Value without_affix(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, kAtStart ? "removeprefix" : "removesuffix", arguments);
  const std::string affix = text_argument(run, reader, "prefix");
  reader.done();
  const std::string& text = self.text();
  if (!run.ok() || !has_affix(text, affix, kAtStart)) return self;
  const size_t rest = text.size() - affix.size();
  return make_string(run, text.substr(kAtStart ? affix.size() : 0, rest));
}

Value replace(Run& run, const Value& self, const Arguments& arguments) {
  if (!arguments.keywords.empty()) run.fail_type("replace() takes no keyword arguments");
  ArgumentReader reader(run, "replace", arguments);
  const std::string old = text_argument(run, reader, "old");
  const std::string fresh = text_argument(run, reader, "new");
  const int64_t count = reader.integer("count", -1);
  reader.done();
  return run.ok() ? replace_text(run, self.text(), old, fresh, count) : Value{};
}

Value join(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, "join", arguments);
  const Value parts = reader.required("iterable");
  reader.done();
  if (parts.is_undefined() && run.ok()) return make_string(run, {});
  std::string out;
  bool first = true;
  for (const Value& part : iterate(run, parts)) {
    if (!part.is_string()) run.fail_type("join() needs strings");
    if (!run.ok() || !run.allocate(part.text().size() + self.text().size())) return {};
    if (!first) out += self.text();
    first = false;
    out += part.text();
  }
  return Value::literal(std::move(out));
}

/// kMissing is -1 for find and rfind; index and rindex raise instead.
template <bool kFromRight, bool kRaises>
Value find(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, "find", arguments);
  const std::string wanted = text_argument(run, reader, "sub");
  if (reader.has("start")) run.fail_unsupported("find() with a position");
  reader.done();
  const std::string& text = self.text();
  if (!run.ok()) return {};
  const size_t hit = kFromRight ? strings::rfind(text, wanted) : strings::find(text, wanted);
  if (hit == std::string::npos) {
    if (kRaises) run.fail_type("substring not found");
    return Value::integer(-1);
  }
  return Value::integer(
      static_cast<int64_t>(strings::length(std::string_view(text).substr(0, hit))));
}

Value count(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, "count", arguments);
  const std::string wanted = text_argument(run, reader, "sub");
  const std::string text = window(run, self, reader);
  reader.done();
  return run.ok() ? Value::integer(strings::count(text, wanted)) : Value{};
}

template <bool (*kTest)(uint32_t)>
Value all_characters(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader(run, "method", arguments).done();
  return Value::boolean(strings::all_of(self.text(), kTest));
}

bool is_alphanumeric(uint32_t code_point) {
  return strings::is_alpha(code_point) || strings::is_digit(code_point);
}

template <bool kUpper>
Value only_case(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader(run, "method", arguments).done();
  return Value::boolean(strings::has_only_case(self.text(), kUpper));
}

template <bool kFromRight>
Value partition(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, "partition", arguments);
  const std::string separator = text_argument(run, reader, "sep");
  reader.done();
  if (separator.empty()) run.fail_type("empty separator");
  if (!run.ok()) return {};
  const std::string& text = self.text();
  const size_t hit = kFromRight ? strings::rfind(text, separator) : strings::find(text, separator);
  const Value empty = Value::literal("");
  if (hit == std::string::npos)
    return kFromRight ? make_tuple(run, {empty, empty, self})
                      : make_tuple(run, {self, empty, empty});
  return make_tuple(run, {make_string(run, text.substr(0, hit)), make_string(run, separator),
                          make_string(run, text.substr(hit + separator.size()))});
}

/// Characters that are missing to `width`, any integer of a template.
int64_t missing_to(Run& run, const Value& self, int64_t width) {
  return std::max<int64_t>(width, 0) - length_of(run, self);
}

enum class Align { kLeft, kRight };

template <Align kAlign>
Value padded(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, "just", arguments);
  const int64_t width = reader.required("width").as_integer().value_or(-1);
  const Value fill = reader.optional("fillchar", Value::literal(" "));
  reader.done();
  if (!fill.is_string() || strings::length(fill.text()) != 1)
    run.fail_type("expected one character");
  if (!run.ok()) return {};
  const Value pad = repeat_text(run, fill.text(), missing_to(run, self, width));
  return kAlign == Align::kLeft ? arithmetic(run, "+", self, pad) : arithmetic(run, "+", pad, self);
}

Value zero_filled(Run& run, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(run, "zfill", arguments);
  const int64_t width = reader.integer("width", 0);
  reader.done();
  const Value pad = repeat_text(run, "0", missing_to(run, self, width));
  if (!run.ok()) return {};
  const std::string& text = self.text();
  const bool has_sign = !text.empty() && (text.front() == '+' || text.front() == '-');
  const size_t sign = has_sign ? 1 : 0;
  return make_string(run, text.substr(0, sign) + pad.text() + text.substr(sign));
}

constexpr std::array kMethods = {
    NamedBuiltin{"upper", transformed<strings::upper>},
    NamedBuiltin{"lower", transformed<strings::lower>},
    NamedBuiltin{"title", transformed<strings::title>},
    NamedBuiltin{"capitalize", transformed<strings::capitalize>},
    NamedBuiltin{"strip", stripped<strings::strip>},
    NamedBuiltin{"lstrip", stripped<strings::strip_left>},
    NamedBuiltin{"rstrip", stripped<strings::strip_right>},
    NamedBuiltin{"split", split<strings::split>},
    NamedBuiltin{"rsplit", split<strings::rsplit>},
    NamedBuiltin{"splitlines", split_lines},
    NamedBuiltin{"startswith", with_affix<true>},
    NamedBuiltin{"endswith", with_affix<false>},
    NamedBuiltin{"removeprefix", without_affix<true>},
    NamedBuiltin{"removesuffix", without_affix<false>},
    NamedBuiltin{"replace", replace},
    NamedBuiltin{"join", join},
    NamedBuiltin{"find", find<false, false>},
    NamedBuiltin{"rfind", find<true, false>},
    NamedBuiltin{"index", find<false, true>},
    NamedBuiltin{"rindex", find<true, true>},
    NamedBuiltin{"count", count},
    NamedBuiltin{"isdigit", all_characters<strings::is_digit>},
    NamedBuiltin{"isalpha", all_characters<strings::is_alpha>},
    NamedBuiltin{"isalnum", all_characters<is_alphanumeric>},
    NamedBuiltin{"isspace", all_characters<strings::is_space>},
    NamedBuiltin{"isupper", only_case<true>},
    NamedBuiltin{"islower", only_case<false>},
    NamedBuiltin{"partition", partition<false>},
    NamedBuiltin{"rpartition", partition<true>},
    NamedBuiltin{"ljust", padded<Align::kLeft>},
    NamedBuiltin{"rjust", padded<Align::kRight>},
    NamedBuiltin{"zfill", zero_filled},
};

}  // namespace

std::span<const NamedBuiltin> string_methods() { return kMethods; }

}  // namespace tessera::jinja
