// SPDX-License-Identifier: Apache-2.0
// Rotary frequencies and axes from rope_parameters, with YaRN as the reference library defines it.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/config_parts.h"

namespace tessera {
namespace {

constexpr double kMinTheta = 2.0;
constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 4096.0;
constexpr double kDefaultPartial = 0.25;
constexpr int64_t kMaxPositions = int64_t{1} << 27;
constexpr int kNumAxes = 3;
constexpr const char* kPlain = "default";
constexpr const char* kYarn = "yarn";

/// The objects that may hold a rotary key, most specific first.
class RopeKeys {
 public:
  explicit RopeKeys(const ConfigFields& text) {
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
      if (auto object = text.child(name)) objects_.push_back(*object);
    }
    if (objects_.size() == 2) require_agreement(objects_.front(), objects_.back());
    objects_.push_back(text);
  }
  const ConfigFields& holder(std::string_view key) const {
    for (const ConfigFields& object : objects_) {
      if (object.has(key)) return object;
    }
    return objects_.front();
  }
  /// The scheme by the most specific object that names one, under either spelling.
  std::string type() const {
    for (const ConfigFields& object : objects_) {
      for (const char* key : {"rope_type", "type"}) {
        if (!object.has(key)) continue;
        const std::string name = object.text(key, kPlain);
        object.support(name == kYarn || name == kPlain || name == "mrope", key, "default or yarn",
                       name);
        return name;
      }
    }
    return kPlain;
  }

 private:
  static std::string own_type(const ConfigFields& object, std::string_view fallback) {
    const std::string name = object.text("rope_type", object.text("type", fallback));
    return name == "mrope" ? kPlain : name;  // an older name of the same scheme
  }
  /// Readers differ in which of the two they prefer, so only equal values have one meaning.
  static void require_agreement(const ConfigFields& scaling, const ConfigFields& parameters) {
    const std::string found = own_type(scaling, own_type(parameters, kPlain));
    const std::string expected = own_type(parameters, found);
    scaling.require(found == expected, "rope_type", expected + " as in rope_parameters", found);
    for (const std::string& key : scaling.keys()) {
      if (key == "rope_type" || key == "type") continue;
      scaling.require(scaling.agrees(key, parameters), key, "the value of rope_parameters",
                      "another value");
    }
  }

  std::vector<ConfigFields> objects_{};
};

struct Yarn {
  double factor = 1;
  double original_positions = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;
  double attention_factor = 1;
};

double attention_growth(double factor, double mscale) {
  constexpr double kSlope = 0.1;
  return factor <= 1 ? 1.0 : kSlope * mscale * std::log(factor) + 1.0;
}

Yarn read_yarn(const RopeKeys& keys, int max_positions) {
  constexpr double kMaxBeta = 1e6;
  constexpr double kMinPositive = 1e-6;
  Yarn yarn;
  yarn.original_positions =
      keys.holder("original_max_position_embeddings")
          .number("original_max_position_embeddings", 1, kMaxPositions, max_positions);
  // A factor derived from two context lengths would be a guess at which of them was edited.
  yarn.factor = keys.holder("factor").number("factor", 1, kMaxFactor);
  yarn.beta_fast =
      keys.holder("beta_fast").number("beta_fast", kMinPositive, kMaxBeta, yarn.beta_fast);
  yarn.beta_slow =
      keys.holder("beta_slow").number("beta_slow", kMinPositive, kMaxBeta, yarn.beta_slow);
  yarn.truncate = keys.holder("truncate").boolean("truncate", true);
  const double mscale = keys.holder("mscale").number("mscale", 0, kMaxFactor, 0);
  const double mscale_all =
      keys.holder("mscale_all_dim").number("mscale_all_dim", 0, kMaxFactor, 0);
  const double derived =
      mscale != 0 && mscale_all != 0
          ? attention_growth(yarn.factor, mscale) / attention_growth(yarn.factor, mscale_all)
          : attention_growth(yarn.factor, 1.0);
  yarn.attention_factor =
      keys.holder("attention_factor").number("attention_factor", kMinPositive, kMaxFactor, derived);
  return yarn;
}

/// Index of the frequency that turns `rotations` times over the original context.
double correction_dim(const Yarn& yarn, double rotations, int rotary_dim, double theta) {
  return rotary_dim * std::log(yarn.original_positions / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

void stretch(const Yarn& yarn, int rotary_dim, double theta, std::vector<float>& inv_freq) {
  constexpr double kWidthOfStep = 0.001;  // keeps the ramp finite when both ends meet
  double low = correction_dim(yarn, yarn.beta_fast, rotary_dim, theta);
  double high = correction_dim(yarn, yarn.beta_slow, rotary_dim, theta);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, rotary_dim - 1.0);
  if (low == high) high += kWidthOfStep;
  for (size_t index = 0; index < inv_freq.size(); ++index) {
    const double ramp = std::clamp((static_cast<double>(index) - low) / (high - low), 0.0, 1.0);
    const double kept = inv_freq[index];
    inv_freq[index] = static_cast<float>(kept / yarn.factor * ramp + kept * (1.0 - ramp));
  }
}

/// In the FP32 steps of the reference library: at long contexts the last bit of a frequency counts.
std::vector<float> plain_frequencies(int rotary_dim, double theta) {
  std::vector<float> inv_freq;
  for (int dim = 0; dim < rotary_dim; dim += 2) {
    const float exponent = static_cast<float>(dim) / static_cast<float>(rotary_dim);
    inv_freq.push_back(1.0F / static_cast<float>(std::pow(theta, exponent)));
  }
  return inv_freq;
}

/// Interleaved axes: frequencies 1, 4, 7, ... follow h and 2, 5, 8, ... follow w, each as often as
/// its section says; the rest follow t.
std::vector<int32_t> interleaved_axes(size_t count, const std::vector<int64_t>& sections) {
  std::vector<int32_t> axes(count, 0);
  if (sections.empty()) return axes;
  for (size_t index = 0; index < count; ++index) {
    const size_t axis = index % kNumAxes;
    const auto bound = static_cast<size_t>(sections[axis]) * kNumAxes;
    if (axis != 0 && index < bound) axes[index] = static_cast<int32_t>(axis);
  }
  return axes;
}

std::vector<int64_t> read_sections(const RopeKeys& keys, int64_t num_frequencies) {
  const ConfigFields& holder = keys.holder("mrope_section");
  std::vector<int64_t> sections = holder.integers("mrope_section", {0, num_frequencies});
  if (sections.empty()) {
    const std::vector<int64_t> released = {11, 11, 10};
    int64_t sum = 0;
    for (const int64_t section : released) sum += section;
    return sum == num_frequencies ? released : sections;
  }
  int64_t sum = 0;
  for (const int64_t section : sections) sum += section;
  const bool valid = sections.size() == kNumAxes && sum == num_frequencies;
  holder.require(valid, "mrope_section",
                 "three sections that sum to " + std::to_string(num_frequencies),
                 std::to_string(sections.size()) + " sections, sum " + std::to_string(sum));
  return valid ? sections : std::vector<int64_t>{};
}

int read_rotary_dim(const RopeKeys& keys, const ConfigFields& text, const ops::QsaShape& qsa) {
  constexpr double kMinPartial = 1e-3;
  const double partial = keys.holder("partial_rotary_factor")
                             .number("partial_rotary_factor", kMinPartial, 1, kDefaultPartial);
  if (text.has("partial_rotary_factor")) {
    text.require(text.number("partial_rotary_factor", 0, 1) == partial, "partial_rotary_factor",
                 "the value of rope_parameters", "another value");
  }
  const int rotary_dim = static_cast<int>(qsa.head_dim * partial);
  const bool valid = rotary_dim >= 2 && rotary_dim % 2 == 0 && rotary_dim <= qsa.index_dim;
  keys.holder("partial_rotary_factor")
      .require(valid, "partial_rotary_factor",
               "an even number of rotary dims, from 2 to indexer_head_dim",
               std::to_string(rotary_dim) + " of " + std::to_string(qsa.head_dim));
  return valid ? rotary_dim : 2;
}

}  // namespace

void read_rope(const ConfigFields& text, ModelConfig& config) {
  const RopeKeys keys(text);
  const bool is_yarn = keys.type() == kYarn;
  keys.holder("mrope_interleaved")
      .support(keys.holder("mrope_interleaved").boolean("mrope_interleaved", true),
               "mrope_interleaved", "true", "false");

  const double theta = keys.holder("rope_theta").number("rope_theta", kMinTheta, kMaxTheta);
  config.qsa.rotary_dim = read_rotary_dim(keys, text, config.qsa);
  config.rope.inv_freq = plain_frequencies(config.qsa.rotary_dim, theta);
  const size_t num_frequencies = config.rope.inv_freq.size();
  config.rope.axis =
      interleaved_axes(num_frequencies, read_sections(keys, static_cast<int64_t>(num_frequencies)));
  if (!is_yarn) return;

  const Yarn yarn = read_yarn(keys, config.max_positions);
  stretch(yarn, config.qsa.rotary_dim, theta, config.rope.inv_freq);
  config.rope.attention_scale = static_cast<float>(yarn.attention_factor);
  const auto stretched = static_cast<int64_t>(yarn.original_positions * yarn.factor);
  config.max_positions =
      static_cast<int>(std::clamp(stretched, int64_t{config.max_positions}, kMaxPositions));
}

}  // namespace tessera
