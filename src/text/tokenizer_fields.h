// SPDX-License-Identifier: Apache-2.0
// Typed access to a JSON object whose errors name the field: the reader's side of tokenizer.json.
#pragma once

#include <tessera/error.h>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include "text/tokenizer_spec.h"

namespace tessera::text {

class Fields {
 public:
  static Result<Fields> of(const boost::json::value& value, std::string where);

  /// Null when absent.
  const boost::json::value* find(std::string_view key) const { return object_->if_contains(key); }
  /// Refuses, by name, a key that is not listed.
  Result<void> only(std::initializer_list<std::string_view> keys) const;

  Result<std::string_view> string(std::string_view key) const;
  Result<bool> boolean(std::string_view key, std::optional<bool> if_absent = std::nullopt) const;
  Result<Fields> object(std::string_view key) const;
  /// Calls `read` on every element of an array of objects, stops at the first error.
  Result<void> for_each(std::string_view key,
                        const std::function<Result<void>(const Fields&)>& read) const;

  tl::unexpected<Error> unsupported(std::string_view key, std::string_view found) const;
  tl::unexpected<Error> wrong(std::string_view key, std::string_view expected,
                              std::string_view found) const;
  const std::string& where() const { return where_; }

 private:
  Fields(const boost::json::object& object, std::string where)
      : object_(&object), where_(std::move(where)) {}
  const boost::json::object* object_;
  std::string where_;
};

/// The two large parts of the file.
Result<void> read_bpe_model(const Fields& model, TokenizerSpec& spec);
Result<void> read_added_tokens(const Fields& root, TokenizerSpec& spec);

}  // namespace tessera::text
