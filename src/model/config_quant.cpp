// SPDX-License-Identifier: Apache-2.0
// quantization_config: only the FP8 block format of the release is known; other names are refused.
#include "model/config_parts.h"
#include "ops/weight.h"

namespace tessera {
namespace {

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
  for (const char* key : {"weight_per_tensor", "act_per_tensor"}) {
    quant.support(!quant.boolean(key, false), key, "false", "true");
  }
  const std::vector<int64_t> block = quant.integers("weight_block_size", {0, kMaxBlock});
  const std::vector<int64_t> known = {ops::kScaleBlock, ops::kScaleBlock};
  quant.support(block == known, "weight_block_size", block_text(known), block_text(block));
}

}  // namespace

QuantMethod read_quantization(const ConfigFields& root, const ConfigFields& text) {
  for (const ConfigFields& holder : {root, text}) {
    holder.support(!holder.has("compression_config"), "compression_config",
                   "a quantization_config with quant_method fp8", "compression_config");
    const std::optional<ConfigFields> quant = holder.child("quantization_config");
    if (!quant) continue;
    const std::string method = quant->text("quant_method", "");
    std::string found = method.empty() ? "no quant_method" : method;
    if (quant->has("quant_algo")) found += ", quant_algo " + quant->text("quant_algo", "");
    quant->support(method == "fp8" && !quant->has("quant_algo"), "quant_method", "fp8", found);
    check_fp8(*quant);
    return QuantMethod::kFp8Block;
  }
  return QuantMethod::kNone;
}

}  // namespace tessera
