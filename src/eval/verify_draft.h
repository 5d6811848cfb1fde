// SPDX-License-Identifier: Apache-2.0
// The draft layer held against references: teacher-forced rows, a chain, first-draft acceptance.
#pragma once

#include <tessera/error.h>
#include <tessera/verify.h>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eval/verify_bounds.h"
#include "io/safetensors.h"
#include "runtime/loaded_model.h"

namespace tessera {

/// Rows mtp.* of the report: the layer over the whole text with the tokens that follow each row,
/// then drafts from its own output. A set without mtp.*, or a model without a draft layer, is named
/// as skipped. Errors: kNotFound and kMismatch of the golden file, those of running the model.
Result<void> check_draft(LoadedModel& model, const TensorMap& golden, const std::string& path,
                         const VerifyBounds& bounds, VerifyReport& report);

/// Whether the draft layer, after each token of `output` but the last, predicts the next one
/// [output.size() - 1]. Both run teacher-forced, in one prefill. Needs a draft layer.
Result<std::vector<bool>> first_drafts(LoadedModel& model, std::span<const int32_t> prompt,
                                       std::span<const int32_t> output);

}  // namespace tessera
