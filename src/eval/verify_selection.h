// SPDX-License-Identifier: Apache-2.0
// Whether the rows that select other blocks than the reference do so because its scores nearly tie.
#pragma once

#include <tessera/error.h>
#include <tessera/verify.h>
#include <cstdint>
#include <span>
#include <vector>

#include "eval/golden_tap.h"
#include "runtime/loaded_model.h"

namespace tessera {

struct SelectionVerdict {
  int ties = 0;
  int failures = 0;        // every other row
  double widest = 0;       // largest gap of the ties, as a part of its bound
  BlockSwap failure{};     // the first row that is no tie
  double excess = 0;       // its gap as a multiple of its bound; infinite when there is none
  bool reproduced = true;  // false: the FP32 pass chooses other sets itself, no row is a tie
};

/// Largest relative error of one rounding to the type: half a unit in the last place.
double rounding_of(DType activation);

/// Judges the swaps that `tap` saw when `model` read `ids`. Reads them once more with the CPU's
/// fast ops in FP32: golden files hold no scores, but those ops choose the reference's sets.
/// `largest` says what may count as rounding: a hidden state further off excuses no more than that.
/// Errors: those of loading the model and of LoadedModel::run.
Result<SelectionVerdict> judge_selection(const LoadedModel& model, std::span<const int32_t> ids,
                                         const TensorMap& golden, const GoldenTap& tap,
                                         const IndexErrors& largest);

/// The line of the report: rows that are no ties.
VerifyRow selection_row(const SelectionVerdict& verdict);

}  // namespace tessera
