// SPDX-License-Identifier: Apache-2.0
// What is left after binding: tensors nobody reads, the layout in words, the fingerprint.
#pragma once

#include <string>
#include <vector>

#include "model/weight_binder.h"

namespace tessera {

/// Groups of unused tensors that are known and harmless, with their counts. Any other unused
/// tensor is an error: output that ignores part of the weights looks right and is wrong.
Result<std::vector<std::string>> name_ignored(const Checkpoint& checkpoint,
                                              const WeightBinder& binder);

/// "FP8 experts (128x128 blocks), FP8 n-gram table, per-expert tensors".
std::string describe_layout(const Checkpoint& checkpoint, const ModelWeights& weights,
                            const WeightBinder& binder);

/// The declared scheme and the stored types must agree.
Result<void> check_quantization(const ModelConfig& config, const Checkpoint& checkpoint,
                                const WeightBinder& binder);

/// 16-bit tensors that the model uses must have the declared 16-bit type: read as the other one,
/// numbers stay plausible and are wrong. F32 tensors, and files that declare F32 or nothing, pass.
Result<void> check_types(const ModelConfig& config, const Checkpoint& checkpoint,
                         const WeightBinder& binder);

/// With tied embeddings, a head in the files must repeat the embedding (compared as far as
/// `fingerprint` reads tensors).
Result<void> check_tied_head(const TensorRef& embedding, const TensorRef& head);

/// Up to this many bytes of tensors, the fingerprint reads all of them.
inline constexpr uint64_t kWholeHashBytes = uint64_t{256} << 20;
/// Above: the first `kWindowBytes` of every `kWindowStride` of each tensor, and its last ones.
inline constexpr size_t kWindowBytes = size_t{4} << 10;
inline constexpr size_t kWindowStride = size_t{1} << 20;

/// Hash of the configuration, of all names, shapes and types, and of the bytes above. 64 bytes at
/// the start, at the end and every 16 MiB of a tensor are searched for NaN on the way.
Result<uint64_t> fingerprint(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace tessera
