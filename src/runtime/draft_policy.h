// SPDX-License-Identifier: Apache-2.0
// How deep to draft: from how often the drafts of a sequence are accepted and from what rounds of
// this engine cost. Pure: times and counts come in, a depth goes out; the text never depends on it.
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

namespace tessera {

/// How likely the draft at each place of a round is accepted when those before it were.
class AcceptanceRates {
 public:
  AcceptanceRates() = default;
  /// Expects `rates` by place until rounds tell otherwise.
  explicit AcceptanceRates(std::vector<double> rates) : rates_(std::move(rates)) {}

  void count(int proposed, int accepted);
  /// Tokens that a round with `depth` drafts is expected to bring.
  double expected_tokens(int depth) const;
  /// While too few rounds were counted to judge a text.
  bool on_trial() const;
  /// As if the rest of the trial went well, with every one of `depth` drafts accepted.
  AcceptanceRates at_best(int depth) const;

 private:
  double rate(size_t place) const;

  std::vector<double> rates_{};  // of the places that were tried
  int rounds_ = 0;
};

/// Seconds by the number of rows or drafts. A number that was measured keeps what it cost while
/// others run; what has slowed one down has in part slowed down all.
class MeasuredCost {
 public:
  void add(int count, double seconds);
  /// On a line between the nearest numbers that were measured; 0 while nothing is known.
  double at(int count) const;

 private:
  std::map<int, double> seconds_{};  // running means
};

class DraftPolicy {
 public:
  /// A decode launch of so many rows, with its draws.
  void trunk_launch(int rows, double seconds) { trunk_.add(rows, seconds); }
  /// The draft layer's share of a round: its cache rows, and `depth` drafts for each sequence.
  void draft_phase(int depth, double seconds) { drafts_.add(depth, seconds); }
  /// What became of the drafts of a round, of any sequence.
  void count(int proposed, int accepted);
  /// What a sequence may expect that begins: what others met of late. Each one that asks expects a
  /// little less of that and more of what is assumed before anything is known, so that a run of
  /// texts that were not worth a trial does not keep all later ones from theirs.
  AcceptanceRates first_rates();

  /// The depth, 0 to `most`, at which these sequences together, beside `other_rows` rows of others,
  /// get the most tokens per second.
  int best_depth(std::span<const AcceptanceRates* const> sequences, int other_rows, int most) const;

 private:
  MeasuredCost trunk_{};
  MeasuredCost drafts_{};
  std::vector<double> typical_rates_{};  // by place, of all sequences
};

}  // namespace tessera
