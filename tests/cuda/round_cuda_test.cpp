// SPDX-License-Identifier: Apache-2.0
// Rounds on a device: nothing is touched before the inputs are there, and a recorded round does
// what a launched one does, round after round, without the host.
#include <cstring>
#include <type_traits>

#include "cpu/round_world.h"
#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"

namespace tessera::test {
namespace {

constexpr int kVocab = 257, kDrafts = 3, kSequences = 5, kWidth = 1032;
constexpr int kRounds = 6;

class RoundCudaTest : public CudaTest {
 protected:
  /// Texts whose drafts are often what is drawn: a row has few likely tokens.
  static std::vector<RoundText> some_texts(Random& random) {
    std::vector<RoundText> texts(kSequences);
    for (size_t index = 0; index < texts.size(); ++index) {
      RoundText& text = texts[index];
      text.position = random.below(1000);
      for (int row = 0; row <= kDrafts; ++row) text.ids.push_back(random.below(3));
      text.settings = {
          .draw = {.temperature = 1, .top_k = 3, .valid_vocab = kVocab, .seed = 50 + index},
          .draft_vocab = kVocab,
          .left = index == 0 ? 6 : 1000};
    }
    return texts;
  }
  const float* some_logits(Random& random, size_t rows) {
    std::vector<float> logits = random.normals(rows * kVocab);
    for (size_t row = 0; row < rows; ++row)
      for (size_t token = 0; token < 3; ++token) logits[row * kVocab + token] += 8;
    return world().copy(logits);
  }

  /// What the steps write of a state, without the times.
  std::vector<std::byte> everything(const ops::RoundState& state) {
    const auto spans = static_cast<size_t>(state.num_spans);
    const auto rows = static_cast<size_t>(state.num_rows);
    std::vector<std::byte> all;
    const auto add = [&](const auto* data, size_t count) {
      const auto* bytes = reinterpret_cast<const std::byte*>(data);
      const std::vector<std::byte> part = read(bytes, count * sizeof(*data));
      all.insert(all.end(), part.begin(), part.end());
    };
    add(state.ids, rows);
    add(state.positions, 3 * rows);
    add(state.drawn, rows);
    add(state.next_ids, rows);
    add(state.draft_ids, spans);
    add(state.draft_positions, 3 * spans);
    add(state.draft_sources, spans);
    add(state.drafted, spans);
    add(state.outcomes, spans);
    std::vector<int64_t> fields;  // of structs that hold addresses or have gaps
    for (const ops::RowSpan* part : {state.spans, state.draft_spans})
      for (const ops::RowSpan& span : read(part, spans))
        fields.insert(fields.end(), {span.row_begin, span.num_rows, span.position});
    for (const ops::SampleRow& row : read(state.settings, rows)) fields.push_back(row.position);
    for (const ops::SampleRow& row : read(state.draft_settings, spans))
      fields.push_back(row.position);
    for (const ops::RoundSequence& sequence : read(state.sequences, spans))
      fields.push_back(sequence.left);
    const auto bytes = std::as_bytes(std::span<const int64_t>(fields));
    all.insert(all.end(), bytes.begin(), bytes.end());
    return all;
  }

  static constexpr RoundWorld::Accept kHow{.pending = true, .drafting = kSequences - 1};
};

TEST_F(RoundCudaTest, RecordedRoundsDoWhatLaunchedOnesDo) {
  std::vector<std::vector<std::byte>> want;
  for (const bool record : {false, true}) {
    Random random(304);
    RoundWorld round(world().ops(), DType::kBF16, some_texts(random), kWidth);
    const ops::RoundState state = round.state();
    const float* logits = some_logits(random, round.num_rows());
    const float* draft_logits = some_logits(random, kSequences);
    const auto steps = [&] {
      ops::Ops& ops = world().ops();
      ops.use_rows(ops::RoundPart::kTrunk, state.num_spans, state.num_rows);
      ops.draw({.logits = logits,
                .vocab = kVocab,
                .rows = state.num_rows,
                .settings = state.settings,
                .results = state.drawn});
      ops.accept(round.accept_args(kHow));
      for (int place = 0; place < kDrafts; ++place) {
        const int count = kSequences - place;
        ops.use_rows(ops::RoundPart::kLive, count, count);
        ops.draw({.logits = draft_logits,
                  .vocab = kVocab,
                  .rows = count,
                  .settings = state.draft_settings,
                  .results = state.drafted});
        ops.take_drafts({.state = state, .place = place, .count = count});
      }
      ops.advance({.state = state});
    };
    const ops::StepKey key{.kind = ops::StepKind::kRound, .round = state.spans};
    int kept = 0;
    for (int repetition = 0; repetition < kRounds; ++repetition) {
      if (record)
        world().ops().repeat(key, steps);
      else
        steps();
      world().ops().end_round();
      if (want.size() <= static_cast<size_t>(repetition)) want.push_back(everything(state));
      EXPECT_TRUE(everything(state) == want[static_cast<size_t>(repetition)])
          << "round " << repetition << ", recorded " << record;
      const ops::RoundReport report = world().ops().read_round();
      EXPECT_TRUE(report.outcomes[0].ended == 1 || repetition + 1 < kRounds);
      for (const ops::RoundOutcome& outcome : report.outcomes) kept += outcome.kept;
      EXPECT_GT(report.times.accepted, 0U);
      EXPECT_GE(report.times.advanced, report.times.accepted);
    }
    EXPECT_GT(kept, kRounds * (kSequences - 1));  // drafts were accepted
    if (record) {
      EXPECT_EQ(world().ops().repeated_kernels(), 3 + 2 * kDrafts);
    }
  }
}

TEST_F(RoundCudaTest, DrawWaitsForSettingsAndLogits) {
  for (const int vocab : {kVocab, 20001}) {  // a block a row, a cluster a row
    constexpr size_t kRows = 7;
    Random random(305);
    std::vector<ops::SampleRow> settings;
    for (size_t row = 0; row < kRows; ++row)
      settings.push_back({.top_k = row % 2 == 0 ? 20 : 0,
                          .valid_vocab = vocab,
                          .seed = row,
                          .top_logprobs = static_cast<int>(row) - 1});
    const std::vector<float> logits = random.normals(kRows * static_cast<size_t>(vocab));
    auto* results =
        reinterpret_cast<ops::SampledToken*>(world().bytes(kRows * sizeof(ops::SampledToken)));
    const ops::DrawArgs args{.logits = world().copy(logits),
                             .vocab = vocab,
                             .rows = kRows,
                             .settings = world().copy(settings),
                             .results = results};
    cuda::launch_draw(context(), args);
    const auto want = read(results, kRows);
    DelayedProducer producer(context());
    producer.late(const_cast<float*>(args.logits), logits.size() * sizeof(float));
    producer.late(const_cast<ops::SampleRow*>(args.settings), kRows * sizeof(settings[0]));
    producer.untouched(results, kRows * sizeof(want[0]));
    EXPECT_TRUE(producer.run([&] { cuda::launch_draw(context(), args); }));
    EXPECT_EQ(std::memcmp(read(results, kRows).data(), want.data(), kRows * sizeof(want[0])), 0);
  }
}

/// Each step once after the one before, and once behind a producer of all that it reads.
TEST_F(RoundCudaTest, StepsWaitForWhatTheyRead) {
  std::vector<std::vector<std::byte>> want;
  for (const bool delayed : {false, true}) {
    Random random(306);
    RoundWorld round(world().ops(), DType::kBF16, some_texts(random), kWidth);
    const ops::RoundState state = round.state();
    const auto spans = static_cast<size_t>(state.num_spans), rows = round.num_rows();
    std::vector<ops::SampledToken> drawn(rows);
    for (ops::SampledToken& one : drawn) one.token = random.below(3);
    world().copy_in(state.drawn, drawn.data(), rows * sizeof(drawn[0]));
    world().copy_in(state.drafted, drawn.data(), spans * sizeof(drawn[0]));
    world().ops().use_rows(ops::RoundPart::kTrunk, state.num_spans, state.num_rows);
    const ops::AcceptArgs accept = round.accept_args(kHow);

    const auto late = [](DelayedProducer& producer, auto* data, size_t count) {
      producer.late(const_cast<std::remove_const_t<std::remove_pointer_t<decltype(data)>>*>(data),
                    count * sizeof(*data));
    };
    const auto untouched = [](DelayedProducer& producer, auto* data, size_t count) {
      producer.untouched(data, count * sizeof(*data));
    };
    size_t step = 0;
    const auto run = [&](const auto& name_regions, const auto& op) {
      if (delayed) {
        DelayedProducer producer(context());
        name_regions(producer);
        EXPECT_TRUE(producer.run(op)) << "step " << step;
      } else {
        op();
      }
      std::vector<std::byte> all = everything(state);
      const std::vector<std::byte> slots = read(round.slots(), round.slots_bytes());
      all.insert(all.end(), slots.begin(), slots.end());
      if (!delayed) want.push_back(all);
      EXPECT_TRUE(all == want[step]) << "step " << step;
      ++step;
    };
    run(
        [&](DelayedProducer& producer) {
          late(producer, state.drawn, rows);
          late(producer, state.ids, rows);
          late(producer, state.sequences, spans);
          late(producer, round.slots(), round.slots_bytes());
          late(producer, static_cast<const std::byte*>(accept.wide), rows * kWidth * 2);
          untouched(producer, state.next_ids, rows);
          untouched(producer, state.outcomes, spans);
          untouched(producer, state.draft_ids, spans);
          untouched(producer, state.draft_positions, 3 * spans);
          untouched(producer, state.draft_sources, spans);
        },
        [&] { cuda::launch_accept(context(), accept); });
    run(
        [&](DelayedProducer& producer) {
          late(producer, state.drafted, spans);
          late(producer, state.draft_spans, spans);
          late(producer, state.draft_settings, spans);
          late(producer, state.outcomes, spans);
          untouched(producer, state.draft_ids, spans);
          untouched(producer, state.draft_positions, 3 * spans);
          untouched(producer, state.draft_sources, spans);
        },
        [&] {
          cuda::launch_take_drafts(context(), {.state = state, .place = 1, .count = kSequences});
        });
    run(
        [&](DelayedProducer& producer) {
          late(producer, state.outcomes, spans);
          late(producer, state.drawn, rows);
          late(producer, state.settings, rows);
          untouched(producer, state.ids, rows);
          untouched(producer, state.positions, 3 * rows);
        },
        [&] { cuda::launch_advance(context(), {.state = state}); });
  }
}

}  // namespace
}  // namespace tessera::test
