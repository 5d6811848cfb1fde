// SPDX-License-Identifier: Apache-2.0
// How deep to draft: from how often the drafts of a sequence are accepted and from what rounds of
// this engine cost. Pure: times and counts come in, a depth goes out; the text never depends on it.
#pragma once

#include <span>
#include <vector>

namespace tessera {

/// How likely the draft at each place of a round is accepted when those before it were.
class AcceptanceRates {
 public:
  void count(int proposed, int accepted);
  /// Tokens that a round with `depth` drafts is expected to bring.
  double expected_tokens(int depth) const;
  int rounds() const { return rounds_; }

 private:
  double rate(size_t place) const;

  std::vector<double> rates_{};  // of the places that were tried
  int rounds_ = 0;
};

/// seconds = base + slope * count, by least squares that forget.
class LinearCost {
 public:
  void add(double count, double seconds);
  /// 0 while nothing is known.
  double at(double count) const;

 private:
  double weight_ = 0, count_ = 0, count_squared_ = 0, seconds_ = 0, product_ = 0;
};

class DraftPolicy {
 public:
  /// A decode launch of so many rows, with its draws.
  void trunk_launch(int rows, double seconds) { trunk_.add(rows, seconds); }
  /// The draft layer's share of a round: its cache rows, and `depth` drafts for each sequence.
  void draft_phase(int depth, double seconds) { drafts_.add(depth, seconds); }

  /// The depth, 0 to `most`, at which these sequences together, beside `other_rows` rows of others,
  /// get the most tokens per second.
  int best_depth(std::span<const AcceptanceRates* const> sequences, int other_rows, int most) const;

 private:
  LinearCost trunk_{};
  LinearCost drafts_{};
};

}  // namespace tessera
