// SPDX-License-Identifier: Apache-2.0
// Builds the layouts of the releases out of models/nano.
#include "model_files.h"

#include "config_edit.h"
#include "io/mapped_file.h"

namespace tessera::test {
namespace {

constexpr const char* kNano = "models/nano";
constexpr size_t kMaxConfig = 1 << 20;
constexpr uint8_t kFiniteCodes = 0x7F;  // E4M3 codes below are finite

std::string finite_codes(size_t count) {
  std::string codes(count, '\0');
  for (size_t index = 0; index < count; ++index)
    codes[index] = static_cast<char>(index % kFiniteCodes);
  return codes;
}

/// Same shape, one byte per element.
TensorImage as_fp8(const TensorImage& tensor) {
  constexpr size_t kBf16Bytes = 2;
  return {.dtype = "F8_E4M3",
          .shape = tensor.shape,
          .bytes = finite_codes(tensor.bytes.size() / kBf16Bytes)};
}

void split_experts(CheckpointImage& tensors, const std::string& prefix) {
  const TensorImage gate_up = tensors.at(prefix + "gate_up_proj");
  const TensorImage down = tensors.at(prefix + "down_proj");
  tensors.erase(prefix + "gate_up_proj");
  tensors.erase(prefix + "down_proj");
  const auto count = static_cast<size_t>(gate_up.shape[0]);
  const size_t both_bytes = gate_up.bytes.size() / count;
  const size_t down_bytes = down.bytes.size() / count;
  const std::vector<int64_t> half = {gate_up.shape[1] / 2, gate_up.shape[2]};
  for (size_t expert = 0; expert < count; ++expert) {
    const std::string name = prefix + std::to_string(expert);
    const std::string both = gate_up.bytes.substr(expert * both_bytes, both_bytes);
    tensors[name + ".gate_proj.weight"] = {"BF16", half, both.substr(0, both_bytes / 2)};
    tensors[name + ".up_proj.weight"] = {"BF16", half, both.substr(both_bytes / 2)};
    tensors[name + ".down_proj.weight"] = {
        "BF16", {down.shape[1], down.shape[2]}, down.bytes.substr(expert * down_bytes, down_bytes)};
  }
}

std::vector<std::string> names_with(const CheckpointImage& tensors, std::string_view part) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (name.find(part) != std::string::npos) names.push_back(name);
  }
  return names;
}

}  // namespace

ModelImage nano_image() {
  const auto checkpoint = open_checkpoint(kNano).value();
  return {.config = read_text_file(std::string(kNano) + "/config.json", kMaxConfig).value(),
          .tensors = checkpoint_image(checkpoint->tensors)};
}

ModelImage nano_per_expert() {
  ModelImage image = nano_image();
  const std::string fused = "gate_up_proj";
  for (const std::string& name : names_with(image.tensors, fused)) {
    split_experts(image.tensors, name.substr(0, name.size() - fused.size()));
  }
  return image;
}

ModelImage nano_fp8() {
  ModelImage image = nano_per_expert();
  image.config = with(image.config, "/quantization_config",
                      R"({"quant_method":"fp8","weight_block_size":[128,128]})");
  const uint16_t quarter = float_to_bf16(0.25F);
  for (const std::string& name : names_with(image.tensors, ".mlp.experts.")) {
    image.at(name) = as_fp8(image.at(name));
    image.tensors[name + "_scale_inv"] = tensor_image<uint16_t>("BF16", {1, 1}, {quarter});
  }
  for (const std::string& name : names_with(image.tensors, "ngram_embedding.shard_")) {
    image.at(name) = as_fp8(image.at(name));
    const std::string scale = name.substr(0, name.find("shard_")) + "weight_scale";
    image.tensors[scale] = tensor_image<uint16_t>("BF16", {1}, {quarter});
  }
  return image;
}

Result<ModelWeights> bind_image(const ModelImage& image, size_t shift) {
  const TempDir dir;
  dir.write("config.json", image.config);
  dir.write("model.safetensors", safetensors_bytes(image.tensors, shift));
  const auto config = load_model_config(dir.path());
  if (!config) return fail(config.error());
  auto checkpoint = open_checkpoint(dir.path());
  if (!checkpoint) return fail(checkpoint.error());
  return bind_weights(*config, *checkpoint);  // the map outlives the removed folder
}

std::string bind_failure(const ModelImage& image) {
  const std::string file = safetensors_bytes(image.tensors);
  auto tensors = parse_safetensors(file, "model.safetensors");
  return tensors ? bind_failure(image.config, std::move(*tensors)) : tensors.error().message();
}

std::string bind_failure(const std::string& config, TensorMap tensors) {
  const auto parsed = parse_model_config(config, "config.json");
  if (!parsed) return parsed.error().message();
  const auto checkpoint = std::make_shared<Checkpoint>();
  checkpoint->tensors = std::move(tensors);
  const auto weights = bind_weights(*parsed, checkpoint);
  return weights ? "bound" : weights.error().message();
}

}  // namespace tessera::test
