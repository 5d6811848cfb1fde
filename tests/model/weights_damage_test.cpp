// SPDX-License-Identifier: Apache-2.0
// Damaged checkpoints: each public loader bug as a file that must be refused with a clear reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "config_edit.h"
#include "model_files.h"

namespace tessera {
namespace {

using test::bind_failure;
using test::ModelImage;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kPrefix = "model.language_model.";

std::string text_name(const std::string& rest) { return kPrefix + rest; }

bool ignored(const std::string& name) {
  return name.starts_with("model.visual.") || name.starts_with("mtp.");
}

/// Hash constants can be derived, so files may leave them out.
bool optional_constant(const std::string& name) {
  return name.ends_with("layer_multipliers") || name.ends_with("ngram_heads_offsets") ||
         name.ends_with("ngram_heads_vocab_sizes");
}

/// The tensors of models/nano as views; a copy of the map is cheap to damage.
struct SoundTensors {
  ModelImage image = test::nano_image();
  std::string file = test::safetensors_bytes(image.tensors);
  TensorMap tensors = parse_safetensors(file, "model.safetensors").value();
};

TEST(DamagedWeights, EachMissingTensorIsNamed) {
  const SoundTensors sound;
  for (const auto& [name, tensor] : sound.tensors) {
    if (ignored(name) || optional_constant(name)) continue;
    TensorMap tensors = sound.tensors;
    tensors.erase(name);
    const std::string message = bind_failure(sound.image.config, tensors);
    if (name.ends_with("experts.gate_up_proj")) {  // then single experts are looked for
      EXPECT_THAT(message, HasSubstr("missing tensor"));
    } else {
      EXPECT_THAT(message, AllOf(HasSubstr("missing tensor"), HasSubstr(name)));
    }
  }
}

TEST(DamagedWeights, EachWrongShapeIsNamed) {
  const SoundTensors sound;
  for (const auto& [name, tensor] : sound.tensors) {
    if (ignored(name)) continue;
    TensorMap tensors = sound.tensors;
    tensors.at(name).shape.back() -= 1;
    EXPECT_THAT(bind_failure(sound.image.config, tensors),
                AllOf(HasSubstr("wrong shape"), HasSubstr(name)));
  }
}

TEST(DamagedWeights, UnknownTensorsAreRefused) {
  const test::TensorImage one = test::tensor_image<float>("F32", {1}, {1.0F});
  for (const char* name :
       {"model.language_model.layers.0.self_attn.q_proj.bias", "model.language_model.norm.weight",
        "model.language_model.layers.8.mlp.gate.weight", "lm_head.bias", "visual.pos_embed.weight",
        "model.language_model.layers.0.linear_attn.in_proj_qkv.weight_scale_inv",
        "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_4.weight",
        "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.weight_scale"}) {
    ModelImage image = test::nano_image();
    image.tensors[name] = one;
    EXPECT_THAT(bind_failure(image), AllOf(HasSubstr("unknown tensor"), HasSubstr(name)));
  }
}

TEST(DamagedWeights, UnsupportedTypesAreNamed) {
  ModelImage packed = test::nano_image();
  test::TensorImage& head = packed.at("lm_head.weight");
  head = {.dtype = "U8", .shape = {512, 32}, .bytes = std::string(512 * 32, '\0')};
  EXPECT_THAT(bind_failure(packed), HasSubstr("expected [512, 64], found [512, 32] U8"));
  head = {.dtype = "U8", .shape = {512, 64}, .bytes = std::string(512 * 64, '\0')};
  EXPECT_THAT(bind_failure(packed), HasSubstr("unsupported element type"));

  ModelImage fused = test::nano_image();
  test::TensorImage& experts = fused.at(text_name("layers.0.mlp.experts.down_proj"));
  experts.dtype = "F8_E4M3";
  experts.bytes.resize(experts.bytes.size() / 2);
  EXPECT_THAT(bind_failure(fused), HasSubstr("one tensor per expert"));

  ModelImage table = test::nano_image();
  test::TensorImage& shard =
      table.at(text_name("layers.1.ple.ple_embedding.ngram_embedding.shard_2.weight"));
  shard.dtype = "F32";
  shard.bytes.resize(shard.bytes.size() * 2);
  EXPECT_THAT(bind_failure(table), HasSubstr("expected BF16 as in shard 0, found [222, 8] F32"));

  ModelImage norm = test::nano_fp8();
  norm.at(text_name("layers.0.linear_attn.A_log")) = {
      .dtype = "I32", .shape = {6}, .bytes = std::string(24, '\0')};
  EXPECT_THAT(bind_failure(norm), HasSubstr("expected BF16, F16 or F32, found [6] I32"));
}

TEST(DamagedWeights, Fp8NeedsItsScales) {
  const std::string expert = text_name("layers.2.mlp.experts.3.down_proj.weight_scale_inv");
  ModelImage image = test::nano_fp8();
  image.tensors.erase(expert);
  EXPECT_THAT(bind_failure(image), AllOf(HasSubstr("missing tensor"), HasSubstr(expert)));
  image.tensors[expert] = test::tensor_image<float>("F32", {1}, {1.0F});
  EXPECT_THAT(bind_failure(image), HasSubstr("wrong shape"));
  image.tensors[expert] = test::tensor_image<float>("F32", {1, 1}, {std::nanf("")});
  EXPECT_THAT(bind_failure(image), AllOf(HasSubstr("not finite"), HasSubstr(expert)));

  const std::string table = text_name("layers.1.ple.ple_embedding.ngram_embedding.weight_scale");
  image = test::nano_fp8();
  image.tensors.erase(table);
  EXPECT_THAT(bind_failure(image), AllOf(HasSubstr("missing tensor"), HasSubstr(table)));
}

TEST(DamagedWeights, DeclaredAndStoredQuantisationMustAgree) {
  ModelImage undeclared = test::nano_fp8();
  undeclared.config = test::without(undeclared.config, "", "quantization_config");
  EXPECT_THAT(bind_failure(undeclared), HasSubstr("declared and stored quantisation differ"));
  ModelImage unquantised = test::nano_per_expert();
  unquantised.config = test::nano_fp8().config;
  EXPECT_THAT(bind_failure(unquantised), HasSubstr("quantization_config says fp8"));
}

TEST(DamagedWeights, DeclaredAndStoredHalvesMustAgree) {
  const std::string name = text_name("layers.3.self_attn.q_proj.weight");
  ModelImage image = test::nano_image();
  image.at(name).dtype = "F16";
  EXPECT_THAT(bind_failure(image),
              AllOf(HasSubstr("declared and stored element types differ"), HasSubstr(name),
                    HasSubstr("expected BF16 (dtype of config.json)"), HasSubstr("F16 (")));
  image.config = test::without(image.config, "", "dtype");
  EXPECT_EQ(bind_failure(image), "bound");
  ModelImage whole = test::nano_image();
  whole.at("lm_head.weight") =
      test::tensor_image<float>("F32", {512, 64}, std::vector<float>(512 * 64, 0.5F));
  EXPECT_EQ(bind_failure(whole), "bound");
}

TEST(DamagedWeights, TiedHeadMustRepeatTheEmbedding) {
  ModelImage image = test::nano_image();
  image.config = test::with(image.config, "/tie_word_embeddings", "true");
  image.config = test::with(image.config, "/text_config/tie_word_embeddings", "true");
  EXPECT_THAT(bind_failure(image),
              AllOf(HasSubstr("lm_head.weight"), HasSubstr("found other values")));
  image.at("lm_head.weight") = image.at(text_name("embed_tokens.weight"));
  EXPECT_EQ(bind_failure(image), "bound");
  image.at("lm_head.weight").bytes[4001] ^= 1;
  EXPECT_THAT(bind_failure(image), HasSubstr("found other values"));
  image.at("lm_head.weight") =
      test::tensor_image<float>("F32", {512, 64}, std::vector<float>(512 * 64, 0.5F));
  EXPECT_THAT(bind_failure(image), HasSubstr("found [512, 64] F32"));
}

TEST(DamagedWeights, QuantisedEmbeddingIsRefused) {
  ModelImage image = test::nano_fp8();
  const std::string name = text_name("embed_tokens.weight");
  image.at(name) = {.dtype = "F8_E4M3", .shape = {512, 64}, .bytes = std::string(512 * 64, '\1')};
  image.tensors[name + "_scale_inv"] =
      test::tensor_image<float>("F32", {4, 1}, {1.0F, 1.0F, 1.0F, 1.0F});
  EXPECT_THAT(bind_failure(image), HasSubstr("quantised embedding"));
}

TEST(DamagedWeights, HashConstantsMustFollowFromTheConfig) {
  for (const char* name : {"layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"}) {
    ModelImage image = test::nano_image();
    test::TensorImage& constants = image.at(text_name("layers.5.ple.ple_embedding.") + name);
    constants.bytes[sizeof(int64_t)] ^= 1;
    EXPECT_THAT(bind_failure(image), AllOf(HasSubstr("hash constant differs"), HasSubstr(name),
                                           HasSubstr("[1]: expected")));
    image.tensors.erase(text_name("layers.5.ple.ple_embedding.") + name);
    EXPECT_EQ(bind_failure(image), "bound") << name;  // they can be derived
  }
  ModelImage reseeded = test::nano_image();
  reseeded.config = test::with(reseeded.config, "/text_config/seed", "1235");
  EXPECT_THAT(bind_failure(reseeded), HasSubstr("hash constant differs"));
}

TEST(DamagedWeights, NanIsFoundInSmallTensorsAndInSamples) {
  const std::string bf16_nan = "\xc0\x7f";
  ModelImage norm = test::nano_image();
  norm.at(text_name("layers.0.linear_attn.dt_bias")).bytes.replace(4, 2, bf16_nan);
  EXPECT_THAT(bind_failure(norm),
              AllOf(HasSubstr("not finite"), HasSubstr("dt_bias"), HasSubstr("at element 2")));
  ModelImage head = test::nano_image();
  head.at("lm_head.weight").bytes.replace(0, 2, bf16_nan);
  EXPECT_THAT(bind_failure(head), AllOf(HasSubstr("not finite"), HasSubstr("lm_head.weight")));
  ModelImage expert = test::nano_fp8();
  const std::string name = text_name("layers.0.mlp.experts.0.up_proj.weight");
  expert.at(name).bytes.back() = '\x7f';
  EXPECT_THAT(bind_failure(expert), AllOf(HasSubstr("not finite"), HasSubstr(name)));
}

TEST(DamagedWeights, ConfigOfAnotherModelIsRefused) {
  for (const auto& [pointer, value] :
       {std::pair("/text_config/hidden_size", "128"), std::pair("/text_config/num_experts", "15"),
        std::pair("/text_config/hc_lowrank", "32"), std::pair("/text_config/vocab_size", "600"),
        std::pair("/text_config/linear_num_value_heads", "4"),
        std::pair("/text_config/split_ngram_parts", "3"),
        std::pair("/text_config/ngram_vocab_size_base", "98")}) {
    ModelImage image = test::nano_image();
    image.config = test::with(image.config, pointer, value);
    EXPECT_NE(bind_failure(image), "bound") << pointer;
  }
  ModelImage shorter = test::nano_image();
  shorter.config = test::with(shorter.config, "/text_config/ple_layer_ids", "[2]");
  EXPECT_THAT(bind_failure(shorter), HasSubstr("unknown tensor"));
}

TEST(DamagedWeights, DamagedHeadersNeverCrash) {
  const SoundTensors sound;
  constexpr size_t kHeaderBytes = 36000;
  EXPECT_TRUE(rc::check([&sound] {
    std::string file = sound.file;
    const auto at = *rc::gen::inRange<size_t>(0, kHeaderBytes);
    file[at] = *rc::gen::arbitrary<char>();
    if (*rc::gen::arbitrary<bool>()) file.resize(*rc::gen::inRange<size_t>(0, file.size()));
    auto tensors = parse_safetensors(file, "damaged");
    const std::string message =
        tensors ? bind_failure(sound.image.config, std::move(*tensors)) : tensors.error().message();
    RC_ASSERT(!message.empty());
  }));
}

}  // namespace
}  // namespace tessera
