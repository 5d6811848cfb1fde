// SPDX-License-Identifier: Apache-2.0
// Checks of reference inputs, which come from files that nobody vouches for.
#pragma once

#include <tessera/error.h>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/loaded_model.h"

namespace tessera {

/// Every id is a row of the model's vocabulary; kMismatch with the first that is not.
Result<void> check_reference_ids(const LoadedModel& model, std::span<const int32_t> ids,
                                 const std::string& where);

/// At least one valid id, and a context that holds them and the `more` tokens which follow.
/// Errors: kCorruptFile (empty), kMismatch.
Result<void> check_reference_prompt(const LoadedModel& model, std::span<const int32_t> ids,
                                    size_t more, const std::string& where);

}  // namespace tessera
