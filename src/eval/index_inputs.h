// SPDX-License-Identifier: Apache-2.0
// What the index scores of sparse attention are made of, taken from a backend as it runs.
#pragma once

#include <span>
#include <vector>

#include "eval/forwarding_ops.h"

namespace tessera {

/// In double.
double dot(std::span<const float> left, std::span<const float> right);

/// One layer's queries and block keys, of a sequence that was read in one launch.
struct IndexInputs {
  int heads = 0;
  int dim = 0;
  std::vector<float> queries{};  // [rows, heads, dim]
  std::vector<float> keys{};     // [complete blocks, dim]
  /// [complete blocks] sqrt(sum |raw|^2) / |sum raw| over the raw keys of a block: by how much
  /// their mean is off, relative to its length, when each of them is off by its own length.
  std::vector<double> spread{};

  std::span<const float> query(int row, int head) const;
  std::span<const float> key(int block) const;
  /// sum_h relu(q_h . k) / sqrt(dim), as the selection ranks it.
  double score(int row, int block) const;
};

/// Watches a host backend with FP32 activations and index keys.
class IndexInputsOps final : public ForwardingOps {
 public:
  explicit IndexInputsOps(ops::Ops& inner) : ForwardingOps(inner) {}

  void qsa_front(const ops::QsaFrontArgs& args) override;
  void qsa_select(const ops::QsaSelectArgs& args) override;

  /// In the order of the layers that have sparse attention.
  const std::vector<IndexInputs>& layers() const { return layers_; }

 private:
  std::vector<IndexInputs> layers_{};
};

}  // namespace tessera
