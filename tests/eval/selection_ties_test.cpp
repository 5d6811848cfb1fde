// SPDX-License-Identifier: Apache-2.0
// Swapped blocks: near-equal ones are ties, winners are not, and the bound fits what BF16 does.
#include "eval/selection_ties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "eval/verify_selection.h"
#include "io/mapped_file.h"
#include "tests/engine/model_harness.h"
#include "tests/eval/rounding_ops.h"

namespace tessera::test {
namespace {

using testing::HasSubstr;

constexpr const char* kNano = "models/nano";
constexpr int kFirstQsaLayer = 3;
constexpr double kBF16Rounding = 0x1p-8;
constexpr IndexErrors kTypical{.hidden = 1e-2, .rounding = kBF16Rounding};
constexpr IndexErrors kLargest{.hidden = 5e-2, .rounding = kBF16Rounding};

/// Changes what the rows of the first selection get.
class DoctoringOps final : public ForwardingOps {
 public:
  using Doctor = std::function<void(int row, std::span<int32_t> blocks)>;
  DoctoringOps(ops::Ops& inner, Doctor doctor) : ForwardingOps(inner), doctor_(std::move(doctor)) {}

  void qsa_select(const ops::QsaSelectArgs& args) override {
    inner_.qsa_select(args);
    if (seen_++ > 0) return;
    for (int row = 0; row < args.batch.num_rows; ++row)
      doctor_(row, {args.blocks + ptrdiff_t{row} * args.budget_blocks,
                    static_cast<size_t>(args.counts[row])});
  }

 private:
  Doctor doctor_;
  int seen_ = 0;
};

/// The golden text of nano, read by the reference ops and by others.
class SelectionTies : public testing::Test {
 protected:
  void SetUp() override {
    file_ = MappedFile::open(std::string(kNano) + "/golden.safetensors").value();
    golden_ = parse_safetensors(file_->bytes(), kNano).value();
    ids_ = golden_values<int32_t>(golden_.at("text.input_ids"));
    reference_ = inputs_of([](ops::Ops& ops) -> ops::Ops& { return ops; });
  }

  template <class Wrap>
  std::vector<IndexInputs> inputs_of(const Wrap& wrap) {
    const auto model = load_model(kNano, OpsKind::kReference);
    IndexInputsOps ops(wrap(model->ops()));
    read(*model, ops, nullptr);
    return ops.layers();
  }

  void read(LoadedModel& model, ops::Ops& ops, Tap* tap) {
    model.replace_ops(ops);
    const ScopedSequence sequence = open_sequence(model);
    const SequenceRows work{.sequence = sequence.id(), .ids = ids_};
    ASSERT_TRUE(model.run({&work, 1}, ops::Role::kPrefill, {}, tap));
  }

  /// Verdict on the fast backend with a doctored selection.
  SelectionVerdict verdict_on(const DoctoringOps::Doctor& doctor) {
    const auto model = load_model(kNano, OpsKind::kFast);
    DoctoringOps ops(model->ops(), doctor);
    GoldenTap tap(golden_, model->config().qsa);
    read(*model, ops, &tap);
    return judge_selection(*model, ids_, golden_, tap, kLargest).value();
  }

  int last_row() const { return static_cast<int>(ids_.size()) - 1; }

  /// Blocks that the row sees in the first of the layers, the best first.
  std::vector<int32_t> ranked(int row) const {
    std::vector<int32_t> blocks(static_cast<size_t>((row + 1) / kBlock));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::stable_sort(blocks.begin(), blocks.end(), [&](int32_t left, int32_t right) {
      return reference_.front().score(row, left) > reference_.front().score(row, right);
    });
    return blocks;
  }

  /// The row whose last chosen and first left blocks are nearest, of those with a positive gap.
  int nearest_row() const {
    int nearest = -1;
    double least = std::numeric_limits<double>::infinity();
    for (int row = (kBudget + 1) * kBlock; row <= last_row(); ++row) {
      const auto order = ranked(row);
      const double gap = reference_.front().score(row, order[kBudget - 1]) -
                         reference_.front().score(row, order[kBudget]);
      if (gap > 0 && gap < least) least = gap, nearest = row;
    }
    return nearest;
  }

  static constexpr int kBlock = 4, kBudget = 4;  // of nano
  std::shared_ptr<const MappedFile> file_{};
  TensorMap golden_{};
  std::vector<int32_t> ids_{};
  std::vector<IndexInputs> reference_{};
};

TEST_F(SelectionTies, NearEqualBlocksTieAndAWinnerDoesNot) {
  const int row = nearest_row();
  const auto order = ranked(row);
  const BlockSwap near{.row = row, .dropped = {order[kBudget - 1]}, .taken = {order[kBudget]}};
  EXPECT_LE(swap_ratio(reference_.front(), near, kTypical), 1);
  EXPECT_GT(swap_ratio(reference_.front(), near, kTypical), 0);
  const BlockSwap winner{.row = row, .dropped = {order.front()}, .taken = {order.back()}};
  EXPECT_GT(swap_ratio(reference_.front(), winner, kTypical), 1);
  // The worst pair decides.
  const BlockSwap both{.row = row,
                       .dropped = {order[kBudget - 1], order.front()},
                       .taken = {order[kBudget], order.back()}};
  EXPECT_GE(swap_ratio(reference_.front(), both, kTypical),
            swap_ratio(reference_.front(), winner, kTypical));
  // The reference would swap those two itself.
  const BlockSwap reversed{.row = row, .dropped = winner.taken, .taken = winner.dropped};
  EXPECT_EQ(swap_ratio(reference_.front(), reversed, kTypical), 0);
}

TEST_F(SelectionTies, TheBoundGrowsWithEachError) {
  const auto order = ranked(last_row());
  const BlockSwap swap{.row = last_row(), .dropped = {order.front()}, .taken = {order.back()}};
  const double exact = swap_ratio(reference_.front(), swap, {});
  const double rounded = swap_ratio(reference_.front(), swap, {.rounding = kBF16Rounding});
  const double typical = swap_ratio(reference_.front(), swap, kTypical);
  EXPECT_TRUE(std::isinf(exact));
  EXPECT_LT(rounded, exact);
  EXPECT_LT(typical, rounded);
  EXPECT_LT(swap_ratio(reference_.front(), swap, kLargest), typical);
}

TEST_F(SelectionTies, NothingExcusesNaNOrSetsOfAnotherSize) {
  const int row = nearest_row();
  const auto order = ranked(row);
  const int32_t dropped = order[kBudget - 1], taken = order[kBudget];
  IndexInputs inputs = reference_.front();
  const auto is_tie = [&](const BlockSwap& swap, const IndexErrors& errors = kTypical) {
    return swap_ratio(inputs, swap, errors) <= 1;
  };
  const auto absent = static_cast<int32_t>(inputs.spread.size());
  const double infinite = std::numeric_limits<double>::infinity();
  ASSERT_TRUE(is_tie({.row = row, .dropped = {dropped}, .taken = {taken}}));
  EXPECT_FALSE(is_tie({.row = row, .dropped = {dropped}}));
  EXPECT_FALSE(is_tie({.row = row, .taken = {taken}}));
  EXPECT_FALSE(is_tie({.row = row}));
  EXPECT_FALSE(is_tie({.row = row, .dropped = {dropped}, .taken = {absent}}));
  EXPECT_FALSE(is_tie({.row = row, .dropped = {dropped}, .taken = {-1}}));
  EXPECT_FALSE(is_tie({.row = row, .dropped = {dropped}, .taken = {taken}}, {.hidden = infinite}));
  inputs.keys[static_cast<size_t>(taken) * static_cast<size_t>(inputs.dim)] = NAN;
  EXPECT_FALSE(is_tie({.row = row, .dropped = {dropped}, .taken = {taken}}));
  inputs = reference_.front();
  inputs.keys[static_cast<size_t>(dropped) * static_cast<size_t>(inputs.dim)] = NAN;
  EXPECT_FALSE(is_tie({.row = row, .dropped = {dropped}, .taken = {taken}}));
}

/// Not too narrow: nearly every difference of two scores changes less than the bound. Not too wide:
/// it is a few of their standard deviations, and most pairs are no ties.
TEST_F(SelectionTies, TheBoundFitsWhatRoundingChanges) {
  constexpr int kEvery = 7;
  std::unique_ptr<RoundingOps> rounding;
  const auto rounded = inputs_of([&](ops::Ops& ops) -> ops::Ops& {
    rounding = std::make_unique<RoundingOps>(ops);
    return *rounding;
  });
  const IndexInputs& exact = reference_.front();
  int pairs = 0, ties = 0, wider = 0;
  double squares = 0;
  for (int row = last_row() / 2; row <= last_row(); row += kEvery)
    for (int right = 1; right < (row + 1) / kBlock; ++right)
      for (int left = 0; left < right; ++left) {
        const double before = exact.score(row, left) - exact.score(row, right);
        const double after = rounded.front().score(row, left) - rounded.front().score(row, right);
        const double ratio = swap_ratio(exact,
                                        {.row = row,
                                         .dropped = {before > 0 ? left : right},
                                         .taken = {before > 0 ? right : left}},
                                        kTypical);
        if (ratio == 0) continue;
        const double change = std::abs(after - before) * ratio / std::abs(before);
        ++pairs;
        ties += ratio <= 1 ? 1 : 0;
        wider += change > 1 ? 1 : 0;
        squares += change * change;
      }
  constexpr int kThousand = 1000;
  EXPECT_GT(pairs, kThousand);
  EXPECT_LE(wider, pairs / kThousand);
  EXPECT_LT(ties, pairs / kDeviations);
  const double deviations = kDeviations * std::sqrt(squares / pairs);
  EXPECT_LT(deviations, 1);
  EXPECT_GT(deviations, 1.0 / 3);
}

TEST_F(SelectionTies, RowsThatRoundingSwapsAreTies) {
  const auto model = load_model(kNano, OpsKind::kFast, CacheType::kBF16);
  RoundingOps ops(model->ops());
  GoldenTap tap(golden_, model->config().qsa);
  read(*model, ops, &tap);
  ASSERT_FALSE(tap.swaps().empty());
  const auto verdict = judge_selection(*model, ids_, golden_, tap, kLargest);
  ASSERT_TRUE(verdict) << verdict.error().message();
  EXPECT_EQ(verdict->failures, 0) << selection_row(*verdict).note;
  EXPECT_EQ(static_cast<size_t>(verdict->ties), tap.swaps().size());
  EXPECT_GT(verdict->widest, 0);
  const VerifyRow row = selection_row(*verdict);
  EXPECT_TRUE(row.passed);
  EXPECT_THAT(row.note, HasSubstr("ties within BF16 rounding (widest gap "));
}

TEST_F(SelectionTies, ADroppedWinnerFailsTheReport) {
  const auto order = ranked(last_row());
  const SelectionVerdict verdict = verdict_on([&](int row, std::span<int32_t> blocks) {
    if (row == last_row()) std::replace(blocks.begin(), blocks.end(), order.front(), order.back());
  });
  EXPECT_TRUE(verdict.reproduced);
  EXPECT_GE(verdict.failures, 1);  // layers above see another state
  EXPECT_EQ(verdict.failure.layer, kFirstQsaLayer);
  EXPECT_EQ(verdict.failure.row, last_row());
  EXPECT_GT(verdict.excess, 1);
  const VerifyRow row = selection_row(verdict);
  EXPECT_FALSE(row.passed);
  EXPECT_TRUE(row.judged);
  EXPECT_THAT(row.note, HasSubstr("row " + std::to_string(last_row()) + " of layer 3, gap "));
}

TEST_F(SelectionTies, AListThatRepeatsOrInventsBlocksFails) {
  for (const int32_t block : {0, -1, 1 << 20}) {
    GoldenTap tap(golden_, load_model(kNano, OpsKind::kReference)->config().qsa);
    const auto rows = static_cast<int>(ids_.size());
    std::vector<int32_t> blocks(static_cast<size_t>(rows * kBudget), block);
    const std::vector<int32_t> counts(static_cast<size_t>(rows), kBudget);
    tap.selection(kFirstQsaLayer, blocks.data(), counts.data(), rows, kBudget);
    ASSERT_FALSE(tap.swaps().empty());
    const BlockSwap& last = tap.swaps().back();
    EXPECT_EQ(last.row, last_row());
    EXPECT_GT(swap_ratio(reference_.front(), last, kLargest), 1) << block;
  }
}

TEST_F(SelectionTies, ScoresThatDoNotExplainTheGoldenSetsExcuseNothing) {
  TensorRef& selected = golden_.at("text.selected" + std::to_string(kFirstQsaLayer));
  std::vector<std::byte> doctored(selected.data, selected.data + selected.bytes);
  const int row = nearest_row();
  const auto order = ranked(row);
  const auto tokens = ids_.size();
  const auto at = [&](int32_t block) {
    return doctored.begin() + static_cast<ptrdiff_t>(tokens * static_cast<size_t>(row)) +
           ptrdiff_t{block} * kBlock;
  };
  std::swap_ranges(at(order.front()), at(order.front()) + kBlock, at(order.back()));
  selected.data = doctored.data();
  const SelectionVerdict verdict = verdict_on([](int, std::span<int32_t>) {});
  EXPECT_FALSE(verdict.reproduced);
  EXPECT_EQ(verdict.ties, 0);
  EXPECT_EQ(verdict.failures, 1);
  EXPECT_THAT(selection_row(verdict).note, HasSubstr("does not choose the reference's sets"));
}

TEST_F(SelectionTies, EqualSetsNeedNoSecondPass) {
  const SelectionVerdict verdict = verdict_on([](int, std::span<int32_t>) {});
  EXPECT_EQ(verdict.ties + verdict.failures, 0);
}

}  // namespace
}  // namespace tessera::test
