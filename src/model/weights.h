// SPDX-License-Identifier: Apache-2.0
// Every parameter of the text model, bound to the bytes of a checkpoint.
#pragma once

#include <tessera/error.h>
#include <tessera/model_info.h>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "io/checkpoint.h"
#include "model/config.h"
#include "model/ngram.h"
#include "ops/mixer.h"
#include "ops/weight.h"

namespace tessera {

struct GdnWeights {
  ops::LinearWeight in_qkv, in_z, in_a, in_b, out;
  const float* conv = nullptr;     // [channels, conv_kernel]
  const float* a_log = nullptr;    // [Hv]
  const float* dt_bias = nullptr;  // [Hv]
  const float* norm = nullptr;     // [dv], plain
};

struct QsaWeights {
  ops::LinearWeight q_gate, k, v, index_qk, out;
  const float* q_norm = nullptr;        // [D]
  const float* k_norm = nullptr;        // [D]
  const float* index_q_norm = nullptr;  // [Di]
  const float* index_k_norm = nullptr;  // [Di]
};

struct MoeWeights {
  ops::LinearWeight router;  // [num_experts, hidden]
  std::vector<ops::ExpertWeight> experts{};
  ops::ExpertWeight shared;
  ops::LinearWeight shared_gate;  // [1, hidden]
};

struct PleWeights {
  ops::LinearWeight key, value;
  const float* norm_key = nullptr;    // [branches * hidden]
  const float* norm_query = nullptr;  // [branches * hidden]
  const float* norm_conv = nullptr;   // [branches * hidden]
  const float* conv = nullptr;        // [branches * hidden, conv_kernel]
  ops::NgramTable table;
  NgramHash hash;
};

struct LayerWeights {
  LayerKind kind = LayerKind::kGdn;
  ops::MixerWeights attn_mixer, mlp_mixer;
  GdnWeights gdn;  // kind kGdn
  QsaWeights qsa;  // kind kQsa
  MoeWeights moe;
};

/// The draft layer (MTP): one QSA layer with its own mixers, on the trunk's embedding and head.
struct DraftWeights {
  const float* norm_embedding = nullptr;  // [hidden], 1 + w
  const float* norm_hidden = nullptr;     // [branches * hidden], 1 + w
  ops::LinearWeight embedding;            // [hidden, hidden], of the normed embedding
  ops::LinearWeight hidden;               // [hidden, hidden], of each normed branch
  LayerWeights layer;                     // kind kQsa
  ops::MixerWeights final_mixer;
  /// Ids that the draft head scores, ascending, and their rows of the head; none: the whole head.
  std::vector<int32_t> shortlist{};
  /// [shortlist or vocab, hidden]; none: the model's head draws the drafts too.
  ops::LinearWeight own_head;
};

/// Owns the memory maps and converted buffers that the pointers refer to.
struct ModelWeights {
  ops::LinearWeight embed;    // [vocab, hidden]
  ops::LinearWeight lm_head;  // [vocab, hidden]; the embedding when they are tied
  ops::MixerWeights final_mixer;
  std::vector<LayerWeights> layers{};
  std::vector<PleWeights> ple{};        // in the order of config.ple.layers
  std::optional<DraftWeights> draft{};  // where the checkpoint has mtp.*

  std::string layout{};  // "FP8 experts (128x128 blocks), FP8 n-gram table, per-expert tensors"
  std::vector<SizeEntry> sizes{};      // bytes and parameters by part
  std::vector<std::string> ignored{};  // named groups of tensors that text generation does not use
  /// Every byte up to 256 MiB of tensors; above, 4 KiB of every MiB of each and its last 4 KiB.
  uint64_t fingerprint = 0;  // of config, names, shapes, dtypes and bytes

  std::shared_ptr<const Checkpoint> checkpoint{};
  std::vector<std::vector<float>> converted{};   // small tensors as float, F16 weights as float
  std::vector<std::vector<std::byte>> copied{};  // tensors whose place in the file is unaligned
  std::shared_ptr<Arena> placed{};               // all of them, on a device (weight_placement.h)
};

/// Consumes or names every tensor of the checkpoint and fills every parameter, or says which one is
/// wrong.
Result<ModelWeights> bind_weights(const ModelConfig& config,
                                  std::shared_ptr<const Checkpoint> checkpoint,
                                  const std::function<void(double fraction)>& on_progress = {});

}  // namespace tessera
