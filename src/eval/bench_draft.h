// SPDX-License-Identifier: Apache-2.0
// What drafting brings: the same texts at every depth, in turns.
#pragma once

#include <tessera/bench.h>
#include <memory>
#include <vector>

#include "runtime/loaded_model.h"

namespace tessera {

/// Errors: kInvalidArgument, where options.draft asks for what an engine cannot do.
Result<void> check_draft_bench(const BenchOptions& options);

int largest_batch(const DraftBenchOptions& options);

/// Uses the model up; it must run `largest_batch` sequences at once. `contexts`: tokens of the
/// random texts. Errors: kUnsupported (no draft layer), kContextLimit, those of the tokenizer and
/// of the requests.
Result<std::vector<DraftCase>> bench_drafts(std::unique_ptr<LoadedModel> model,
                                            const BenchOptions& options,
                                            const std::vector<int>& contexts);

}  // namespace tessera
