// SPDX-License-Identifier: Apache-2.0
// What a loaded model is made of, in words and numbers: for the layers that know and the clients
// that show it.
#pragma once

#include <tessera/sampling.h>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Storage of K and V. kAuto: FP32 on a CPU, BF16 on a device. kF8 is E4M3, on a device only.
enum class CacheType { kAuto, kF32, kBF16, kF8 };

/// Bytes of one part of the weights or of the state, for `tessera info`.
struct SizeEntry {
  std::string name{};
  uint64_t bytes = 0;
  uint64_t parameters = 0;  // 0 for state
  std::string note{};
};

struct KernelChoice {
  std::string op{};
  std::string kernel{};
  std::string reason{};
};

/// What was loaded, in words and numbers.
struct ModelInfo {
  std::string name{};
  std::string layout{};  // "FP8 release layout, per-expert tensors"
  int vocab_size = 0;
  int max_context = 0;
  int hidden_size = 0;
  int num_layers = 0;
  int max_draft = 0;  // tokens that the draft layer may propose a round; 0: none, see `draft_note`
  std::string draft_note{};  // why nothing is drafted
  int indexer_budget = 0;    // tokens QSA selects at most, plus the open tail
  std::vector<std::string> layer_kinds{};
  std::vector<SizeEntry> weights{};
  std::vector<SizeEntry> state_per_sequence{};  // fixed parts
  std::vector<SizeEntry> state_per_token{};     // paged parts
  std::vector<KernelChoice> kernels{};
  std::vector<std::string>
      ignored_tensors{};  // "model.visual.* (45): vision tower, not used for text"
  GenerationDefaults defaults{};
};

}  // namespace tessera
