// SPDX-License-Identifier: Apache-2.0
// quantization_config: only the FP8 block format of the release is known; other names are refused.
#include <algorithm>
#include <array>

#include "model/config_parts.h"
#include "ops/weight.h"

namespace tessera {
namespace {

/// The last four say which modules are stored how, or ask for a conversion while loading; the
/// tensors themselves answer the first, and reading FP8 directly gives the numbers of the second.
constexpr std::array kKnownKeys = {"quant_method",
                                   "activation_scheme",
                                   "fmt",
                                   "scale_fmt",
                                   "weight_per_tensor",
                                   "act_per_tensor",
                                   "weight_block_size",
                                   "modules_to_not_convert",
                                   "ignored_layers",
                                   "modules_to_convert",
                                   "dequantize"};

/// Other names under which tools declare a quantisation.
constexpr std::array kForeignKeys = {"compression_config", "quantization", "quant_config"};

constexpr const char* kSupported = "quant_method fp8 in quantization_config at the top level";

std::string block_text(const std::vector<int64_t>& block) {
  if (block.empty()) return "no weight_block_size";
  std::string text = "[";
  for (const int64_t size : block) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(size);
  }
  return text + "]";
}

void check_fp8(const ConfigFields& quant) {
  constexpr int64_t kMaxBlock = 1 << 20;
  const std::string scheme = quant.text("activation_scheme", "dynamic");
  quant.support(scheme == "dynamic", "activation_scheme", "dynamic", scheme);
  const std::string format = quant.text("fmt", "e4m3");
  quant.support(format == "e4m3", "fmt", "e4m3", format);
  const std::string scale_format = quant.text("scale_fmt", "float");
  quant.support(scale_format == "float", "scale_fmt", "float, or no such key", scale_format);
  for (const char* key : {"weight_per_tensor", "act_per_tensor"}) {
    quant.support(!quant.boolean(key, false), key, "false", "true");
  }
  const std::vector<int64_t> block = quant.integers("weight_block_size", {0, kMaxBlock});
  const std::vector<int64_t> known = {ops::kScaleBlock, ops::kScaleBlock};
  quant.support(block == known, "weight_block_size", block_text(known), block_text(block));
  std::string supported;
  for (const char* key : kKnownKeys)
    supported += (supported.empty() ? "" : ", ") + std::string(key);
  for (const std::string& key : quant.keys()) {
    const bool is_known = std::find(kKnownKeys.begin(), kKnownKeys.end(), key) != kKnownKeys.end();
    quant.support(is_known, key, "one of the keys " + supported, "an unknown key");
  }
}

QuantMethod read_holder(const ConfigFields& holder) {
  for (const char* key : kForeignKeys) {
    holder.support(!holder.has(key), key, kSupported, key);
  }
  const std::optional<ConfigFields> quant = holder.child("quantization_config");
  if (!quant) return QuantMethod::kNone;
  const std::string method = quant->text("quant_method", "");
  std::string found = method.empty() ? "no quant_method" : method;
  if (quant->has("quant_algo")) found += ", quant_algo " + quant->text("quant_algo", "");
  quant->support(method == "fp8" && !quant->has("quant_algo"), "quant_method", "fp8", found);
  check_fp8(*quant);
  return QuantMethod::kFp8Block;
}

}  // namespace

QuantMethod read_quantization(const ConfigFields& root, const ConfigFields& text, bool text_only) {
  const QuantMethod method = read_holder(root);
  if (!text_only) {
    text.support(read_holder(text) == QuantMethod::kNone, "quantization_config", kSupported,
                 "one inside text_config");
  }
  return method;
}

}  // namespace tessera
