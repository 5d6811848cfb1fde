// SPDX-License-Identifier: Apache-2.0
// Accounts for every tensor of a checkpoint and identifies its content.
#include "model/weight_report.h"

#include <xxhash.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "core/parallel.h"

namespace tessera {
namespace {

struct IgnoredGroup {
  const char* name;
  const char* reason;
  bool (*matches)(std::string_view tensor);
};

/// Whether a dot-separated component starts with `start`.
bool has_component(std::string_view tensor, std::string_view start) {
  return tensor.starts_with(start) || tensor.find("." + std::string(start)) != tensor.npos;
}

constexpr std::array kIgnoredGroups = {
    IgnoredGroup{"model.visual.*", "vision tower, not used for text",
                 [](std::string_view name) { return name.starts_with("model.visual."); }},
    IgnoredGroup{"*.rotary_emb.*", "rotary tables, derived from config.json",
                 [](std::string_view name) { return has_component(name, "rotary_emb."); }},
    IgnoredGroup{"*.token_lookup*", "helper of other engines, derived from config.json",
                 [](std::string_view name) { return has_component(name, "token_lookup"); }},
    IgnoredGroup{"*.hashstats_*", "training statistics",
                 [](std::string_view name) { return has_component(name, "hashstats_"); }},
    IgnoredGroup{"lm_head.weight", "tied to the embedding",
                 [](std::string_view name) { return name == "lm_head.weight"; }},
};

constexpr size_t kFiniteBytes = 64;
constexpr size_t kFiniteStride = size_t{16} << 20;

struct StateFree {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  void add(const void* data, size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  template <class T>
  void add_value(const T& value) {
    add(&value, sizeof(value));
  }
  uint64_t digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, StateFree> state_;
};

bool is_finite(const std::byte* element, DType dtype) {
  uint16_t half = 0;
  float single = 0;
  switch (dtype) {
    case DType::kF8E4M3: return std::isfinite(f8e4m3_to_float(std::to_integer<uint8_t>(*element)));
    case DType::kBF16:
      std::memcpy(&half, element, sizeof(half));
      return std::isfinite(bf16_to_float(half));
    case DType::kF16:
      std::memcpy(&half, element, sizeof(half));
      return std::isfinite(f16_to_float(half));
    case DType::kF32: std::memcpy(&single, element, sizeof(single)); return std::isfinite(single);
    default: return true;
  }
}

bool all_finite(const std::byte* data, size_t bytes, DType dtype) {
  const size_t step = dtype_bytes(dtype);
  for (size_t offset = 0; offset + step <= bytes; offset += step) {
    if (!is_finite(data + offset, dtype)) return false;
  }
  return true;
}

/// Start, end, and one window each stride between: damage is rarely confined to one small spot.
std::vector<size_t> sample_offsets(size_t bytes, size_t window, size_t stride) {
  if (bytes <= window) return {0};
  std::vector<size_t> offsets;
  for (size_t offset = 0; offset + window < bytes; offset += stride) offsets.push_back(offset);
  offsets.push_back(bytes - window);
  return offsets;
}

uint64_t hash_bytes(const TensorRef& tensor, bool whole) {
  if (whole) return XXH3_64bits(tensor.data, tensor.bytes);
  Hasher hasher;
  for (const size_t offset : sample_offsets(tensor.bytes, kWindowBytes, kWindowStride)) {
    hasher.add(tensor.data + offset, std::min<size_t>(kWindowBytes, tensor.bytes - offset));
  }
  return hasher.digest();
}

/// One hash per tensor, in the order of the map: threads share the work, not the result.
std::vector<uint64_t> hash_tensors(const TensorMap& tensors) {
  std::vector<const TensorRef*> refs;
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    refs.push_back(&tensor);
    bytes += tensor.bytes;
  }
  std::vector<uint64_t> hashes(refs.size());
  const bool whole = bytes <= kWholeHashBytes;
  parallel_for_dynamic(static_cast<int64_t>(refs.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (auto index = static_cast<size_t>(begin); index < static_cast<size_t>(end); ++index) {
      hashes[index] = hash_bytes(*refs[index], whole);
    }
  });
  return hashes;
}

Result<void> check_finite_samples(const std::string& name, const TensorRef& tensor) {
  for (const size_t offset : sample_offsets(tensor.bytes, kFiniteBytes, kFiniteStride)) {
    const size_t count = std::min<size_t>(kFiniteBytes, tensor.bytes - offset);
    if (all_finite(tensor.data + offset, count, tensor.dtype)) continue;
    return fail({.code = Errc::kNumerics,
                 .what = "weights are not finite",
                 .where = tensor.file + ": " + name,
                 .found = "NaN or infinity near byte " + std::to_string(offset) + " of " +
                          tensor.describe(),
                 .hint = "the file is damaged"});
  }
  return {};
}

bool holds_fp8(const WeightBinder& binder) {
  for (int part = 0; part < kNumWeightParts; ++part) {
    if (binder.types(static_cast<WeightPart>(part)).contains(DType::kF8E4M3)) return true;
  }
  return false;
}

std::string family(const std::set<DType>& types) {
  std::string text;
  for (const DType dtype : types) {
    if (!text.empty()) text += "/";
    text += dtype == DType::kF8E4M3 ? "FP8" : dtype_name(dtype);
  }
  return text;
}

}  // namespace

Result<std::vector<std::string>> name_ignored(const Checkpoint& checkpoint,
                                              const WeightBinder& binder) {
  std::array<int, kIgnoredGroups.size()> counts{};
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (binder.used(name)) continue;
    const auto* group =
        std::find_if(kIgnoredGroups.begin(), kIgnoredGroups.end(),
                     [&name](const IgnoredGroup& candidate) { return candidate.matches(name); });
    if (group == kIgnoredGroups.end()) {
      return fail({.code = Errc::kUnsupported,
                   .what = "unknown tensor",
                   .where = tensor.file + ": " + name,
                   .found = tensor.describe(),
                   .hint = "no part of the model reads it: another layout or quantisation?"});
    }
    ++counts[static_cast<size_t>(group - kIgnoredGroups.begin())];
  }
  std::vector<std::string> ignored;
  for (size_t index = 0; index < kIgnoredGroups.size(); ++index) {
    if (counts[index] == 0) continue;
    ignored.push_back(std::string(kIgnoredGroups[index].name) + " (" +
                      std::to_string(counts[index]) + "): " + kIgnoredGroups[index].reason);
  }
  return ignored;
}

std::string describe_layout(const Checkpoint& checkpoint, const ModelWeights& weights,
                            const WeightBinder& binder) {
  const std::set<DType>& experts = binder.types(WeightPart::kRoutedExperts);
  std::string text = family(experts) + " experts";
  if (experts.contains(DType::kF8E4M3)) {
    const std::string block = std::to_string(ops::kScaleBlock);
    text += " (" + block + "x" + block + " blocks)";
  }
  if (!weights.ple.empty()) {
    text += ", " + family(binder.types(WeightPart::kNgramTable)) + " n-gram table";
  }
  const bool fused = std::any_of(
      checkpoint.tensors.begin(), checkpoint.tensors.end(), [&binder](const auto& entry) {
        return entry.first.ends_with(".experts.gate_up_proj") && binder.used(entry.first);
      });
  return text + (fused ? ", fused expert tensors" : ", per-expert tensors");
}

Result<void> check_quantization(const ModelConfig& config, const Checkpoint& checkpoint,
                                const WeightBinder& binder) {
  const bool declared = config.quant == QuantMethod::kFp8Block;
  const bool stored = holds_fp8(binder);
  if (declared == stored) return {};
  return fail({.code = Errc::kMismatch,
               .what = "declared and stored quantisation differ",
               .where = checkpoint.dir,
               .expected = declared ? "F8_E4M3 tensors (quantization_config says fp8)"
                                    : "no F8_E4M3 tensors (there is no quantization_config)",
               .found = declared ? "none" : "F8_E4M3 tensors",
               .hint = "config.json and the weights belong to different releases"});
}

Result<void> check_types(const ModelConfig& config, const Checkpoint& checkpoint,
                         const WeightBinder& binder) {
  const auto is_half = [](DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; };
  if (!config.dtype || !is_half(*config.dtype)) return {};
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (!binder.used(name) || !is_half(tensor.dtype) || tensor.dtype == *config.dtype) continue;
    return fail({.code = Errc::kMismatch,
                 .what = "declared and stored element types differ",
                 .where = tensor.file + ": " + name,
                 .expected = std::string(dtype_name(*config.dtype)) + " (dtype of config.json)",
                 .found = tensor.describe(),
                 .hint = "convert the weights, or correct dtype if they are what they say"});
  }
  return {};
}

Result<void> check_tied_head(const TensorRef& embedding, const TensorRef& head) {
  const bool same = embedding.dtype == head.dtype && embedding.shape == head.shape;
  const bool whole = embedding.bytes <= kWholeHashBytes;
  if (same && hash_bytes(embedding, whole) == hash_bytes(head, whole)) return {};
  return fail({.code = Errc::kMismatch,
               .what = "tied embeddings, but a head of its own",
               .where = head.file + ": lm_head.weight",
               .expected = "the embedding again, " + embedding.describe() +
                           " (tie_word_embeddings is true), or no such tensor",
               .found = same ? "other values" : head.describe(),
               .hint = "set tie_word_embeddings to false if the head was trained apart"});
}

Result<uint64_t> fingerprint(const ModelConfig& config, const Checkpoint& checkpoint) {
  Hasher hasher;
  hasher.add_value(config.text_hash);
  const std::vector<uint64_t> hashes = hash_tensors(checkpoint.tensors);
  auto hash = hashes.begin();
  for (const auto& [name, tensor] : checkpoint.tensors) {
    hasher.add_value(name.size());
    hasher.add(name.data(), name.size());
    hasher.add_value(tensor.dtype);
    hasher.add_value(tensor.shape.size());
    hasher.add(tensor.shape.data(), tensor.shape.size() * sizeof(int64_t));
    hasher.add_value(*hash++);
    if (Result<void> finite = check_finite_samples(name, tensor); !finite) {
      return fail(std::move(finite.error()));
    }
  }
  return hasher.digest();
}

}  // namespace tessera
