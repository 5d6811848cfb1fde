// SPDX-License-Identifier: Apache-2.0
// models/nano as tensors and text that a test can change, and the same model in other layouts.
#pragma once

#include <string>

#include "../io/safetensors_writer.h"
#include "../io/temp_dir.h"
#include "model/weights.h"

namespace tessera::test {

struct ModelImage {
  std::string config{};
  CheckpointImage tensors{};

  TensorImage& at(const std::string& name) { return tensors.at(name); }
};

/// BF16, fused experts, two PLE layers, vision and draft layers present.
ModelImage nano_image();
/// One tensor per expert and projection.
ModelImage nano_per_expert();
/// Experts and table in E4M3 with scales, as in the FP8 release. Values are arbitrary finite codes.
ModelImage nano_fp8();

/// Writes config.json and model.safetensors (tensors `shift` bytes off their alignment) and binds.
Result<ModelWeights> bind_image(const ModelImage& image, size_t shift = 0);
/// Message of the failure, or "bound".
std::string bind_failure(const ModelImage& image);
/// Same for tensors that are parsed already.
std::string bind_failure(const std::string& config, TensorMap tensors);

}  // namespace tessera::test
