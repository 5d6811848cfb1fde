// SPDX-License-Identifier: Apache-2.0
// The gap of a swap against its bound; the header derives both.
#include "eval/selection_ties.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace tessera {
namespace {

constexpr double kNoTie = std::numeric_limits<double>::infinity();
constexpr double kStoredRoundings = 2;  // of a query: projected, stored; of a key: mean, stored

double squared(double value) { return value * value; }

double squared_norm(std::span<const float> vector) { return dot(vector, vector); }

/// One pair of blocks as seen from one row.
class SwappedPair {
 public:
  SwappedPair(const IndexInputs& inputs, int row, const IndexErrors& errors)
      : inputs_(inputs), row_(row), errors_(errors) {}

  double ratio(int dropped, int taken) const {
    const double gap = inputs_.score(row_, dropped) - inputs_.score(row_, taken);
    if (gap <= 0) return 0;  // equal scores: only the order of the blocks decided
    const double ratio = gap / (kDeviations * deviation(dropped, taken));
    return std::isnan(ratio) ? kNoTie : ratio;
  }

 private:
  double query_error() const {
    return std::sqrt(squared(errors_.hidden) + kStoredRoundings * squared(errors_.rounding));
  }
  double key_error(int block) const {
    const double spread = inputs_.spread[static_cast<size_t>(block)];
    return std::sqrt(squared(spread) * (squared(errors_.hidden) + squared(errors_.rounding)) +
                     kStoredRoundings * squared(errors_.rounding));
  }

  /// Whether the head adds to the block's score, or would within its own error.
  bool counts(int head, int block) const {
    const auto query = inputs_.query(row_, head);
    const auto key = inputs_.key(block);
    const double error = std::sqrt(squared_norm(query) * squared_norm(key) / inputs_.dim) *
                         std::hypot(query_error(), key_error(block));
    return !(dot(query, key) < -kDeviations * error);
  }

  /// Sum of the queries that count in the block: what an error of its key is multiplied by.
  double squared_query_sum(int block) const {
    std::vector<float> sum(static_cast<size_t>(inputs_.dim), 0.0F);
    for (int head = 0; head < inputs_.heads; ++head) {
      if (!counts(head, block)) continue;
      const auto query = inputs_.query(row_, head);
      std::transform(sum.begin(), sum.end(), query.begin(), sum.begin(), std::plus<>());
    }
    return squared_norm(sum);
  }

  /// What an error of the head's query is multiplied by.
  double key_difference(int head, int dropped, int taken) const {
    const float in_dropped = counts(head, dropped) ? 1.0F : 0.0F;
    const float in_taken = counts(head, taken) ? 1.0F : 0.0F;
    const auto left = inputs_.key(dropped);
    const auto right = inputs_.key(taken);
    std::vector<float> difference(left.size());
    for (size_t col = 0; col < left.size(); ++col)
      difference[col] = in_dropped * left[col] - in_taken * right[col];
    return std::sqrt(squared_norm(difference));
  }

  double deviation(int dropped, int taken) const {
    double queries = 0;
    for (int head = 0; head < inputs_.heads; ++head)
      queries +=
          std::sqrt(squared_norm(inputs_.query(row_, head))) * key_difference(head, dropped, taken);
    double squares = squared(query_error() * queries);
    for (const int block : {dropped, taken})
      squares +=
          squared(key_error(block)) * squared_norm(inputs_.key(block)) * squared_query_sum(block);
    return std::sqrt(squares) / inputs_.dim;
  }

  const IndexInputs& inputs_;
  int row_;
  const IndexErrors& errors_;
};

}  // namespace

double swap_ratio(const IndexInputs& inputs, const BlockSwap& swap, const IndexErrors& errors) {
  const auto exists = [&](int32_t block) {
    return block >= 0 && static_cast<size_t>(block) < inputs.spread.size();
  };
  if (swap.dropped.empty() || swap.dropped.size() != swap.taken.size() ||
      !std::isfinite(errors.hidden) ||
      !std::all_of(swap.dropped.begin(), swap.dropped.end(), exists) ||
      !std::all_of(swap.taken.begin(), swap.taken.end(), exists))
    return kNoTie;
  const SwappedPair pair(inputs, swap.row, errors);
  double worst = 0;
  for (const int32_t dropped : swap.dropped)
    for (const int32_t taken : swap.taken) worst = std::max(worst, pair.ratio(dropped, taken));
  return worst;
}

}  // namespace tessera
