// SPDX-License-Identifier: Apache-2.0
// What config.json means: released values, defaults, synonyms, text-only files.
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "config_edit.h"

namespace tessera {
namespace {

using test::released_config;
using test::with;
using test::without;
using testing::ElementsAre;

ModelConfig parsed(const std::string& json) {
  auto config = parse_model_config(json, "config.json");
  EXPECT_TRUE(config) << config.error().message();
  return config ? std::move(*config) : ModelConfig{};
}

TEST(Config, ReadsTheReleasedFile) {
  const ModelConfig config = parsed(released_config());
  EXPECT_EQ(config.num_layers(), 48);
  EXPECT_EQ(config.hidden, 2560);
  EXPECT_EQ(config.wide(), 10240);
  EXPECT_EQ(config.mixer_rank, 320);
  EXPECT_EQ(config.gdn.channels(), 10240);
  EXPECT_EQ(config.gdn_gate, ops::GateActivation::kSigmoid);
  EXPECT_EQ(config.qsa.heads, 24);
  EXPECT_EQ(config.qsa.rotary_dim, 64);
  EXPECT_EQ(config.indexer_budget, 2048);
  EXPECT_EQ(config.moe.num_experts, 512);
  EXPECT_EQ(config.moe.top_k, 10);
  EXPECT_THAT(config.ple.layers, ElementsAre(1));  // the file counts from one
  EXPECT_TRUE(config.has_ple(1));
  EXPECT_FALSE(config.has_ple(2));
  EXPECT_EQ(config.ple.heads(), 16);
  EXPECT_EQ(config.ple.conv_reach(), 9);
  EXPECT_EQ(config.ple.hash_eos, 248044);
  EXPECT_EQ(config.mtp_layers, 1);
  EXPECT_EQ(config.image_token, 248056);
  EXPECT_EQ(config.video_token, 248057);
  EXPECT_TRUE(config.has_vision);
  EXPECT_FALSE(config.text_only_names);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.quant, QuantMethod::kNone);
  EXPECT_EQ(std::ranges::count(config.layers, LayerKind::kQsa), 12);
}

TEST(Config, DefaultsOfAbsentKeys) {
  const ModelConfig released = parsed(released_config());
  EXPECT_TRUE(released.moe.normalize);
  EXPECT_EQ(released.ple.seed, 1234U);
  const std::string text = "/text_config";
  EXPECT_EQ(parsed(without(released_config(), text, "split_ngram_parts")).ple.split_parts, 512);
  EXPECT_EQ(parsed(without(released_config(), text, "mtp_num_hidden_layers")).mtp_layers, 0);
  EXPECT_EQ(parsed(without(released_config(), "", "vision_config")).has_vision, false);
  EXPECT_EQ(parsed(without(released_config(), "", "image_token_id")).image_token, -1);
  EXPECT_EQ(parsed(without(released_config(), text, "output_gate_type")).gdn_gate,
            ops::GateActivation::kSilu);  // hidden_act
  EXPECT_TRUE(parsed(without(released_config(), text, "ple_layer_ids")).ple.layers.empty());
}

TEST(Config, LayerKindsFromTheIntervalOrTheList) {
  const ModelConfig config = parsed(released_config());
  for (int layer = 0; layer < config.num_layers(); ++layer) {
    const LayerKind expected = layer % 4 == 3 ? LayerKind::kQsa : LayerKind::kGdn;
    EXPECT_EQ(config.layers[static_cast<size_t>(layer)], expected) << layer;
  }
  std::string json = with(released_config(), "/text_config/num_hidden_layers", "3");
  json = with(json, "/text_config/layer_types",
              R"(["full_attention","linear_attention","qwen_sparse_attention"])");
  EXPECT_THAT(parsed(json).layers, ElementsAre(LayerKind::kQsa, LayerKind::kGdn, LayerKind::kQsa));
}

TEST(Config, EosIsAnIdOrAListWhoseFirstEntryIsTheHashId) {
  const std::string json = with(released_config(), "/text_config/eos_token_id", "[248046, 248044]");
  EXPECT_EQ(parsed(json).ple.hash_eos, 248046);
}

TEST(Config, TextOnlyFiles) {
  boost::json::value root = boost::json::parse(released_config());
  boost::json::value text = root.at("text_config");
  text.as_object()["architectures"] = {"Qwen4ExpForCausalLM"};
  const ModelConfig config = parsed(boost::json::serialize(text));
  EXPECT_TRUE(config.text_only_names);
  EXPECT_EQ(config.architecture, "Qwen4ExpForCausalLM");
  EXPECT_EQ(config.hidden, 2560);
  EXPECT_FALSE(config.has_vision);
}

TEST(Config, TiedEmbeddings) {
  EXPECT_TRUE(parsed(without(with(released_config(), "/tie_word_embeddings", "true"),
                             "/text_config", "tie_word_embeddings"))
                  .tied_embeddings);
  EXPECT_TRUE(parsed(with(without(released_config(), "", "tie_word_embeddings"),
                          "/text_config/tie_word_embeddings", "true"))
                  .tied_embeddings);
}

TEST(Config, Fp8Release) {
  const std::string json =
      with(released_config(), "/quantization_config",
           R"({"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[128,128],
          "weight_per_tensor":false,"act_per_tensor":false,
          "modules_to_convert":["ple.ple_embedding.ngram_embedding"]})");
  EXPECT_EQ(parsed(json).quant, QuantMethod::kFp8Block);
}

TEST(Config, HashOfTheTextFollowsEveryByte) {
  const std::string json = released_config();
  EXPECT_EQ(parsed(json).text_hash, parsed(json).text_hash);
  EXPECT_NE(parsed(json).text_hash, parsed(json + " ").text_hash);
}

TEST(Config, ReadsTheFilesOfTheRepository) {
  for (const char* dir : {"models/nano", "models/tiny"}) {
    const auto config = load_model_config(dir);
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_EQ(config->num_layers(), 8);
  }
  EXPECT_FALSE(load_model_config("models/absent"));
}

}  // namespace
}  // namespace tessera
