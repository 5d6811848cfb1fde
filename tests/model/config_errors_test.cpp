// SPDX-License-Identifier: Apache-2.0
// Damaged or foreign configurations: each is refused with its key, what was expected and found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "../io/temp_dir.h"
#include "config_edit.h"
#include "model/config.h"

namespace tessera {
namespace {

using test::released_config;
using test::with;
using test::without;
using testing::AllOf;
using testing::HasSubstr;

struct BadValue {
  const char* name;
  const char* pointer;
  const char* value;
  const char* message;
};

class BadValues : public testing::TestWithParam<BadValue> {};

TEST_P(BadValues, AreNamed) {
  const BadValue& test = GetParam();
  const auto config = parse_model_config(with(released_config(), test.pointer, test.value), "c");
  ASSERT_FALSE(config);
  const std::string pointer = test.pointer;
  const std::string key = pointer.substr(pointer.rfind('/') + 1);
  EXPECT_THAT(config.error().message(), AllOf(HasSubstr(test.message), HasSubstr("c: ")));
  EXPECT_THAT(config.error().where, HasSubstr(key == "0" ? "architectures" : key));
}

INSTANTIATE_TEST_SUITE_P(
    Config, BadValues,
    testing::Values(
        BadValue{"Family", "/model_type", R"("qwen3_5")", "expected qwen4_exp, found qwen3_5"},
        BadValue{"TextFamily", "/text_config/model_type", R"("llama")", "found llama"},
        BadValue{"Architecture", "/architectures/0", R"("LlamaForCausalLM")", "LlamaForCausalLM"},
        BadValue{"VisionFamily", "/vision_config/model_type", R"("clip")", "found clip"},
        BadValue{"TextConfigIsList", "/text_config", "[]", "expected an object"},
        BadValue{"ZeroHidden", "/text_config/hidden_size", "0", "found 0"},
        BadValue{"NegativeLayers", "/text_config/num_hidden_layers", "-1", "found -1"},
        BadValue{"HugeVocab", "/text_config/vocab_size", "99999999999", "found 99999999999"},
        BadValue{"HugerVocab", "/text_config/vocab_size", "1e300", "an integer from"},
        BadValue{"StringSize", "/text_config/head_dim", R"("256")", "an integer from"},
        BadValue{"FractionalSize", "/text_config/head_dim", "256.5", "an integer from"},
        BadValue{"Eps", "/text_config/rms_norm_eps", "-1e-6", "a number from"},
        BadValue{"Activation", "/text_config/hidden_act", R"("gelu")", "expected silu, found gelu"},
        BadValue{"Gate", "/text_config/output_gate_type", R"("tanh")", "found tanh"},
        BadValue{"Bias", "/text_config/attention_bias", "true", "expected false, found true"},
        BadValue{"BiasIsNumber", "/text_config/attention_bias", "1", "true or false"},
        BadValue{"LayerKind", "/text_config/layer_types", R"(["sliding"])", "layer_types"},
        BadValue{"LayerCount", "/text_config/layer_types", R"(["linear_attention"])",
                 "48 entries (num_hidden_layers), found 1"},
        BadValue{"ValueHeads", "/text_config/linear_num_value_heads", "47",
                 "a multiple of linear_num_key_heads 16, found 47"},
        BadValue{"KvHeads", "/text_config/num_attention_heads", "23",
                 "a multiple of num_key_value_heads 2, found 23"},
        BadValue{"IndexKvHeads", "/text_config/indexer_kv_heads", "2", "expected 1, found 2"},
        BadValue{"Block", "/text_config/indexer_compress_ratio", "5", "a divisor of 64, found 5"},
        BadValue{"Budget", "/text_config/indexer_budget", "2047",
                 "a multiple of indexer_compress_ratio 4, found 2047"},
        BadValue{"TopK", "/text_config/num_experts_per_tok", "513", "from 1 to 512, found 513"},
        BadValue{"PleLayer", "/text_config/ple_layer_ids", "[49]", "from 1 to 48, found 49"},
        BadValue{"PleLayerZero", "/text_config/ple_layer_ids", "[0]", "found 0"},
        BadValue{"PleOrder", "/text_config/ple_layer_ids", "[6, 2]", "ascending"},
        BadValue{"PleTwice", "/text_config/ple_layer_ids", "[2, 2]", "ascending"},
        BadValue{"PleWidth", "/text_config/ple_embed_dim", "2561", "a multiple of the 16"},
        BadValue{"NgramSize", "/text_config/ngram_size", "1", "from 2 to 8, found 1"},
        BadValue{"EosOutside", "/text_config/eos_token_id", "248320", "found 248320"},
        BadValue{"EosNone", "/text_config/eos_token_id", "null", "n-gram hash"},
        BadValue{"EosEmpty", "/text_config/eos_token_id", "[]", "at least one id"},
        BadValue{"Rotary", "/text_config/rope_parameters/partial_rotary_factor", "0.251",
                 "partial_rotary_factor"},
        BadValue{"RopeType", "/text_config/rope_parameters/rope_type", R"("longrope")",
                 "expected default or yarn, found longrope"},
        BadValue{"Theta", "/text_config/rope_parameters/rope_theta", "0", "a number from"},
        BadValue{"Sections", "/text_config/rope_parameters/mrope_section", "[11, 11, 11]",
                 "three sections that sum to 32, found 3 sections, sum 33"},
        BadValue{"Interleaved", "/text_config/rope_parameters/mrope_interleaved", "false",
                 "expected true, found false"},
        BadValue{"TopType", "/dtype", R"("float8")",
                 "expected float32, float16 or bfloat16, found float8"},
        BadValue{"OldTopType", "/torch_dtype", R"("auto")", "found auto"},
        BadValue{"TextType", "/text_config/dtype", R"("int8")", "found int8"},
        BadValue{"TwoTypes", "/dtype", R"("float16")",
                 "expected float16 as declared elsewhere in the file, found bfloat16"},
        BadValue{"Tying", "/tie_word_embeddings", "true", "the value of the top level"},
        BadValue{"ImageToken", "/image_token_id", "248320", "found 248320"}),
    [](const auto& parameter) { return std::string(parameter.param.name); });

class QuantNames : public testing::TestWithParam<std::pair<const char*, const char*>> {};

/// An unknown scheme read as another one gives fluent nonsense, so its name must stop the load.
TEST_P(QuantNames, AreRefusedByName) {
  const auto& [value, message] = GetParam();
  for (const char* pointer : {"/quantization_config", "/text_config/quantization_config"}) {
    const auto config = parse_model_config(with(released_config(), pointer, value), "c");
    ASSERT_FALSE(config) << value;
    EXPECT_EQ(config.error().code, Errc::kUnsupported);
    EXPECT_THAT(config.error().message(), HasSubstr(message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Config, QuantNames,
    testing::Values(
        std::pair(R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION"})",
                  "found modelopt, quant_algo MIXED_PRECISION"),
        std::pair(R"({"quant_method":"fp8","quant_algo":"FP8_PB_WO"})", "FP8_PB_WO"),
        std::pair(R"({"quant_method":"compressed-tensors"})", "compressed-tensors"),
        std::pair(R"({"quant_method":"gptq","bits":4})", "gptq"),
        std::pair(R"({"bits":4})", "no quant_method"),
        std::pair(R"({"quant_method":"fp8"})", "no weight_block_size"),
        std::pair(R"({"quant_method":"fp8","weight_block_size":[64,64]})", "found [64, 64]"),
        std::pair(R"({"quant_method":"fp8","weight_block_size":[128,128],"fmt":"e5m2"})", "e5m2"),
        std::pair(R"({"quant_method":"fp8","weight_block_size":[128,128],
                      "activation_scheme":"static"})",
                  "static"),
        std::pair(R"({"quant_method":"fp8","weight_block_size":[128,128],
                      "weight_per_tensor":true})",
                  "weight_per_tensor"),
        std::pair(R"({"quant_method":"fp8","weight_block_size":[128,128],"scale_fmt":"ue8m0"})",
                  "scale_fmt: expected float, or no such key, found ue8m0"),
        std::pair(R"({"quant_method":"fp8","weight_block_size":[128,128],
                      "transpose":true})",
                  "quantization_config.transpose: expected one of the keys quant_method")));

constexpr const char* kFp8 = R"({"quant_method":"fp8","weight_block_size":[128,128],
                                 "scale_fmt":"float","modules_to_not_convert":["lm_head"]})";

TEST(ConfigErrors, QuantisationBelongsAtTheTop) {
  const auto top = parse_model_config(with(released_config(), "/quantization_config", kFp8), "c");
  ASSERT_TRUE(top) << top.error().message();
  EXPECT_EQ(top->quant, QuantMethod::kFp8Block);
  std::string both = with(released_config(), "/quantization_config", kFp8);
  for (const std::string& json : {released_config(), both}) {
    const auto nested =
        parse_model_config(with(json, "/text_config/quantization_config", kFp8), "c");
    ASSERT_FALSE(nested);
    EXPECT_EQ(nested.error().code, Errc::kUnsupported);
    EXPECT_THAT(nested.error().message(), AllOf(HasSubstr("c: text_config.quantization_config"),
                                                HasSubstr("at the top level")));
  }
  for (const char* pointer : {"/quantization", "/text_config/compression_config"}) {
    EXPECT_FALSE(parse_model_config(with(released_config(), pointer, kFp8), "c")) << pointer;
  }
}

TEST(ConfigErrors, QuantisationInAFileOfItsOwn) {
  const test::TempDir dir;
  dir.write("config.json", released_config());
  EXPECT_TRUE(load_model_config(dir.path()));
  dir.write("hf_quant_config.json", R"({"quantization":{"quant_algo":"NVFP4"}})");
  const auto config = load_model_config(dir.path());
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, Errc::kUnsupported);
  EXPECT_THAT(config.error().message(),
              AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("quant_method fp8")));
}

TEST(ConfigErrors, EveryRequiredKeyIsNamedWhenItIsMissing) {
  for (const char* key : {"hidden_size",
                          "num_hidden_layers",
                          "vocab_size",
                          "max_position_embeddings",
                          "hc_count",
                          "hc_lowrank",
                          "rms_norm_eps",
                          "num_attention_heads",
                          "num_key_value_heads",
                          "head_dim",
                          "linear_num_key_heads",
                          "linear_num_value_heads",
                          "linear_key_head_dim",
                          "linear_value_head_dim",
                          "linear_conv_kernel_dim",
                          "num_experts",
                          "num_experts_per_tok",
                          "moe_intermediate_size",
                          "shared_expert_intermediate_size",
                          "indexer_n_heads",
                          "indexer_head_dim",
                          "indexer_budget",
                          "indexer_compress_ratio",
                          "ple_embed_dim",
                          "ple_conv_kernel_size",
                          "ngram_size",
                          "heads_per_ngram",
                          "ngram_vocab_size_base"}) {
    const auto config = parse_model_config(without(released_config(), "/text_config", key), "c");
    ASSERT_FALSE(config) << key;
    EXPECT_THAT(config.error().message(),
                AllOf(HasSubstr("c: text_config." + std::string(key)), HasSubstr("no such key")));
  }
}

TEST(ConfigErrors, TextThatIsNoObject) {
  for (const char* text : {"", "[]", "null", "3", "{", "{\"model_type\":", "\xff"}) {
    EXPECT_FALSE(parse_model_config(text, "c")) << text;
  }
}

TEST(ConfigErrors, RepeatedKeysAreRefused) {
  std::string json = released_config();
  json.insert(json.find("\"head_dim\""), "\"head_dim\": 128, ");
  const auto config = parse_model_config(json, "c");
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().message(), HasSubstr("key \"head_dim\" twice"));
}

TEST(ConfigErrors, DamagedBytesNeverCrash) {
  const std::string sound = released_config();
  EXPECT_TRUE(rc::check([&sound] {
    std::string json = sound;
    const auto at = *rc::gen::inRange<size_t>(0, json.size());
    json[at] = *rc::gen::arbitrary<char>();
    const auto config = parse_model_config(json, "c");
    const bool explained = config || !config.error().message().empty();
    RC_ASSERT(explained);
    RC_ASSERT(!config || config->num_layers() > 0);
  }));
}

}  // namespace
}  // namespace tessera
