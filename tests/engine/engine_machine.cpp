// SPDX-License-Identifier: Apache-2.0
// Clients that submit, read, cancel, leave, keep states, save and load them, at random.
#include "tests/engine/engine_machine.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "tests/engine/engine_harness.h"

namespace tessera::test {
namespace {

constexpr size_t kMostRunning = 6, kMostStates = 4;
constexpr int kMaxDraft = 5;
constexpr int kContext = 192, kSequences = 3;  // nine pages
constexpr int32_t kSmallVocab = 480;
constexpr std::array<int, 4> kPromptTokens = {1, 20, 62, 64};
constexpr std::array<int, 4> kTextTokens = {1, 4, 17, 40};
constexpr std::array<int, 2> kMoreTokens = {1, 5};

enum class Action { kSubmit, kContinue, kRead, kDrain, kCancel, kLeave, kReload, kDrop };
constexpr std::array<double, 8> kWeights = {3, 2, 10, 3, 1, 1, 1, 1};

/// What a request asks, without its drafts: prompt, setting and length, once or twice.
struct Story {
  size_t prompt = 0, setting = 0, tokens = 0;
  bool continued = false;
  size_t more = 0, then = 0;  // of the continuation

  auto operator<=>(const Story&) const = default;
};

std::unique_ptr<Engine> open_engine(int sequences, RoundDriver rounds) {
  EngineOptions options;
  options.model_dir = "models/nano";
  options.max_context = kContext;
  options.max_sequences = sequences;
  options.max_draft = kMaxDraft;
  options.threads = 1;
  options.rounds = rounds;
  return load_engine(options);
}

std::vector<int32_t> ids_of(int count, int salt) {
  std::vector<int32_t> ids = prompt_of(count, salt);
  for (int32_t& id : ids) id %= kSmallVocab;
  return ids;
}

std::vector<SamplingParams> settings() {
  SamplingParams greedy, seeded, penalised;
  greedy.temperature = 0.0F;
  seeded.temperature = 1.0F;
  seeded.seed = 5;
  penalised = seeded;
  penalised.top_k = 20;
  penalised.frequency_penalty = 0.4F;
  return {greedy, seeded, penalised};
}

Request opening_of(const Story& story) {
  Request request = request_of(ids_of(kPromptTokens[story.prompt], static_cast<int>(story.prompt)),
                               0, 0, kTextTokens[story.tokens]);
  request.sampling = settings()[story.setting];
  return request;
}

Request continuation_of(const Story& story, const StateHandle& state) {
  Request request = opening_of(story);
  request.prompt = Engine::state_tokens(state);
  const std::vector<int32_t> more = ids_of(kMoreTokens[story.more], 77);
  request.prompt.insert(request.prompt.end(), more.begin(), more.end());
  request.max_tokens = kTextTokens[story.then];
  request.resume_from = state;
  return request;
}

/// Texts of plain decoding, made when they are asked for.
class Plain {
 public:
  const std::vector<int32_t>& text(const Story& story) {
    const auto known = texts_.find(story);
    if (known != texts_.end()) return known->second;
    Story opening{.prompt = story.prompt, .setting = story.setting, .tokens = story.tokens};
    Request request = opening_of(opening);
    request.draft = 0;
    request.keep_state = story.continued;
    Output output = run(*engine_, request);
    if (story.continued) {
      request = continuation_of(story, output.last.state);
      request.draft = 0;
      output = run(*engine_, request);
    }
    EXPECT_FALSE(output.last.error.has_value());
    return texts_[story] = output.tokens;
  }

 private:
  std::unique_ptr<Engine> engine_ = open_engine(kSequences, RoundDriver::kHost);
  std::map<Story, std::vector<int32_t>> texts_{};
};

struct Client {
  Generation generation;
  Story story{};
  std::vector<int32_t> tokens{};
  bool cancelled = false;
};

struct Kept {
  StateHandle state;
  Story story;
};

class Machine {
 public:
  Machine(uint64_t seed, RoundDriver rounds)
      : random_(seed),
        path_(testing::TempDir() + "tessera_machine_" + std::to_string(seed) + ".state"),
        engine_(open_engine(kSequences, rounds)) {}

  void step() {
    std::discrete_distribution<int> any(kWeights.begin(), kWeights.end());
    switch (static_cast<Action>(any(random_))) {
      case Action::kSubmit: return submit();
      case Action::kContinue: return go_on();
      case Action::kRead: return read();
      case Action::kDrain: return drain_one();
      case Action::kCancel: return cancel();
      case Action::kLeave: return leave();
      case Action::kReload: return reload();
      case Action::kDrop: return drop();
    }
  }
  void finish();
  int whole_texts() const { return whole_texts_; }
  int starved() const { return starved_; }

 private:
  size_t below(size_t count) {
    return std::uniform_int_distribution<size_t>(0, count - 1)(random_);
  }
  void start(Request request, const Story& story) {
    request.draft = static_cast<int>(below(kMaxDraft + 2)) - 1;
    request.keep_state = below(2) == 0;
    auto generation = engine_->submit(std::move(request));
    ASSERT_TRUE(generation) << generation.error().message();
    clients_.push_back({.generation = std::move(*generation), .story = story});
  }
  void submit() {
    if (clients_.size() == kMostRunning) return;
    const Story story{.prompt = below(kPromptTokens.size()),
                      .setting = below(settings().size()),
                      .tokens = below(kTextTokens.size())};
    start(opening_of(story), story);
  }
  void go_on() {
    if (clients_.size() == kMostRunning || kept_.empty()) return;
    const Kept& kept = kept_[below(kept_.size())];
    Story story = kept.story;
    story.continued = true;
    story.more = below(kMoreTokens.size());
    story.then = below(kTextTokens.size());
    start(continuation_of(story, kept.state), story);
  }
  void read() {
    if (!clients_.empty()) take(below(clients_.size()));
  }
  void drain_one() {
    if (clients_.empty()) return;
    const size_t at = below(clients_.size());
    while (take(at)) continue;
  }
  void cancel() {
    if (clients_.empty()) return;
    Client& client = clients_[below(clients_.size())];
    client.generation.cancel();
    client.cancelled = true;
  }
  void leave() {
    if (!clients_.empty()) remove(below(clients_.size()));
  }
  void reload() {
    if (kept_.empty()) return;
    Kept& kept = kept_[below(kept_.size())];
    ASSERT_TRUE(engine_->save_state(kept.state, path_));
    auto loaded = engine_->load_state(path_);
    if (loaded)
      kept.state = *loaded;
    else
      expect_starved(loaded.error());
  }
  void drop() {
    if (!kept_.empty()) kept_.erase(kept_.begin() + static_cast<ptrdiff_t>(below(kept_.size())));
  }
  void remove(size_t at) { clients_.erase(clients_.begin() + static_cast<ptrdiff_t>(at)); }
  void expect_starved(const Error& error) {
    EXPECT_EQ(error.code, Errc::kOutOfMemory) << error.message();
    ++starved_;
  }
  bool take(size_t at);
  void check_end(const Client& client, Event& last);

  std::mt19937_64 random_;
  std::string path_;
  Plain plain_{};
  std::unique_ptr<Engine> engine_;
  std::vector<Client> clients_{};
  std::vector<Kept> kept_{};
  int whole_texts_ = 0, starved_ = 0;
};

/// The next event of a client; false after its last one.
bool Machine::take(size_t at) {
  Client& client = clients_[at];
  Event event = client.generation.next();
  if (event.kind == Event::Kind::kToken) client.tokens.push_back(event.token);
  if (event.kind != Event::Kind::kFinished) return true;
  check_end(client, event);
  remove(at);
  return false;
}

void Machine::check_end(const Client& client, Event& last) {
  const std::vector<int32_t>& text = plain_.text(client.story);
  const bool prefix = client.tokens.size() <= text.size() &&
                      std::equal(client.tokens.begin(), client.tokens.end(), text.begin());
  EXPECT_TRUE(prefix);
  if (last.reason == FinishReason::kError) return expect_starved(*last.error);
  if (last.reason == FinishReason::kCancelled) {
    EXPECT_TRUE(client.cancelled);
    return;
  }
  EXPECT_EQ(client.tokens.size(), text.size());
  ++whole_texts_;
  if (last.state && !client.story.continued && kept_.size() < kMostStates)
    kept_.push_back({.state = last.state, .story = client.story});
}

void Machine::finish() {
  while (!clients_.empty()) take(0);
  kept_.clear();
  // Whoever left is dropped in a round; one more request sees the end of it.
  const Story last{.prompt = 1, .tokens = 1};
  EXPECT_EQ(run(*engine_, opening_of(last)).tokens, plain_.text(last));
  while (engine_->stats().running + engine_->stats().queued > 0) std::this_thread::yield();
  EXPECT_EQ(engine_->stats().pages_used, 0U);
  std::filesystem::remove(path_);
}

}  // namespace

void run_engine_machine(uint64_t seed, int steps, RoundDriver rounds) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Machine machine(seed, rounds);
  for (int step = 0; step < steps; ++step) {
    machine.step();
    ASSERT_FALSE(testing::Test::HasFailure()) << "step " << step;
  }
  machine.finish();
  std::printf("seed %llu: %d whole texts, %d requests without pages\n",
              static_cast<unsigned long long>(seed), machine.whole_texts(), machine.starved());
  EXPECT_GT(machine.whole_texts(), steps / 40);
}

}  // namespace tessera::test
