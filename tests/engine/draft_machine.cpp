// SPDX-License-Identifier: Apache-2.0
// Submit, cancel, fork, snapshot, evict, restore, save, load and rounds of mixed depths, at random.
#include "tests/engine/draft_machine.h"

#include <algorithm>
#include <array>
#include <map>
#include <random>

#include "tests/engine/draft_story.h"
#include "tests/engine/host_state.h"

namespace tessera::test {
namespace {

constexpr int kSlots = 5, kMostFrozen = 4, kMaxDraft = 5;
constexpr int kContext = 256;  // of each slot; snapshots share its pages, so the pool runs dry
constexpr size_t kTokens = 110;
/// Around the borders of blocks and pages.
constexpr std::array<size_t, 4> kPromptTokens = {1, 30, 63, 64};
constexpr int kTextsOfAPrompt = 2;

enum class Action { kSubmit, kCancel, kFork, kSnapshot, kEvict, kRestore, kReload, kDrop, kRound };
/// Rounds are what the others interrupt.
constexpr std::array<double, 9> kWeights = {3, 1, 1, 1, 1, 2, 1, 1, 12};

std::unique_ptr<LoadedModel> open_model(int max_sequences) {
  EngineOptions options;
  options.model_dir = "models/nano";
  options.max_context = kContext;
  options.max_sequences = max_sequences;
  options.max_draft = kMaxDraft;
  options.threads = 1;
  return load_model(options);
}

/// The texts that all machines of this process live through.
struct Library {
  Library() {
    const auto seeds = kPromptTokens.size() * kTextsOfAPrompt;
    model = open_model(static_cast<int>(seeds));
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      const size_t prompt = seed / kTextsOfAPrompt;
      stories.push_back(
          decode_story(*model, sample_ids(*model, kPromptTokens[prompt], prompt), seed, kTokens));
    }
  }
  std::unique_ptr<LoadedModel> model;
  std::vector<Story> stories{};
};

const Library& library() {
  static const Library the_library;
  return the_library;
}

/// A sequence that has absorbed the prompt and the first `absorbed` tokens of a text; the next
/// token is drawn and waits. The draft layer has all rows, the last with that token.
struct Live {
  ScopedSequence sequence;
  const Story* story = nullptr;
  size_t absorbed = 0;
  int pending_rows = 0;
  std::vector<int32_t> drafts{};  // that the layer proposed

  SequenceId id() const { return sequence.id(); }
  int64_t length() const { return static_cast<int64_t>(story->prompt.size() + absorbed); }
};

struct Frozen {
  std::shared_ptr<const StateSnapshot> state;
  const Story* story = nullptr;
  size_t absorbed = 0;
};

/// What one sequence verifies in a round.
struct Rows {
  Live* live = nullptr;
  std::vector<int32_t> ids{};
  int first = 0;
  int right = 0;  // rows that are text
};

class Machine {
 public:
  explicit Machine(uint64_t seed) : random_(seed), model_(open_model(kSlots)) {}

  void step() {
    std::discrete_distribution<int> any(kWeights.begin(), kWeights.end());
    switch (static_cast<Action>(any(random_))) {
      case Action::kSubmit: return submit();
      case Action::kCancel: return cancel();
      case Action::kFork: return fork();
      case Action::kSnapshot: return snapshot(false);
      case Action::kEvict: return snapshot(true);
      case Action::kRestore: return restore();
      case Action::kReload: return reload();
      case Action::kDrop: return drop();
      case Action::kRound: return round();
    }
  }
  void check() const;
  void finish();
  int accepted() const { return accepted_; }
  int rejected() const { return rejected_; }
  int starved() const { return starved_; }

 private:
  size_t below(size_t count) {
    return std::uniform_int_distribution<size_t>(0, count - 1)(random_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  bool full() const { return live_.size() == kSlots; }
  /// The only failure that a step may meet.
  void expect_starved(const Error& error) {
    EXPECT_EQ(error.code, Errc::kOutOfMemory) << error.message();
    ++starved_;
  }
  void submit();
  void cancel();
  void fork();
  void snapshot(bool evict);
  void restore();
  void reload();
  void drop();
  void round();
  std::vector<Rows> plan_round();
  void take(Rows& rows, std::span<const int32_t> drawn, bool verify);
  void catch_up(std::vector<Rows>& round);
  void propose(std::vector<Rows>& round);
  void remove(size_t at) { live_.erase(live_.begin() + static_cast<ptrdiff_t>(at)); }
  void compare_draft_cache(const Live& live) const;

  std::mt19937_64 random_;
  std::unique_ptr<LoadedModel> model_;
  std::vector<Live> live_{};
  std::vector<Frozen> frozen_{};
  int accepted_ = 0, rejected_ = 0, starved_ = 0;
};

void Machine::submit() {
  if (full()) return;
  const Story& story = library().stories[below(library().stories.size())];
  Live live{.sequence = open_sequence(*model_), .story = &story};
  if (auto status = model_->prefill(live.id(), story.prompt); !status)
    return expect_starved(status.error());
  const DrawnRow drawn{&story, 0};
  EXPECT_EQ(draw_rows(*model_, 0, {&drawn, 1}).front(), story.text.front());
  EXPECT_TRUE(read_draft_prompt(*model_, live.id(), story.prompt));
  const DraftRows last{.sequence = live.id(),
                       .position = live.length() - 1,
                       .next_ids = std::span(story.text).first(1),
                       .first_source = static_cast<int>(story.prompt.size()) - 1};
  EXPECT_TRUE(model_->draft({&last, 1}, {.cache_only = true}));
  live_.push_back(std::move(live));
}

void Machine::cancel() {
  if (live_.empty()) return;
  const size_t at = below(live_.size());
  compare_draft_cache(live_[at]);
  remove(at);
}

void Machine::fork() {
  if (live_.empty() || full()) return;
  Live& from = live_[below(live_.size())];
  model_->settle(from.id());
  from.pending_rows = 0;
  live_.push_back({.sequence = {model_->store(), model_->store().fork(from.id()).value()},
                   .story = from.story,
                   .absorbed = from.absorbed});
}

void Machine::snapshot(bool evict) {
  if (live_.empty() || frozen_.size() == kMostFrozen) return;
  const size_t at = below(live_.size());
  Live& from = live_[at];
  frozen_.push_back({model_->snapshot(from.id()), from.story, from.absorbed});
  from.pending_rows = 0;
  if (evict) remove(at);
}

/// A state that has not absorbed a token of its text may go on with another text.
void Machine::restore() {
  if (frozen_.empty() || full()) return;
  const Frozen& from = frozen_[below(frozen_.size())];
  const auto& stories = library().stories;
  const Story* story = from.story;
  if (from.absorbed == 0) {
    const auto first = static_cast<size_t>(story - stories.data()) / kTextsOfAPrompt;
    story = &stories[first * kTextsOfAPrompt + below(kTextsOfAPrompt)];
  }
  Live live{.sequence = {model_->store(), model_->store().restore(*from.state).value()},
            .story = story,
            .absorbed = from.absorbed};
  const DraftRows last{.sequence = live.id(),
                       .position = live.length() - 1,
                       .next_ids = std::span(story->text).subspan(live.absorbed, 1)};
  // In the role of the cold run, whose bits are compared.
  auto status = model_->draft({&last, 1}, {.source = DraftSource::kSlot, .cache_only = true});
  if (!status) return expect_starved(status.error());
  live_.push_back(std::move(live));
}

/// Through the bytes of a file, in place of the snapshot.
void Machine::reload() {
  if (frozen_.empty()) return;
  Frozen& from = frozen_[below(frozen_.size())];
  std::vector<std::byte> file;
  ASSERT_TRUE(encode_state(*from.state, model_->state_identity(),
                           [&file](std::span<const std::byte> bytes) {
                             file.insert(file.end(), bytes.begin(), bytes.end());
                             return true;
                           }));
  auto loaded =
      decode_state(file, model_->state_identity(), model_->store().shared_pool(), "memory");
  if (!loaded) return expect_starved(loaded.error());
  from.state = std::move(*loaded);
}

void Machine::drop() {
  if (!frozen_.empty())
    frozen_.erase(frozen_.begin() + static_cast<ptrdiff_t>(below(frozen_.size())));
}

/// Some sequences, each with its own number of drafts: the layer's, or the text itself, wrong from
/// a random place on, so that every number of them is accepted.
std::vector<Rows> Machine::plan_round() {
  std::vector<Rows> round;
  for (Live& live : live_) {
    const size_t left = live.story->text.size() - live.absorbed;
    if (left <= kMaxDraft + 1 || chance(0.3)) continue;
    const auto text = live.story->text.begin() + static_cast<ptrdiff_t>(live.absorbed);
    Rows& rows = round.emplace_back(Rows{.live = &live, .ids = {*text}});
    if (chance(0.5)) {
      rows.ids.insert(rows.ids.end(), live.drafts.begin(), live.drafts.end());
    } else {
      rows.ids.insert(rows.ids.end(), text + 1,
                      text + 1 + static_cast<ptrdiff_t>(below(kMaxDraft + 1)));
      const size_t wrong = 1 + below(rows.ids.size());
      for (size_t at = wrong; at < rows.ids.size(); ++at)
        rows.ids[at] = (rows.ids[at] + 1) % (model_->config().vocab_size - 1);
    }
    live.drafts.clear();
    const auto end =
        std::ranges::mismatch(rows.ids, std::ranges::subrange(text, live.story->text.end())).in1;
    rows.right = static_cast<int>(end - rows.ids.begin());
  }
  return round;
}

void Machine::round() {
  std::vector<Rows> round = plan_round();
  std::vector<SequenceRows> work;
  std::vector<int32_t> logit_rows;
  for (Rows& rows : round) {
    rows.first = static_cast<int>(logit_rows.size());
    work.push_back({.sequence = rows.live->id(), .ids = rows.ids});
    for (size_t row = 0; row < rows.ids.size(); ++row)
      logit_rows.push_back(static_cast<int32_t>(logit_rows.size()));
  }
  if (round.empty()) return;
  const bool verify = logit_rows.size() > round.size() || chance(0.5);
  const auto status =
      verify ? model_->verify(work, logit_rows) : model_->run(work, ops::Role::kDecode, logit_rows);
  if (!status) {
    // Nothing was absorbed; what a plain launch settled stays settled.
    for (const Rows& rows : round)
      if (!verify) rows.live->pending_rows = 0;
    return expect_starved(status.error());
  }
  for (Rows& rows : round) {
    std::vector<DrawnRow> drawn;
    for (int row = 0; row < rows.right; ++row)
      drawn.push_back({rows.live->story, rows.live->absorbed + 1 + static_cast<size_t>(row)});
    take(rows, draw_rows(*model_, rows.first, drawn), verify);
  }
  catch_up(round);
  propose(round);
}

/// Every row up to the first wrong one has the logits of plain decoding, and so its draw.
void Machine::take(Rows& rows, std::span<const int32_t> drawn, bool verify) {
  Live& live = *rows.live;
  const auto vocab = static_cast<size_t>(model_->config().vocab_size);
  std::vector<float> logits(vocab);
  for (size_t row = 0; row < drawn.size(); ++row) {
    const size_t entry = live.absorbed + 1 + row;
    EXPECT_EQ(drawn[row], live.story->text[entry]);
    model_->logits(rows.first + static_cast<int>(row), 1, logits.data());
    EXPECT_TRUE(logits == live.story->logits[entry]) << "entry " << entry;
  }
  if (verify) model_->accept({.sequence = live.id(), .ids = rows.ids}, rows.first, rows.right);
  live.pending_rows = verify ? rows.right : 0;
  live.absorbed += static_cast<size_t>(rows.right);
  accepted_ += rows.right - 1;
  rejected_ += static_cast<int>(rows.ids.size()) - rows.right;
}

/// All absorbed rows but the last, which drafts.
void Machine::catch_up(std::vector<Rows>& round) {
  std::vector<DraftRows> rows;
  for (const Rows& each : round) {
    if (each.right < 2) continue;
    rows.push_back({.sequence = each.live->id(),
                    .position = each.live->length() - each.right,
                    .next_ids = std::span(each.ids).subspan(1, static_cast<size_t>(each.right) - 1),
                    .first_source = each.first});
  }
  if (rows.empty()) return;
  EXPECT_TRUE(model_->draft(rows, {.cache_only = true}));
}

/// The live rows, whose logits are those of the cold run, and a chain from each.
void Machine::propose(std::vector<Rows>& round) {
  std::vector<DraftRows> rows;
  for (const Rows& each : round)
    rows.push_back({.sequence = each.live->id(),
                    .position = each.live->length() - 1,
                    .next_ids = std::span(each.live->story->text).subspan(each.live->absorbed, 1),
                    .first_source = each.first + each.right - 1});
  EXPECT_TRUE(model_->draft(rows, {}));
  std::vector<float> logits(static_cast<size_t>(model_->config().vocab_size));
  for (size_t at = 0; at < round.size(); ++at) {
    const Live& live = *round[at].live;
    model_->draft_logits(static_cast<int>(at), 1, logits.data());
    EXPECT_TRUE(logits == live.story->draft_logits[live.absorbed]) << "entry " << live.absorbed;
  }
  const size_t depth = below(kMaxDraft + 1);
  for (size_t drafted = 0; drafted < depth; ++drafted) {
    std::vector<DrawnRow> draws;
    for (const Rows& each : round)
      draws.push_back({each.live->story, each.live->absorbed + 1 + drafted});
    const std::vector<int32_t> drawn = draw_rows(*model_, 0, draws, true);
    for (size_t at = 0; at < round.size(); ++at) {
      Live& live = *round[at].live;
      live.drafts.push_back(drawn[at]);
      rows[at] = {.sequence = live.id(),
                  .position = live.length() + static_cast<int64_t>(drafted),
                  .next_ids = {&live.drafts.back(), 1},
                  .first_source = static_cast<int>(at)};
    }
    if (drafted + 1 == depth) return;
    if (auto status = model_->draft(rows, {.source = DraftSource::kDraft}); !status)
      return expect_starved(status.error());
  }
}

void Machine::compare_draft_cache(const Live& live) const {
  EXPECT_TRUE(HostState(*model_, live.id()).draft_layer(live.length()) ==
              HostState(*library().model, live.story->cold.id()).draft_layer(live.length()))
      << "draft layer after " << live.absorbed << " tokens";
}

/// Every page is held by those that the store and the snapshots say, and by nobody else.
void Machine::check() const {
  const SequenceStore& store = model_->store();
  ASSERT_EQ(store.num_live(), static_cast<int>(live_.size()));
  std::map<int32_t, int32_t> holders;
  for (const Live& live : live_) {
    ASSERT_EQ(store.length(live.id()), live.length());
    ASSERT_EQ(store.pending_rows(live.id()), live.pending_rows);
    const std::vector<int32_t>& tokens = store.tokens(live.id());
    const Story& story = *live.story;
    const auto text = tokens.begin() + static_cast<ptrdiff_t>(story.prompt.size());
    ASSERT_TRUE(std::equal(story.prompt.begin(), story.prompt.end(), tokens.begin()));
    ASSERT_TRUE(std::equal(text, tokens.end(), story.text.begin()));
    const int32_t* pages = store.span(live.id(), 0, 0).pages;
    for (int64_t page = 0; page < store.capacity(live.id()) / ops::kPageTokens; ++page)
      ++holders[pages[page]];
  }
  for (const Frozen& frozen : frozen_)
    for (const int32_t page : frozen.state->pages().ids()) ++holders[page];
  ASSERT_EQ(store.pool().used(), static_cast<int32_t>(holders.size()));
  for (const auto& [page, count] : holders) ASSERT_EQ(store.pool().ref_count(page), count);
}

void Machine::finish() {
  for (const Live& live : live_) compare_draft_cache(live);
  live_.clear();
  frozen_.clear();
  EXPECT_EQ(model_->store().num_live(), 0);
  EXPECT_EQ(model_->store().pool().used(), 0);
}

}  // namespace

void run_draft_machine(uint64_t seed, int steps) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  ASSERT_NE(library().model, nullptr);
  Machine machine(seed);
  for (int step = 0; step < steps; ++step) {
    machine.step();
    machine.check();
    ASSERT_FALSE(testing::Test::HasFailure()) << "step " << step;
  }
  machine.finish();
  std::printf("seed %llu: %d drafts accepted, %d rejected, %d steps without pages\n",
              static_cast<unsigned long long>(seed), machine.accepted(), machine.rejected(),
              machine.starved());
  EXPECT_GT(machine.accepted(), steps / 10);
  EXPECT_GT(machine.rejected(), steps / 10);
}

}  // namespace tessera::test
