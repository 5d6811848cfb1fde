// SPDX-License-Identifier: Apache-2.0
// Range checks of the sampling settings that a client sends or generation_config.json sets.
#include <tessera/sampling.h>
#include <cmath>
#include <string>

namespace tessera {
namespace {

constexpr float kMaxTemperature = 100.0F;
constexpr float kMaxPenalty = 2.0F;
constexpr float kMaxRepetition = 100.0F;

struct Range {
  const char* name;
  float value;
  float least;
  float most;
  bool open_below;  // `least` itself is refused
};

Result<void> check(const Range& range) {
  const bool above = range.open_below ? range.value > range.least : range.value >= range.least;
  // NaN fails both comparisons.
  if (above && range.value <= range.most) return {};
  return fail({.code = Errc::kInvalidArgument,
               .what = "sampling setting out of range",
               .where = range.name,
               .expected = (range.open_below ? "(" : "[") + std::to_string(range.least) + ", " +
                           std::to_string(range.most) + "]",
               .found = std::to_string(range.value)});
}

Result<void> check_bias(const SamplingParams& params, int vocab_size) {
  for (const auto& [token, bias] : params.logit_bias) {
    if (token < 0 || token >= vocab_size)
      return fail({.code = Errc::kInvalidArgument,
                   .what = "token id outside the vocabulary",
                   .where = "logit_bias",
                   .expected = "0 to " + std::to_string(vocab_size - 1),
                   .found = std::to_string(token)});
    if (!std::isfinite(bias))
      return fail({.code = Errc::kInvalidArgument,
                   .what = "bias is not a finite number",
                   .where = "logit_bias of token " + std::to_string(token),
                   .found = std::to_string(bias)});
  }
  return {};
}

}  // namespace

Result<void> SamplingParams::validate(int vocab_size) const {
  for (const Range& range :
       {Range{"temperature", temperature, 0.0F, kMaxTemperature, false},
        Range{"top_p", top_p, 0.0F, 1.0F, true}, Range{"min_p", min_p, 0.0F, 1.0F, false},
        Range{"repetition_penalty", repetition_penalty, 0.0F, kMaxRepetition, true},
        Range{"presence_penalty", presence_penalty, -kMaxPenalty, kMaxPenalty, false},
        Range{"frequency_penalty", frequency_penalty, -kMaxPenalty, kMaxPenalty, false}})
    if (Result<void> ok = check(range); !ok) return ok;
  if (top_k < 0)
    return fail({.code = Errc::kInvalidArgument,
                 .what = "sampling setting out of range",
                 .where = "top_k",
                 .expected = "0 (off) or more",
                 .found = std::to_string(top_k)});
  return check_bias(*this, vocab_size);
}

}  // namespace tessera
