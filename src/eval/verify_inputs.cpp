// SPDX-License-Identifier: Apache-2.0
// Checks of reference inputs against the model that is to be verified.
#include "eval/verify_inputs.h"

#include <algorithm>

namespace tessera {

Result<void> check_reference_ids(const LoadedModel& model, std::span<const int32_t> ids,
                                 const std::string& where) {
  const int vocab = model.config().vocab_size;
  const auto bad =
      std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id < 0 || id >= vocab; });
  if (bad == ids.end()) return {};
  return fail({.code = Errc::kMismatch,
               .what = "token id outside the vocabulary",
               .where = where + "[" + std::to_string(bad - ids.begin()) + "]",
               .expected = "0 to " + std::to_string(vocab - 1),
               .found = std::to_string(*bad),
               .hint = "the reference belongs to another model"});
}

Result<void> check_reference_prompt(const LoadedModel& model, std::span<const int32_t> ids,
                                    size_t more, const std::string& where) {
  if (ids.empty())
    return fail({.code = Errc::kCorruptFile,
                 .what = "empty reference input",
                 .where = where,
                 .expected = "at least one token",
                 .found = "none"});
  const auto room = static_cast<size_t>(model.max_context());
  if (ids.size() > room || more > room - ids.size())
    return fail({.code = Errc::kMismatch,
                 .what = "reference input longer than the context",
                 .where = where,
                 .expected = "at most " + std::to_string(room) + " tokens",
                 .found = std::to_string(ids.size()) +
                          (more == 0 ? "" : " and " + std::to_string(more) + " that follow")});
  return check_reference_ids(model, ids, where);
}

}  // namespace tessera
