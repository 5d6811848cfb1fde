// SPDX-License-Identifier: Apache-2.0
// Filters that make text: case, trimming, replacing, indenting, JSON.
#include <array>

#include "text/jinja/filter_tables.h"
#include "text/jinja/print.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

using Transform = std::string (*)(std::string_view);

template <Transform kTransform>
Value transformed(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "filter", arguments).done();
  return make_string(run, kTransform(to_text(run, value)));
}

/// Also `safe`. NOTE: in Jinja its result still escapes strings that are added to it later; prompts
/// are not HTML, so here it is plain text.
Value to_string(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader(run, "string", arguments).done();
  return value.is_string() ? value : make_string(run, to_text(run, value));
}

Value trim(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "trim", arguments);
  const Value chars = reader.optional("chars", Value::none());
  reader.done();
  const std::string text = to_text(run, value);
  if (chars.is_none()) return make_string(run, std::string(strings::strip(text)));
  if (!chars.is_string()) run.fail_type("trim needs a string or None");
  if (!run.ok() || !run.spend(chars.text().size())) return {};
  return make_string(run, std::string(strings::strip(text, chars.text())));
}

Value replace(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "replace", arguments);
  const std::string old = to_text(run, reader.required("old"));
  const std::string fresh = to_text(run, reader.required("new"));
  const Value count = reader.optional("count", Value::none());
  reader.done();
  if (!count.is_none() && !count.as_integer()) run.fail_type("count must be an integer");
  if (!run.ok()) return {};
  const std::string text = to_text(run, value);
  return replace_text(run, text, old, fresh, count.as_integer().value_or(-1));
}

Value indent(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "indent", arguments);
  const Value width = reader.optional("width", Value::integer(4));
  const bool first = reader.flag("first");
  const bool blank = reader.flag("blank");
  reader.done();
  if (!value.is_string()) run.fail_type("indent needs a string");
  const Value unit =
      width.is_string() ? width : repeat_text(run, " ", width.as_integer().value_or(0));
  if (!width.is_string() && !width.as_integer()) run.fail_type("indent needs a width or a text");
  if (!run.ok()) return {};
  if (!run.allocate(value.text().size() * sizeof(std::string))) return {};
  const auto lines = strings::split_lines(value.text() + "\n");
  if (!run.allocate(lines.size() * unit.text().size() + value.text().size())) return {};
  std::string out = first ? unit.text() : std::string();
  for (size_t index = 0; index < lines.size(); ++index) {
    if (index > 0) {
      out += '\n';
      if (blank || !lines[index].empty()) out += unit.text();
    }
    out += lines[index];
  }
  return make_string(run, std::move(out));
}

std::optional<JsonStyle> json_style(Run& run, ArgumentReader& reader) {
  JsonStyle style = JsonStyle::python();
  style.ascii = reader.flag("ensure_ascii");
  const Value indent_by = reader.optional("indent", Value::none());
  const Value separators = reader.optional("separators", Value::none());
  if (!indent_by.is_none()) {
    style.multiline = true;
    style.item_separator.assign(1, ',');
    const Value unit = indent_by.is_string()
                           ? indent_by
                           : repeat_text(run, " ", indent_by.as_integer().value_or(0));
    if (!indent_by.is_string() && !indent_by.as_integer())
      run.fail_type("indent must be an integer, a string or None");
    if (!run.ok()) return std::nullopt;
    style.indent = unit.text();
  }
  if (separators.is_none()) return style;
  const bool sequence = separators.is(Kind::kList) || separators.is(Kind::kTuple);
  if (!sequence || separators.items().size() != 2 || !separators.items()[0].is_string() ||
      !separators.items()[1].is_string()) {
    run.fail_type("separators must be two strings");
    return std::nullopt;
  }
  style.item_separator = separators.items()[0].text();
  style.key_separator = separators.items()[1].text();
  return style;
}

Value tojson(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "tojson", arguments);
  const auto style = json_style(run, reader);
  const bool sort_keys = reader.flag("sort_keys");
  reader.done();
  if (!style || !run.ok()) return {};
  return make_string(run, to_json(run, value, *style, sort_keys));
}

Value join(Run& run, const Value& value, const Arguments& arguments) {
  ArgumentReader reader(run, "join", arguments);
  const std::string separator = to_text(run, reader.optional("d", Value::literal("")));
  const Value path = reader.optional("attribute", Value::none());
  reader.done();
  std::string out;
  bool first = true;
  for (const Value& item : iterate(run, value)) {
    if (!run.ok()) break;
    const std::string text = to_text(run, by_path(run, item, path));
    if (!run.allocate(separator.size() + text.size())) break;
    if (!first) out += separator;
    first = false;
    out += text;
  }
  return run.ok() ? Value::literal(std::move(out)) : Value{};
}

constexpr std::array kFilters = {
    NamedBuiltin{"upper", transformed<strings::upper>},
    NamedBuiltin{"lower", transformed<strings::lower>},
    NamedBuiltin{"capitalize", transformed<strings::capitalize>},
    NamedBuiltin{"title", transformed<strings::title_filter>},
    NamedBuiltin{"string", to_string},
    NamedBuiltin{"safe", to_string},
    NamedBuiltin{"trim", trim},
    NamedBuiltin{"replace", replace},
    NamedBuiltin{"indent", indent},
    NamedBuiltin{"tojson", tojson},
    NamedBuiltin{"join", join},
};

}  // namespace

std::span<const NamedBuiltin> text_filters() { return kFilters; }

}  // namespace tessera::jinja
