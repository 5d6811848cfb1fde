// SPDX-License-Identifier: Apache-2.0
// Printing of template values as Python prints them.
#include "text/jinja/print.h"

#include <algorithm>

#include "text/jinja/loop.h"
#include "text/jinja/strings.h"

namespace tessera::jinja {
namespace {

void append_hex_escape(std::string& out, uint32_t code_point) {
  const int digits = code_point < 0x100 ? 2 : code_point < 0x10000 ? 4 : 8;
  out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
    out += "0123456789abcdef"[(code_point >> shift) & 0xF];
}

std::string quote(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const bool has_double = text.find('"') != std::string::npos;
  const char mark = has_single && !has_double ? '"' : '\'';
  std::string out(1, mark);
  for (size_t pos = 0; pos < text.size();) {
    const auto point = strings::code_point_at(text, pos);
    pos += point.length;
    const auto byte = static_cast<char>(point.value);
    if (point.value < 0x80 && (byte == mark || byte == '\\')) {
      out += '\\';
      out += byte;
    } else if (point.value == '\n' || point.value == '\r' || point.value == '\t') {
      out += point.value == '\n' ? "\\n" : point.value == '\r' ? "\\r" : "\\t";
    } else if (strings::is_printable(point.value)) {
      strings::append(out, point.value);
    } else {
      append_hex_escape(out, point.value);
    }
  }
  return out += mark;
}

class Printer {
 public:
  explicit Printer(Run& run) : run_(run) {}

  std::string print(const Value& value) {
    append(value);
    return std::move(out_);
  }

 private:
  void append(const Value& value);
  void append_items(const List& items, const char* open, const char* close);
  void append_dict(const Dict& dict);
  void append_range(const Range& range);
  void write(std::string_view text) {
    if (run_.allocate(text.size())) out_ += text;
  }

  Run& run_;
  std::string out_{};
  int nesting_ = 0;  // a namespace can contain itself
};

void Printer::append(const Value& value) {
  const DepthGuard guard(nesting_);
  if (!run_.spend() || !run_.check_depth(nesting_, 2 * run_.limits().value_depth, "printed value"))
    return;
  switch (value.kind()) {
    case Kind::kUndefined: return write("Undefined");
    case Kind::kNone: return write("None");
    case Kind::kBool: return write(value.get<bool>() ? "True" : "False");
    case Kind::kInt: return write(std::to_string(value.get<int64_t>()));
    case Kind::kBigInt: return write(*value.get<BigInteger>().digits);
    case Kind::kFloat: {
      std::string number;
      append_python_float(number, value.get<double>());
      return write(number);
    }
    case Kind::kString: return write(quote(value.text()));
    case Kind::kList: return append_items(value.items(), "[", "]");
    case Kind::kTuple:
      return append_items(value.items(), "(", value.items().size() == 1 ? ",)" : ")");
    case Kind::kView: write(value.type_name()); return append_items(value.items(), "([", "])");
    case Kind::kDict: return append_dict(value.dict());
    case Kind::kRange: return append_range(value.get<Range>());
    case Kind::kNamespace:
      write("<Namespace ");
      append_dict(value.get<Namespace*>()->values);
      return write(">");
    case Kind::kLoop: return write(value.get<std::shared_ptr<LoopState>>()->text());
    case Kind::kIterator:
    case Kind::kFunction:
      // Python prints a memory address here, which no prompt can depend on.
      return run_.fail_unsupported(std::string("printing a ") + value.type_name());
  }
}

void Printer::append_items(const List& items, const char* open, const char* close) {
  write(open);
  for (size_t index = 0; index < items.size() && run_.ok(); ++index) {
    if (index > 0) write(", ");
    append(items[index]);
  }
  write(close);
}

void Printer::append_dict(const Dict& dict) {
  write("{");
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!run_.ok()) return;
    if (!first) write(", ");
    first = false;
    append(key);
    write(": ");
    append(value);
  }
  write("}");
}

void Printer::append_range(const Range& range) {
  write("range(" + std::to_string(range.start) + ", " + std::to_string(range.stop));
  if (range.step != 1) write(", " + std::to_string(range.step));
  write(")");
}

class JsonPrinter {
 public:
  JsonPrinter(Run& run, const JsonStyle& style, bool sort_keys)
      : run_(run), style_(style), writer_(out_, style), sort_keys_(sort_keys) {}

  std::string print(const Value& value) {
    append(value);
    return std::move(out_);
  }

 private:
  void append(const Value& value);
  void append_dict(const Dict& dict);
  bool afford(const Value& value) const;
  std::string key_text(const Value& key);

  Run& run_;
  std::string out_{};
  const JsonStyle& style_;
  JsonWriter writer_;
  bool sort_keys_;
  int nesting_ = 0;
};

/// Layout may be longer than the values: a template chooses separators and indentation.
bool JsonPrinter::afford(const Value& value) const {
  const uint64_t text = value.is_string() ? value.text().size() : sizeof(Value);
  const uint64_t layout = style_.item_separator.size() + style_.key_separator.size() +
                          2 * style_.indent.size() * static_cast<uint64_t>(nesting_);
  return run_.spend() && run_.allocate(text + layout);
}

void JsonPrinter::append(const Value& value) {
  const DepthGuard guard(nesting_);
  if (!afford(value)) return;
  switch (value.kind()) {
    case Kind::kNone: writer_.null(); return;
    case Kind::kBool: writer_.boolean(value.get<bool>()); return;
    case Kind::kInt: writer_.integer(value.get<int64_t>()); return;
    case Kind::kBigInt: writer_.raw(*value.get<BigInteger>().digits); return;
    case Kind::kFloat: writer_.real(value.get<double>()); return;
    case Kind::kString: writer_.string(value.text()); return;
    case Kind::kDict: append_dict(value.dict()); return;
    case Kind::kList:
    case Kind::kTuple:
      writer_.begin_array();
      for (const Value& item : value.items()) {
        if (!run_.ok()) break;
        append(item);
      }
      writer_.end_array();
      return;
    default:
      run_.fail_type(std::string("object of type ") + value.type_name() +
                     " is not JSON serializable");
  }
}

std::string JsonPrinter::key_text(const Value& key) {
  if (key.is_string()) return key.text();
  if (key.is_none()) return "null";
  if (key.is(Kind::kBool)) return key.get<bool>() ? "true" : "false";
  if (key.is(Kind::kInt) || key.is(Kind::kBigInt)) return to_repr(run_, key);
  if (key.is(Kind::kFloat)) {
    std::string number;
    JsonWriter(number, JsonStyle::python()).real(key.get<double>());
    return number;
  }
  run_.fail_type(std::string("JSON keys must be str, int, float, bool or None, not ") +
                 key.type_name());
  return {};
}

void JsonPrinter::append_dict(const Dict& dict) {
  std::vector<const Dict::Entry*> entries;
  for (const auto& entry : dict.entries()) entries.push_back(&entry);
  if (sort_keys_) {
    for (const auto* entry : entries)
      if (!entry->first.is_string())
        run_.fail_unsupported("tojson(sort_keys) with other keys than strings");
    if (!run_.ok()) return;
    std::sort(entries.begin(), entries.end(), [](const auto* left, const auto* right) {
      return left->first.text() < right->first.text();
    });
  }
  writer_.begin_object();
  for (const auto* entry : entries) {
    if (!run_.ok()) break;
    if (!afford(entry->first)) break;
    writer_.key(key_text(entry->first));
    append(entry->second);
  }
  writer_.end_object();
}

}  // namespace

std::string to_text(Run& run, const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return {};
  return Printer(run).print(value);
}

std::string to_repr(Run& run, const Value& value) { return Printer(run).print(value); }

std::string to_json(Run& run, const Value& value, const JsonStyle& style, bool sort_keys) {
  return JsonPrinter(run, style, sort_keys).print(value);
}

}  // namespace tessera::jinja
