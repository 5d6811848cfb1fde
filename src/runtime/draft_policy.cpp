// SPDX-License-Identifier: Apache-2.0
// Estimates of acceptance and cost, and the depth that follows from them.
#include "runtime/draft_policy.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr double kFirstRate = 0.7;  // before anything is known
constexpr double kRateMemory = 12;  // rounds that an acceptance rate looks back
constexpr double kForget = 0.97;    // what a launch's weight keeps with every later one
/// A launch that took this many times as long as expected was disturbed and counts as this long.
constexpr double kMostSurprise = 3;
constexpr double kLeastSpread = 0.05;  // of the counts, below which a slope is a guess
constexpr double kGuessedShare = 0.5;  // of the cost at the mean count, grows with the count
/// Drafting must promise this much more: its estimates are less certain than plain decoding's.
constexpr double kMargin = 1.03;

}  // namespace

double AcceptanceRates::rate(size_t place) const {
  if (place < rates_.size()) return rates_[place];
  return rates_.empty() ? kFirstRate : rates_.back();
}

void AcceptanceRates::count(int proposed, int accepted) {
  ++rounds_;
  // A place behind a rejected draft says nothing about itself.
  const int tried = std::min(proposed, accepted + 1);
  for (int place = 0; place < tried; ++place) {
    const auto at = static_cast<size_t>(place);
    if (at == rates_.size()) rates_.push_back(rate(at));
    const double step = 1.0 / std::min<double>(rounds_ + 1, kRateMemory);
    rates_[at] += step * ((place < accepted ? 1.0 : 0.0) - rates_[at]);
  }
}

double AcceptanceRates::expected_tokens(int depth) const {
  double tokens = 1, reached = 1;
  for (int place = 0; place < depth; ++place) {
    reached *= rate(static_cast<size_t>(place));
    tokens += reached;
  }
  return tokens;
}

void LinearCost::add(double count, double seconds) {
  const double expected = at(count);
  if (expected > 0) seconds = std::min(seconds, kMostSurprise * expected);
  for (double* sum : {&weight_, &count_, &count_squared_, &seconds_, &product_}) *sum *= kForget;
  weight_ += 1;
  count_ += count;
  count_squared_ += count * count;
  seconds_ += seconds;
  product_ += count * seconds;
}

double LinearCost::at(double count) const {
  if (weight_ == 0) return 0;
  const double mean_count = count_ / weight_, mean = seconds_ / weight_;
  const double spread = count_squared_ / weight_ - mean_count * mean_count;
  double slope = kGuessedShare * mean / std::max(mean_count, 1.0);
  if (spread > kLeastSpread)
    slope = std::max(0.0, (product_ / weight_ - mean_count * mean) / spread);
  return std::max(0.0, mean + slope * (count - mean_count));
}

int DraftPolicy::best_depth(std::span<const AcceptanceRates* const> sequences, int other_rows,
                            int most) const {
  int best = 0;
  double best_speed = 0;
  for (int depth = 0; depth <= most; ++depth) {
    double tokens = other_rows;
    for (const AcceptanceRates* rates : sequences) tokens += rates->expected_tokens(depth);
    const auto rows = static_cast<double>(sequences.size()) * (depth + 1) + other_rows;
    // Sequences that stop drafting need no draft layer at all.
    const double seconds = trunk_.at(rows) + (depth == 0 ? 0 : drafts_.at(depth));
    const double speed = seconds > 0 ? tokens / seconds / (depth == 0 ? 1 : kMargin) : tokens;
    if (speed <= best_speed) continue;
    best_speed = speed;
    best = depth;
  }
  return best;
}

}  // namespace tessera
