// SPDX-License-Identifier: Apache-2.0
// What drafting brings: the same texts with and without it, in turns.
#pragma once

#include <tessera/bench.h>
#include <memory>
#include <vector>

#include "runtime/loaded_model.h"

namespace tessera {

/// Uses the model up. `context`: tokens of the random text. Errors: kInvalidArgument and
/// kUnsupported (options.draft), those of the tokenizer and of the requests.
Result<std::vector<DraftRow>> bench_drafts(std::unique_ptr<LoadedModel> model,
                                           const BenchOptions& options,
                                           const std::vector<int>& contexts);

/// Random ids: routing and block selection spread as on text without structure.
std::vector<int32_t> random_ids(size_t count, int vocab);

}  // namespace tessera
