// SPDX-License-Identifier: Apache-2.0
// What a client asks of the engine, and the events it gets back. Token ids in, token ids out.
#pragma once

#include <tessera/error.h>
#include <tessera/sampling.h>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace tessera {

/// Frozen state of a sequence after an exact number of tokens; opaque, shareable, thread-safe to
/// hold.
class StateSnapshot;
using StateHandle = std::shared_ptr<const StateSnapshot>;

/// Let the engine choose how many tokens to draft.
inline constexpr int kDraftAuto = -1;

struct Request {
  std::vector<int32_t> prompt{};  // at least one id, all below the vocabulary size
  SamplingParams sampling{};
  int max_tokens = 256;             // generated tokens at most; 0: until the context is full
  std::vector<int32_t> stop_ids{};  // in addition to the end-of-text ids of the model
  bool ignore_eos = false;          // go on through end-of-text ids (benches)
  int top_logprobs = -1;            // -1: none, 0: of the sampled token, n: and the n best
  bool prompt_logprobs = false;     // log-probability of each prompt token (evaluation)
  StateHandle resume_from{};        // its tokens must be a proper prefix of `prompt`
  /// Tokens that the draft layer proposes a round, at most EngineOptions::max_draft; kDraftAuto:
  /// none where the model has no draft layer. The text is the same for every value.
  int draft = kDraftAuto;
  bool keep_state = false;  // hand the final state back in the last event
};

enum class FinishReason { kStop, kLength, kCancelled, kError };

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.0F;  // natural log, of the raw softmax (before temperature and filters)
};

/// What became of drafted tokens, by their place in the round.
struct DraftUsage {
  int rounds = 0;               // that verified drafts
  std::vector<int> proposed{};  // rounds that had a draft at the place
  std::vector<int> accepted{};  // of those, rounds that took it

  void count(int num_proposed, int num_accepted);
  /// Tokens a verified round brought: the accepted drafts and the one that follows them.
  double mean_length() const;
};

/// Sums over the rounds in which a request decoded: they serve every sequence that is decoding, and
/// the sums count all of them. What decode_seconds holds beside the two times is acceptance,
/// delivery, bookkeeping, and prompts that others brought meanwhile.
struct RoundUsage {
  int rounds = 0;
  int tokens = 0;             // that the rounds delivered
  double verify_seconds = 0;  // launches of the trunk, with the draws from their rows
  double draft_seconds = 0;   // of the draft layer: rows of delivered tokens, and drafts

  RoundUsage& operator+=(const RoundUsage& other);
};

struct Usage {
  int prompt_tokens = 0;
  int cached_tokens = 0;  // prompt tokens whose state came from `resume_from`
  int completion_tokens = 0;
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  DraftUsage drafts{};
  RoundUsage rounds{};
};

struct Event {
  enum class Kind {
    kPrefill,   // progress: `prefilled` of the prompt tokens have been absorbed
    kToken,     // one generated token
    kFinished,  // last event; `reason`, `usage`, and `error` when reason is kError
  };
  Kind kind = Kind::kToken;
  int prefilled = 0;
  int32_t token = -1;
  float logprob = 0.0F;                  // kToken, when top_logprobs >= 0
  std::vector<TokenLogprob> top{};       // kToken, when top_logprobs > 0; best first
  std::vector<float> prompt_logprobs{};  // kFinished: [prompt_tokens - 1], token i + 1 given 0..i
  FinishReason reason = FinishReason::kStop;
  Usage usage{};
  StateHandle state{};  // kFinished, when keep_state
  std::optional<Error> error{};
};

}  // namespace tessera
