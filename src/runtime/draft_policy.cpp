// SPDX-License-Identifier: Apache-2.0
// Estimates of acceptance and cost, and the depth that follows from them.
#include "runtime/draft_policy.h"

#include <algorithm>
#include <iterator>

namespace tessera {
namespace {

constexpr double kFirstRate = 0.7;     // before anything is known
constexpr int kPriorRounds = 2;        // that a rate counts for which was only expected
constexpr int kRateMemory = 12;        // rounds that an acceptance rate looks back
constexpr int kTrialRounds = 6;        // before a text is judged
constexpr double kTypicalMemory = 64;  // rounds, of all sequences
constexpr double kRenewal = 0.03;      // share of the typical rates that a new sequence lets go
constexpr double kCostStep = 0.125;    // weight of the newest launch in a mean
constexpr double kSharedStep = 0.5;    // how far the other means follow
/// A launch that took this many times as long as expected was disturbed and counts as this long.
constexpr double kMostSurprise = 3;
constexpr double kGuessedShare = 0.5;  // of the only known cost, grows with the count
/// Drafting must promise this much more: its estimates are less certain than plain decoding's.
constexpr double kMargin = 1.03;

/// A place behind a rejected draft says nothing about itself.
int places_tried(int proposed, int accepted) { return std::min(proposed, accepted + 1); }

}  // namespace

double AcceptanceRates::rate(size_t place) const {
  if (place < rates_.size()) return rates_[place];
  return rates_.empty() ? kFirstRate : rates_.back();
}

void AcceptanceRates::count(int proposed, int accepted) {
  ++rounds_;
  const double step = 1.0 / std::min(rounds_ + kPriorRounds, kRateMemory);
  for (int place = 0; place < places_tried(proposed, accepted); ++place) {
    const auto at = static_cast<size_t>(place);
    if (at == rates_.size()) rates_.push_back(rate(at));
    rates_[at] += step * ((place < accepted ? 1.0 : 0.0) - rates_[at]);
  }
}

bool AcceptanceRates::on_trial() const { return rounds_ < kTrialRounds; }

AcceptanceRates AcceptanceRates::at_best(int depth) const {
  AcceptanceRates best = *this;
  while (best.on_trial()) best.count(depth, depth);
  return best;
}

double AcceptanceRates::expected_tokens(int depth) const {
  double tokens = 1, reached = 1;
  for (int place = 0; place < depth; ++place) {
    reached *= rate(static_cast<size_t>(place));
    tokens += reached;
  }
  return tokens;
}

void MeasuredCost::add(int count, double seconds) {
  const double expected = at(count);
  if (expected > 0) seconds = std::min(seconds, kMostSurprise * expected);
  const auto [known, is_new] = seconds_.try_emplace(count, seconds);
  if (is_new || known->second <= 0) {
    known->second = seconds;
    return;
  }
  const double change = kCostStep * (seconds / known->second - 1.0);
  for (auto& [other, mean] : seconds_) mean *= 1.0 + (other == count ? 1.0 : kSharedStep) * change;
}

double MeasuredCost::at(int count) const {
  if (seconds_.empty()) return 0;
  if (seconds_.size() == 1) {
    const auto& [known, seconds] = *seconds_.begin();
    return seconds * (1.0 + kGuessedShare * (count - known) / std::max(known, 1));
  }
  auto above = seconds_.lower_bound(count);
  if (above != seconds_.end() && above->first == count) return above->second;
  if (above == seconds_.begin()) ++above;
  if (above == seconds_.end()) --above;
  const auto below = std::prev(above);
  const double slope =
      std::max(0.0, (above->second - below->second) / (above->first - below->first));
  return std::max(0.0, below->second + slope * (count - below->first));
}

void DraftPolicy::count(int proposed, int accepted) {
  for (int place = 0; place < places_tried(proposed, accepted); ++place) {
    const auto at = static_cast<size_t>(place);
    if (at == typical_rates_.size()) typical_rates_.push_back(kFirstRate);
    typical_rates_[at] += ((place < accepted ? 1.0 : 0.0) - typical_rates_[at]) / kTypicalMemory;
  }
}

AcceptanceRates DraftPolicy::first_rates() {
  for (double& rate : typical_rates_) rate += kRenewal * (kFirstRate - rate);
  return AcceptanceRates(typical_rates_);
}

int DraftPolicy::best_depth(std::span<const AcceptanceRates* const> sequences, int other_rows,
                            int most) const {
  int best = 0;
  double best_speed = 0;
  for (int depth = 0; depth <= most; ++depth) {
    double tokens = other_rows;
    for (const AcceptanceRates* rates : sequences) tokens += rates->expected_tokens(depth);
    const int rows = static_cast<int>(sequences.size()) * (depth + 1) + other_rows;
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
