// SPDX-License-Identifier: Apache-2.0
// The released config.json as text, and edits of single keys.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

namespace tessera::test {

/// Every key of the released file that the engine reads, and some that it does not.
std::string released_config();

/// Sets the value at a JSON pointer ("/text_config/head_dim") to the JSON text `value`.
inline std::string with(const std::string& json, std::string_view pointer, std::string_view value) {
  boost::json::value root = boost::json::parse(json);
  const size_t slash = pointer.rfind('/');
  boost::json::value& parent = root.at_pointer(pointer.substr(0, slash));
  const std::string key(pointer.substr(slash + 1));
  boost::json::value& target =
      parent.is_array() ? parent.as_array().at(std::stoul(key)) : parent.as_object()[key];
  target = boost::json::parse(value);
  return boost::json::serialize(root);
}

/// Removes one key of the object at `pointer` ("" is the top level).
inline std::string without(const std::string& json, std::string_view pointer,
                           std::string_view key) {
  boost::json::value root = boost::json::parse(json);
  root.at_pointer(pointer).as_object().erase(key);
  return boost::json::serialize(root);
}

}  // namespace tessera::test
