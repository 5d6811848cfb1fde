// SPDX-License-Identifier: Apache-2.0
// The golden rows of the draft layer with activations rounded to BF16, as a device stores them: the
// bounds of a device hold, and a layer that is wrong does not pass.
#include "eval/verify_draft.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "io/mapped_file.h"
#include "tests/engine/model_harness.h"
#include "tests/eval/rounding_ops.h"

namespace tessera::test {
namespace {

VerifyBounds device_bounds() {
  EngineOptions options;
  options.device = "cuda";
  return verify_bounds(options);
}

/// Rows without their token: the layer's input where the embedding is forgotten.
class TokenlessOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void draft_input(const ops::DraftInputArgs& args) override {
    inner_.draft_input(args);
    std::fill_n(static_cast<float*>(args.embedded),
                static_cast<ptrdiff_t>(args.rows) * args.table.in_features, 0.0F);
  }
};

class VerifyDraft : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string dir = GetParam();
    if (!std::filesystem::exists(dir + "/golden.safetensors"))
      GTEST_SKIP() << dir << " is not on this machine";
    file_ = MappedFile::open(dir + "/golden.safetensors").value();
    golden_ = parse_safetensors(file_->bytes(), dir).value();
    model_ = load_model(dir, OpsKind::kFast);
    ASSERT_NE(model_, nullptr);
  }
  VerifyReport check(ops::Ops& ops) {
    model_->replace_ops(ops);
    VerifyReport report;
    const auto status = check_draft(*model_, golden_, GetParam(), device_bounds(), report);
    EXPECT_TRUE(status) << (status ? "" : status.error().message());
    for (const VerifyRow& row : report.rows)
      std::printf("%s: %g (bound %g, %s)\n", row.name.c_str(), row.value, row.bound,
                  row.note.c_str());
    return report;
  }

  std::shared_ptr<const MappedFile> file_;
  TensorMap golden_;
  std::unique_ptr<LoadedModel> model_;
};

TEST_P(VerifyDraft, RoundedActivationsStayWithinTheBoundsOfADevice) {
  RoundingOps rounding(model_->ops());
  const VerifyReport report = check(rounding);
  EXPECT_EQ(report.rows.size(), 4U);
  for (const VerifyRow& row : report.rows) EXPECT_TRUE(row.passed) << row.name << " " << row.value;
}

TEST_P(VerifyDraft, AWrongLayerFails) {
  TokenlessOps tokenless(model_->ops());
  EXPECT_FALSE(check(tokenless).passed());
}

INSTANTIATE_TEST_SUITE_P(Models, VerifyDraft,
                         testing::Values("models/nano", "../shared/golden/micro"),
                         [](const auto& model) {
                           return std::string(model.param) == "models/nano" ? "nano" : "micro";
                         });

}  // namespace
}  // namespace tessera::test
