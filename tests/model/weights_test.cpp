// SPDX-License-Identifier: Apache-2.0
// Every layout of the releases binds, and binds to the same numbers.
#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "config_edit.h"
#include "model/weight_report.h"
#include "model_files.h"

namespace tessera {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kPrefix = "model.language_model.";

std::vector<float> floats(const ops::LinearWeight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.out_features) *
                            static_cast<size_t>(weight.in_features));
  for (size_t index = 0; index < values.size(); ++index) {
    switch (weight.dtype) {
      case DType::kF32: values[index] = static_cast<const float*>(weight.data)[index]; break;
      case DType::kBF16:
        values[index] = bf16_to_float(static_cast<const uint16_t*>(weight.data)[index]);
        break;
      default: values[index] = f8e4m3_to_float(static_cast<const uint8_t*>(weight.data)[index]);
    }
  }
  return values;
}

std::vector<float> as_bf16(const test::TensorImage& tensor) {
  std::vector<float> values;
  for (size_t offset = 0; offset < tensor.bytes.size(); offset += 2) {
    uint16_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + offset, sizeof(bits));
    values.push_back(bf16_to_float(bits));
  }
  return values;
}

TEST(Weights, BindsTheFusedRelease) {
  test::ModelImage image = test::nano_image();
  const auto weights = test::bind_image(image);
  ASSERT_TRUE(weights) << weights.error().message();
  EXPECT_EQ(weights->layout, "BF16 experts, BF16 n-gram table, fused expert tensors");
  EXPECT_EQ(weights->layers.size(), 8U);
  EXPECT_EQ(weights->ple.size(), 2U);
  EXPECT_EQ(weights->layers[3].kind, LayerKind::kQsa);
  EXPECT_EQ(floats(weights->embed),
            as_bf16(image.at(std::string(kPrefix) + "embed_tokens.weight")));
  EXPECT_EQ(floats(weights->lm_head), as_bf16(image.at("lm_head.weight")));

  const std::string layer = std::string(kPrefix) + "layers.3.";
  const LayerWeights& bound = weights->layers[3];
  EXPECT_EQ(floats(bound.qsa.q_gate), as_bf16(image.at(layer + "self_attn.q_proj.weight")));
  const std::vector<float> norm = as_bf16(image.at(layer + "self_attn.k_norm.weight"));
  EXPECT_EQ(std::vector<float>(bound.qsa.k_norm, bound.qsa.k_norm + norm.size()), norm);
  const std::vector<float> conv =
      as_bf16(image.at(std::string(kPrefix) + "layers.1.ple.conv1d.weight"));
  EXPECT_EQ(std::vector<float>(weights->ple[0].conv, weights->ple[0].conv + conv.size()), conv);
  EXPECT_TRUE(bound.attn_mixer.inject);
  EXPECT_FALSE(weights->final_mixer.inject);
}

TEST(Weights, FusedAndSingleExpertsAreTheSameNumbers) {
  const auto fused = test::bind_image(test::nano_image());
  const auto single = test::bind_image(test::nano_per_expert());
  ASSERT_TRUE(fused) << fused.error().message();
  ASSERT_TRUE(single) << single.error().message();
  EXPECT_EQ(single->layout, "BF16 experts, BF16 n-gram table, per-expert tensors");
  for (size_t layer = 0; layer < fused->layers.size(); ++layer) {
    const auto& left = fused->layers[layer].moe.experts;
    const auto& right = single->layers[layer].moe.experts;
    ASSERT_EQ(left.size(), right.size());
    for (size_t expert = 0; expert < left.size(); ++expert) {
      EXPECT_EQ(floats(left[expert].gate), floats(right[expert].gate));
      EXPECT_EQ(floats(left[expert].up), floats(right[expert].up));
      EXPECT_EQ(floats(left[expert].down), floats(right[expert].down));
    }
  }
  EXPECT_NE(fused->fingerprint, single->fingerprint);
}

TEST(Weights, BindsTheFp8Release) {
  const auto weights = test::bind_image(test::nano_fp8());
  ASSERT_TRUE(weights) << weights.error().message();
  EXPECT_EQ(weights->layout, "FP8 experts (128x128 blocks), FP8 n-gram table, per-expert tensors");
  const ops::ExpertWeight& expert = weights->layers[0].moe.experts[5];
  EXPECT_EQ(expert.gate.dtype, DType::kF8E4M3);
  ASSERT_NE(expert.gate.scale, nullptr);
  EXPECT_EQ(*expert.gate.scale, 0.25F);
  EXPECT_EQ(weights->layers[0].moe.shared.gate.scale, nullptr);
  EXPECT_EQ(weights->ple[1].table.dtype, DType::kF8E4M3);
  EXPECT_EQ(weights->ple[1].table.scale, 0.25F);
}

TEST(Weights, Fp8ScalesMayBeFloats) {
  test::ModelImage image = test::nano_fp8();
  const std::string name = std::string(kPrefix) + "layers.0.mlp.experts.0.up_proj.weight_scale_inv";
  image.at(name) = test::tensor_image<float>("F32", {1, 1}, {0.1F});  // no BF16 number
  const auto weights = test::bind_image(image);
  ASSERT_TRUE(weights) << weights.error().message();
  EXPECT_EQ(*weights->layers[0].moe.experts[0].up.scale, 0.1F);
}

TEST(Weights, UnalignedFilesGiveTheSameNumbers) {
  const auto aligned = test::bind_image(test::nano_fp8());
  const auto shifted = test::bind_image(test::nano_fp8(), 1);
  ASSERT_TRUE(aligned) << aligned.error().message();
  ASSERT_TRUE(shifted) << shifted.error().message();
  EXPECT_TRUE(aligned->copied.empty());
  EXPECT_FALSE(shifted->copied.empty());
  EXPECT_EQ(floats(aligned->embed), floats(shifted->embed));
  EXPECT_EQ(floats(aligned->layers[0].gdn.in_qkv), floats(shifted->layers[0].gdn.in_qkv));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(shifted->embed.data) % sizeof(uint16_t), 0U);
  EXPECT_EQ(aligned->fingerprint, shifted->fingerprint);  // same content, another place
}

TEST(Weights, HalfPrecisionBecomesFloat) {
  test::ModelImage image = test::nano_image();
  image.config = test::without(image.config, "", "dtype");  // it says bfloat16
  const uint16_t one_and_a_half = 0x3E00;
  const std::vector<uint16_t> halves(512 * 64, one_and_a_half);
  image.at("lm_head.weight") = test::tensor_image<uint16_t>("F16", {512, 64}, halves);
  const std::string shard = "layers.1.ple.ple_embedding.ngram_embedding.shard_";
  for (int index = 0; index < 4; ++index) {
    image.at(kPrefix + shard + std::to_string(index) + ".weight").dtype = "F16";
    std::string& bytes = image.at(kPrefix + shard + std::to_string(index) + ".weight").bytes;
    for (size_t byte = 1; byte < bytes.size(); byte += 2) bytes[byte] = '\x3c';
  }
  const auto weights = test::bind_image(image);
  ASSERT_TRUE(weights) << weights.error().message();
  EXPECT_EQ(weights->lm_head.dtype, DType::kF32);
  EXPECT_THAT(floats(weights->lm_head), testing::Each(1.5F));
  EXPECT_EQ(weights->ple[0].table.dtype, DType::kF32);
  EXPECT_EQ(weights->ple[1].table.dtype, DType::kBF16);
}

TEST(Weights, TableRowsCrossShards) {
  test::ModelImage image = test::nano_image();
  const auto weights = test::bind_image(image);
  ASSERT_TRUE(weights);
  const ops::NgramTable& table = weights->ple[0].table;
  EXPECT_EQ(table.shards.size(), 4U);
  EXPECT_EQ(table.num_rows, weights->ple[0].hash.num_rows);
  std::string joined;
  for (int index = 0; index < 4; ++index) {
    joined += image
                  .at(std::string(kPrefix) + "layers.1.ple.ple_embedding.ngram_embedding.shard_" +
                      std::to_string(index) + ".weight")
                  .bytes;
  }
  const size_t row_bytes = static_cast<size_t>(table.row_dim) * sizeof(uint16_t);
  for (int64_t row = 0; row < table.num_rows; ++row) {
    EXPECT_EQ(std::memcmp(table.row(row), joined.data() + static_cast<size_t>(row) * row_bytes,
                          row_bytes),
              0)
        << row;
  }
}

TEST(Weights, TiedEmbeddingsNeedNoHead) {
  test::ModelImage image = test::nano_image();
  image.config = test::with(image.config, "/tie_word_embeddings", "true");
  image.config = test::with(image.config, "/text_config/tie_word_embeddings", "true");
  image.at("lm_head.weight") = image.at(std::string(kPrefix) + "embed_tokens.weight");
  const auto redundant = test::bind_image(image);
  ASSERT_TRUE(redundant) << redundant.error().message();
  EXPECT_THAT(redundant->ignored, Contains("lm_head.weight (1): tied to the embedding"));
  image.tensors.erase("lm_head.weight");
  const auto weights = test::bind_image(image);
  ASSERT_TRUE(weights) << weights.error().message();
  EXPECT_EQ(weights->lm_head.data, weights->embed.data);
}

TEST(Weights, TextOnlyNames) {
  test::ModelImage image = test::nano_image();
  test::CheckpointImage renamed;
  for (auto& [name, tensor] : image.tensors) {
    if (name.starts_with("model.visual.")) continue;
    const bool nested = name.starts_with(kPrefix);
    renamed[nested ? "model." + name.substr(std::string(kPrefix).size()) : name] = tensor;
  }
  image.tensors = std::move(renamed);
  boost::json::value text = boost::json::parse(image.config).at("text_config");
  text.as_object()["architectures"] = {"Qwen4ExpForCausalLM"};
  image.config = boost::json::serialize(text);
  const auto weights = test::bind_image(image);
  ASSERT_TRUE(weights) << weights.error().message();
  EXPECT_THAT(weights->ignored, Not(Contains(HasSubstr("visual"))));
}

TEST(Weights, UnusedTensorsAreNamedByGroup) {
  test::ModelImage image = test::nano_image();
  const std::string attention = std::string(kPrefix) + "layers.3.self_attn.";
  const std::string embedding = std::string(kPrefix) + "layers.1.ple.ple_embedding.";
  const test::TensorImage one = test::tensor_image<float>("F32", {1}, {1.0F});
  image.tensors[attention + "rotary_emb.inv_freq"] = one;
  image.tensors[embedding + "token_lookup"] = one;
  image.tensors[embedding + "hashstats_hits"] = one;
  const auto weights = test::bind_image(image);
  ASSERT_TRUE(weights) << weights.error().message();
  const auto visual = std::ranges::count_if(
      image.tensors, [](const auto& entry) { return entry.first.starts_with("model.visual."); });
  EXPECT_THAT(weights->ignored,
              ElementsAre("model.visual.* (" + std::to_string(visual) +
                              "): vision tower, not used for text",
                          HasSubstr("rotary_emb.* (1): "), HasSubstr("token_lookup* (1): "),
                          HasSubstr("hashstats_* (1): ")));
}

TEST(Weights, TheDraftLayerIsBoundInEveryLayout) {
  for (const test::ModelImage& image : {test::nano_image(), test::nano_fp8()}) {
    const auto weights = test::bind_image(image);
    ASSERT_TRUE(weights) << weights.error().message();
    ASSERT_TRUE(weights->draft.has_value());
    const DraftWeights& draft = *weights->draft;
    EXPECT_EQ(draft.layer.kind, LayerKind::kQsa);
    EXPECT_EQ(draft.layer.moe.experts.size(), 16U);
    EXPECT_TRUE(draft.layer.moe.experts.back().down);
    EXPECT_TRUE(draft.embedding && draft.hidden && draft.final_mixer.up);
    EXPECT_FALSE(draft.final_mixer.inject);
    EXPECT_NE(draft.norm_hidden, nullptr);
  }
}

TEST(Weights, ACheckpointWithoutADraftLayerIsWhole) {
  test::ModelImage image = test::nano_image();
  std::erase_if(image.tensors, [](const auto& entry) { return entry.first.starts_with("mtp."); });
  const auto weights = test::bind_image(image);
  ASSERT_TRUE(weights) << weights.error().message();
  EXPECT_FALSE(weights->draft.has_value());
}

TEST(Weights, HalfADraftLayerIsRefused) {
  test::ModelImage missing = test::nano_image();
  missing.tensors.erase("mtp.fc_hidden.weight");
  const auto without = test::bind_image(missing);
  ASSERT_FALSE(without);
  EXPECT_THAT(without.error().message(), HasSubstr("mtp.fc_hidden.weight"));
  test::ModelImage surplus = test::nano_image();
  surplus.tensors["mtp.layers.1.mlp.gate.weight"] = surplus.at("mtp.layers.0.mlp.gate.weight");
  const auto with = test::bind_image(surplus);
  ASSERT_FALSE(with);
  EXPECT_THAT(with.error().message(), HasSubstr("mtp.layers.1.mlp.gate.weight"));
}

TEST(Weights, SizesCountEveryTextTensorOnce) {
  const test::ModelImage image = test::nano_fp8();
  const auto weights = test::bind_image(image);
  ASSERT_TRUE(weights);
  uint64_t expected = 0;
  for (const auto& [name, tensor] : image.tensors) {
    if (!name.starts_with("model.visual.")) {
      expected += tensor.bytes.size();
    }
  }
  uint64_t bytes = 0;
  std::vector<std::string> names;
  for (const SizeEntry& entry : weights->sizes) {
    bytes += entry.bytes;
    names.push_back(entry.name);
  }
  EXPECT_EQ(bytes, expected);
  EXPECT_THAT(names, ElementsAre("embedding", "lm_head", "gated residual", "gdn", "qsa", "indexer",
                                 "router", "routed experts", "shared expert", "ple", "n-gram table",
                                 "draft layer"));
  EXPECT_EQ(weights->sizes.front().parameters, 512U * 64U);
}

TEST(Weights, FingerprintFollowsConfigNamesAndBytes) {
  test::ModelImage image = test::nano_image();
  const uint64_t original = test::bind_image(image)->fingerprint;
  EXPECT_EQ(test::bind_image(image)->fingerprint, original);
  test::ModelImage reworded = image;
  reworded.config += "\n";
  EXPECT_NE(test::bind_image(reworded)->fingerprint, original);
  test::ModelImage renamed = image;
  const std::string buffer = std::string(kPrefix) + "layers.3.self_attn.rotary_emb.";
  renamed.tensors[buffer + "inv_freq"] = image.at("lm_head.weight");
  const uint64_t first_name = test::bind_image(renamed)->fingerprint;
  renamed.tensors.erase(buffer + "inv_freq");
  renamed.tensors[buffer + "inv_freu"] = image.at("lm_head.weight");  // same place
  EXPECT_NE(test::bind_image(renamed)->fingerprint, first_name);
  for (const char* name : {"lm_head.weight", "mtp.fc_hidden.weight"}) {
    for (const bool at_end : {false, true}) {
      test::ModelImage changed = image;
      std::string& bytes = changed.at(name).bytes;
      bytes[at_end ? bytes.size() - 2 : 0] ^= 1;  // lowest mantissa bit
      EXPECT_NE(test::bind_image(changed)->fingerprint, original) << name << at_end;
    }
  }
}

TEST(Weights, AnyFlippedBitChangesTheFingerprint) {
  const ModelConfig config = load_model_config("models/nano").value();
  std::string file = read_text_file("models/nano/model.safetensors", size_t{64} << 20).value();
  const TensorMap tensors = parse_safetensors(file, "nano").value();
  Checkpoint checkpoint{.dir = "models/nano", .tensors = tensors};
  const uint64_t original = fingerprint(config, checkpoint).value();
  uint64_t place = 1;
  for (const auto& [name, tensor] : tensors) {
    place = place * 6364136223846793005U + 1442695040888963407U;  // Knuth's generator
    for (const uint64_t bit : {uint64_t{0}, (place >> 16) % (8 * tensor.bytes)}) {
      const auto* data = reinterpret_cast<const char*>(tensor.data);
      char& byte = file[static_cast<size_t>(data - file.data()) + bit / 8];
      byte = static_cast<char>(byte ^ (1 << (bit % 8)));
      const auto flipped = fingerprint(config, checkpoint);
      EXPECT_TRUE(!flipped || *flipped != original) << name << " bit " << bit;
      byte = static_cast<char>(byte ^ (1 << (bit % 8)));
    }
  }
  EXPECT_EQ(fingerprint(config, checkpoint).value(), original);
}

TEST(Weights, FingerprintOfLargeFilesReadsWindows) {
  const size_t bytes = kWholeHashBytes + 3;
  const std::unique_ptr<std::byte, decltype(&std::free)> data(  // untouched pages cost nothing
      static_cast<std::byte*>(std::calloc(bytes, 1)), &std::free);
  Checkpoint checkpoint;
  checkpoint.tensors["t"] = {.dtype = DType::kU8,
                             .shape = {static_cast<int64_t>(bytes)},
                             .data = data.get(),
                             .bytes = bytes,
                             .file = "f"};
  const uint64_t original = fingerprint({}, checkpoint).value();
  for (const size_t at : {size_t{0}, 7 * kWindowStride + kWindowBytes - 1, bytes - 1}) {
    data.get()[at] = std::byte{1};
    EXPECT_NE(fingerprint({}, checkpoint).value(), original) << at;
    data.get()[at] = std::byte{0};
  }
  data.get()[kWindowBytes] = std::byte{1};
  EXPECT_EQ(fingerprint({}, checkpoint).value(), original);  // outside: documented as not covered
}

class ReleasedFolders : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(ReleasedFolders, Bind) {
  const auto& [dir, layout] = GetParam();
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is not here";
  const auto config = load_model_config(dir);
  ASSERT_TRUE(config) << config.error().message();
  const auto checkpoint = open_checkpoint(dir);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  const auto weights = bind_weights(*config, *checkpoint);
  ASSERT_TRUE(weights) << weights.error().message();
  EXPECT_THAT(weights->layout, HasSubstr(layout));
  EXPECT_NE(weights->fingerprint, 0U);
  EXPECT_THAT(weights->copied, IsEmpty());  // these files keep every tensor aligned
}

INSTANTIATE_TEST_SUITE_P(
    Weights, ReleasedFolders,
    testing::Values(std::pair("models/nano", "BF16 experts, BF16 n-gram table, fused"),
                    std::pair("models/tiny", "FP8 experts (128x128 blocks), FP8 n-gram table"),
                    std::pair("../shared/golden/nano", "fused expert tensors"),
                    std::pair("../shared/golden/micro", "per-expert tensors"),
                    std::pair("../shared/models/tiny_fp8", "FP8 experts"),
                    std::pair("../shared/models/small_bf16", "BF16 experts, BF16 n-gram table"),
                    std::pair("../shared/models/small_fp8", "FP8 experts")));

}  // namespace
}  // namespace tessera
