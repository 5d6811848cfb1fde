// SPDX-License-Identifier: Apache-2.0
// Whether another choice of blocks is a tie within rounding: the gap between the reference's scores
// of the swapped blocks against what the errors of queries and keys can change.
#pragma once

#include <cstdint>
#include <vector>

#include "eval/index_inputs.h"

namespace tessera {

/// A row whose blocks are not the reference's.
struct BlockSwap {
  int layer = 0;
  int row = 0;
  std::vector<int32_t> dropped{};  // only the reference has them
  std::vector<int32_t> taken{};    // only the row under test has them
};

/// Relative errors that enter a score.
struct IndexErrors {
  double hidden = 0;    // of what the layer reads (attn_in), measured
  double rounding = 0;  // largest of one rounding to the activation type: 2^-8 for BF16
};

/// The worst gap of the swap divided by its bound, over all pairs of a dropped block d and a taken
/// block t. The swap is a tie within rounding when it is at most 1. Infinite when no rounding can
/// explain the swap: NaN scores or errors, unequal numbers of blocks, blocks that do not exist.
///
/// Derivation. s_b = sum_h relu(q_h . k_b) / sqrt(D). The row preferred t, the reference d, so
/// gap = s_d - s_t is at most what the errors changed in s_d - s_t. To first order that is
///   delta = [sum_h e_h . (a_hd k_d - a_ht k_t) + f_d . Q_d - f_t . Q_t] / sqrt(D),
/// where e_h is the error of q_h and f_b that of k_b, Q_b = sum_h a_hb q_h, and a_hb says whether
/// head h counts in block b: its product is positive, or would be within its own error.
///
/// Lengths of the errors. A projection and a norm carry a relative error over; q_h and raw keys are
/// rounded when they are projected, mean, k and q_h again when they are stored. The error of a mean
/// of raw keys grows by their `spread`. Roundings are independent, their squares add:
///   |e_h| = |q_h| sqrt(hidden^2 + 2 u^2),
///   |f_b| = |k_b| sqrt(spread_b^2 (hidden^2 + u^2) + 2 u^2).
///
/// Directions. The largest |e . k| is |e| |k|, but an error that knows nothing of k has
/// |e| |k| / sqrt(D) as its root mean square. Cauchy-Schwarz would call most swaps ties: with four
/// heads, D = 128 and errors of 1 % it allows gaps of 1.8, where two scores of a row of
/// the golden sets differ by 1.3 on average. The errors of the heads come from one hidden state, so
/// their lengths add; those of the query and of the two keys come from different rows, so their
/// squares add:
///   variance = [(sum_h |e_h| |a_hd k_d - a_ht k_t|)^2 + (|f_d| |Q_d|)^2 + (|f_t| |Q_t|)^2] / D^2,
///   bound = kDeviations * sqrt(variance).
/// NOTE: so the bound is one of probability, not of the worst case; a test holds it against what
/// rounding every activation to BF16 changes.
double swap_ratio(const IndexInputs& inputs, const BlockSwap& swap, const IndexErrors& errors);

/// Pairs near the cut are many (rows, layers, blocks), so a few standard deviations occur.
inline constexpr double kDeviations = 4;

}  // namespace tessera
