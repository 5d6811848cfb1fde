// SPDX-License-Identifier: Apache-2.0
// Typed access to JSON fields with errors that say which field of which file is wrong.
#include "text/tokenizer_fields.h"

#include <algorithm>
#include <boost/json.hpp>

namespace tessera::text {
namespace {

namespace json = boost::json;

constexpr size_t kMaxQuoted = 80;  // bytes of a value shown in an error

std::string shorten(std::string_view text) {
  if (text.size() <= kMaxQuoted) return std::string(text);
  return std::string(text.substr(0, kMaxQuoted)) + "...";
}

std::string kind_name(const json::value* value) {
  if (value == nullptr) return "nothing";
  const json::string_view name = json::to_string(value->kind());
  return {name.data(), name.size()};
}

}  // namespace

Result<Fields> Fields::of(const json::value& value, std::string where) {
  const json::object* object = value.if_object();
  if (object == nullptr)
    return fail({.code = Errc::kCorruptFile,
                 .what = "wrong JSON type",
                 .where = std::move(where),
                 .expected = "object",
                 .found = kind_name(&value)});
  return Fields(*object, std::move(where));
}

Result<void> Fields::only(std::initializer_list<std::string_view> keys) const {
  for (const auto& item : *object_) {
    const std::string_view key(item.key().data(), item.key().size());
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      return unsupported(key, shorten(json::serialize(item.value())));
  }
  return {};
}

Result<std::string_view> Fields::string(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr || !value->is_string()) return wrong(key, "string", kind_name(value));
  return std::string_view(value->get_string().data(), value->get_string().size());
}

Result<bool> Fields::boolean(std::string_view key, std::optional<bool> if_absent) const {
  const json::value* value = find(key);
  if (value == nullptr && if_absent) return *if_absent;
  if (value == nullptr || !value->is_bool()) return wrong(key, "true or false", kind_name(value));
  return value->get_bool();
}

Result<Fields> Fields::object(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr) return wrong(key, "object", kind_name(value));
  return of(*value, where_ + "." + std::string(key));
}

Result<void> Fields::for_each(std::string_view key,
                              const std::function<Result<void>(const Fields&)>& read) const {
  const json::value* value = find(key);
  if (value == nullptr || !value->is_array()) return wrong(key, "array", kind_name(value));
  size_t index = 0;
  for (const json::value& element : value->get_array()) {
    const auto done =
        of(element, where_ + "." + std::string(key) + "[" + std::to_string(index++) + "]")
            .and_then(read);
    if (!done) return done;
  }
  return {};
}

tl::unexpected<Error> Fields::unsupported(std::string_view key, std::string_view found) const {
  return fail({.code = Errc::kUnsupported,
               .what = "not implemented",
               .where = where_ + "." + std::string(key),
               .found = shorten(found)});
}

tl::unexpected<Error> Fields::wrong(std::string_view key, std::string_view expected,
                                    std::string_view found) const {
  return fail({.code = Errc::kCorruptFile,
               .what = "wrong value",
               .where = where_ + "." + std::string(key),
               .expected = std::string(expected),
               .found = shorten(found)});
}

}  // namespace tessera::text
