// SPDX-License-Identifier: Apache-2.0
// All tensors of a checkpoint folder: model.safetensors, or model.safetensors.index.json and its
// shards.
#pragma once

#include <tessera/error.h>
#include <memory>
#include <string>
#include <vector>

#include "io/safetensors.h"

namespace tessera {

struct Checkpoint {
  std::string dir{};
  TensorMap tensors{};
  std::vector<std::shared_ptr<const MappedFile>> files{};  // keep the views alive
};

/// Errors: kNotFound (no weights, missing shard), kCorruptFile (index and shards disagree, bad
/// header).
Result<std::shared_ptr<const Checkpoint>> open_checkpoint(const std::string& model_dir);

}  // namespace tessera
