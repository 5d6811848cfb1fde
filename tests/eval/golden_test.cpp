// SPDX-License-Identifier: Apache-2.0
// Parity with the reference implementation: golden sets and the texts of the trained models.
#include <gtest/gtest.h>
#include <tessera/verify.h>

#include <filesystem>
#include <string>

namespace tessera {
namespace {

struct Variant {
  const char* name;
  OpsKind ops;
  CacheType cache;
};

constexpr Variant kVariants[] = {
    {"reference_f32", OpsKind::kReference, CacheType::kF32},
    {"fast_f32", OpsKind::kFast, CacheType::kF32},
    {"fast_bf16", OpsKind::kFast, CacheType::kBF16},
};

std::string describe(const VerifyReport& report) {
  std::string text;
  for (const VerifyRow& row : report.rows)
    if (!row.passed)
      text += row.name + ": " + std::to_string(row.value) + " > " + std::to_string(row.bound) +
              " (" + row.note + ")\n";
  return text;
}

const VerifyRow* find_row(const VerifyReport& report, const std::string& name) {
  for (const VerifyRow& row : report.rows)
    if (row.name == name) return &row;
  return nullptr;
}

class GoldenTest : public testing::TestWithParam<Variant> {
 protected:
  void verify(const std::string& dir) {
    if (!std::filesystem::exists(dir + "/golden.safetensors"))
      GTEST_SKIP() << dir << " is not on this machine";
    EngineOptions options;
    options.model_dir = dir;
    options.ops = GetParam().ops;
    options.cache_type = GetParam().cache;
    Result<VerifyReport> report = verify_golden(options, "");
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_TRUE(report->passed()) << describe(*report);
    // A report that compared nothing must not pass for one that agreed.
    for (const char* name :
         {"text.logits", "text.layer", "text.attn_in", "text.attn_inject", "text.attn_out",
          "text.mlp_out", "text.router_logits", "text.ple", "text.final_hidden",
          "text.experts (sets)", "text.selected (sets)", "ngram_ids", "greedy.output", "mtp.hidden",
          "mtp.logits", "mtp.chain", "mtp.chain_last_logits"})
      EXPECT_NE(find_row(*report, name), nullptr) << name;
    EXPECT_TRUE(find_row(*report, "text.selected (sets)")->judged);
    if (GetParam().ops != OpsKind::kReference) return;
    for (const char* name : {"text.experts (sets)", "text.selected (sets)", "ngram_ids"})
      EXPECT_EQ(find_row(*report, name)->value, 0.0) << name;
  }
};

TEST_P(GoldenTest, Nano) { verify("models/nano"); }
TEST_P(GoldenTest, Micro) { verify("../shared/golden/micro"); }

INSTANTIATE_TEST_SUITE_P(Backends, GoldenTest, testing::ValuesIn(kVariants),
                         [](const auto& variant) { return std::string(variant.param.name); });

class TrainedModelTest : public testing::TestWithParam<const char*> {};

TEST_P(TrainedModelTest, TextsEqualTheReference) {
  const std::string name = GetParam();
  const bool in_tree = name == "tiny";
  const std::string dir = (in_tree ? "models/" : "../shared/models/") + name;
  const std::string reference =
      in_tree ? dir + "/reference.json" : "../shared/golden/" + name + ".json";
  if (!in_tree && !(std::filesystem::exists(dir) && std::filesystem::exists(reference)))
    GTEST_SKIP() << reference << " is not on this machine";
  EngineOptions options;
  options.model_dir = dir;
  Result<VerifyReport> report = verify_reference(options, reference);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(report->passed()) << describe(*report);
  for (const char* row :
       {"prompt ids", "greedy ids", "answers (sums, tools)", "retrieval", "first drafts"})
    EXPECT_NE(find_row(*report, row), nullptr) << row;
}

INSTANTIATE_TEST_SUITE_P(Models, TrainedModelTest,
                         testing::Values("tiny", "small_fp8", "small_bf16"),
                         [](const auto& variant) { return std::string(variant.param); });

TEST(VerifyErrors, AMissingFileIsNamed) {
  EngineOptions options;
  options.model_dir = "models/nano";
  const Result<VerifyReport> report = verify_golden(options, "models/nano/absent.safetensors");
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Errc::kNotFound);
  EXPECT_NE(report.error().message().find("absent.safetensors"), std::string::npos);
}

TEST(VerifyErrors, AnotherModelsGoldenSetIsRefused) {
  EngineOptions options;
  options.model_dir = "models/tiny";
  const Result<VerifyReport> report = verify_golden(options, "models/nano/golden.safetensors");
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Errc::kMismatch);
}

}  // namespace
}  // namespace tessera
