// SPDX-License-Identifier: Apache-2.0
// generation_config.json: the sampling settings and end-of-text ids that the model's authors chose.
#include <filesystem>
#include <limits>
#include <system_error>

#include "core/log.h"
#include "io/json_reader.h"
#include "io/mapped_file.h"
#include "model/config.h"
#include "model/config_fields.h"

namespace tessera {
namespace {

constexpr size_t kMaxFileBytes = 1U << 20;
constexpr IntRange kTokenId = {0, std::numeric_limits<int32_t>::max()};
constexpr double kMaxFloat = std::numeric_limits<float>::max();

/// Any float: the ranges are those of SamplingParams::validate.
float real(const ConfigFields& fields, std::string_view key, float fallback) {
  return static_cast<float>(fields.number(key, -kMaxFloat, kMaxFloat, double{fallback}));
}

/// The ranges of a request hold for defaults too: else every request that leaves them alone fails.
Result<void> check_sampling(const SamplingParams& sampling, const std::string& where) {
  constexpr int kNoVocabulary = 0;  // no file sets a bias
  Result<void> valid = sampling.validate(kNoVocabulary);
  if (valid) return {};
  Error error = std::move(valid.error());
  error.code = Errc::kCorruptFile;
  error.where = where + ": " + error.where;
  return fail(std::move(error));
}

/// Files without do_sample still mean sampling when they set one of its knobs; none of them:
/// greedy.
bool wants_sampling(const ConfigFields& fields) {
  const bool has_knobs = fields.has("temperature") || fields.has("top_k") || fields.has("top_p");
  return fields.boolean("do_sample", has_knobs);
}

SamplingParams read_sampling(const ConfigFields& fields) {
  SamplingParams sampling;
  sampling.temperature = real(fields, "temperature", sampling.temperature);
  sampling.top_k = fields.size("top_k", {0, kTokenId.high}, sampling.top_k);
  sampling.top_p = real(fields, "top_p", sampling.top_p);
  sampling.min_p = real(fields, "min_p", sampling.min_p);
  sampling.repetition_penalty = real(fields, "repetition_penalty", sampling.repetition_penalty);
  sampling.presence_penalty = real(fields, "presence_penalty", sampling.presence_penalty);
  sampling.frequency_penalty = real(fields, "frequency_penalty", sampling.frequency_penalty);
  return sampling;
}

Result<void> check_ids(const GenerationDefaults& defaults, int vocab_size,
                       const std::string& where) {
  std::vector<int32_t> ids = defaults.eos_token_ids;
  ids.push_back(defaults.bos_token_id);
  ids.push_back(defaults.pad_token_id);
  for (const int32_t id : ids) {
    if (id >= vocab_size) {
      return fail({.code = Errc::kMismatch,
                   .what = "token id outside the vocabulary",
                   .where = where,
                   .expected = "below " + std::to_string(vocab_size),
                   .found = std::to_string(id),
                   .hint = "generation_config.json belongs to another model"});
    }
  }
  return {};
}

}  // namespace

Result<GenerationDefaults> parse_generation_config(std::string_view json,
                                                   const std::string& where) {
  const Result<boost::json::value> parsed = parse_json(json, where);
  if (!parsed) return fail(parsed.error());
  const boost::json::object* object = parsed->if_object();
  if (object == nullptr) {
    return fail({.code = Errc::kCorruptFile,
                 .what = "bad generation settings",
                 .where = where,
                 .expected = "a JSON object"});
  }
  FirstError error;
  const ConfigFields fields(*object, where + ": ", error);
  GenerationDefaults defaults;
  for (const char* key : {"max_new_tokens", "max_length"}) {
    if (!fields.has(key)) continue;
    log_message(LogLevel::kWarning, where + ": " + key + " is ignored, requests set their length");
  }
  defaults.sampling = read_sampling(fields);
  const bool sampled = wants_sampling(fields);
  for (const int64_t id : fields.one_or_more("eos_token_id", kTokenId)) {
    defaults.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  defaults.bos_token_id = fields.size("bos_token_id", kTokenId, defaults.bos_token_id);
  defaults.pad_token_id = fields.size("pad_token_id", kTokenId, defaults.pad_token_id);
  if (error) return fail(error.get());
  if (Result<void> valid = check_sampling(defaults.sampling, where); !valid)
    return fail(std::move(valid.error()));
  if (!sampled) defaults.sampling.temperature = 0;
  return defaults;
}

Result<GenerationDefaults> load_generation_config(const std::string& model_dir,
                                                  const ModelConfig& config) {
  const std::string path = model_dir + "/generation_config.json";
  GenerationDefaults defaults;
  defaults.sampling.temperature = 0;
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    const Result<std::string> text = read_text_file(path, kMaxFileBytes);
    if (!text) return fail(text.error());
    Result<GenerationDefaults> parsed = parse_generation_config(*text, path);
    if (!parsed) return parsed;
    defaults = std::move(*parsed);
  }
  if (defaults.eos_token_ids.empty() && config.ple.hash_eos >= 0) {
    defaults.eos_token_ids.push_back(config.ple.hash_eos);
  }
  if (Result<void> ids = check_ids(defaults, config.vocab_size, path); !ids) {
    return fail(std::move(ids.error()));
  }
  return defaults;
}

}  // namespace tessera
