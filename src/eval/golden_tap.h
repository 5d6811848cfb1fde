// SPDX-License-Identifier: Apache-2.0
// Compares every intermediate value of a launch with a golden file as the model computes it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "eval/selection_ties.h"
#include "io/safetensors.h"
#include "model/text_model.h"
#include "ops/qsa.h"

namespace tessera {

inline constexpr const char* kSelectedSets = "text.selected (sets)";

/// Worst error of one tensor kind over the layers.
struct KindError {
  double worst = 0;
  int layer = 0;
  int compared = 0;  // layers
  bool is_count = false;
};

class GoldenTap final : public Tap {
 public:
  GoldenTap(const TensorMap& golden, const ops::QsaShape& shape) : golden_(golden), shape_(shape) {}

  void values(std::string_view name, int layer, const float* data, int rows, int cols) override;
  void experts(int layer, const int32_t* ids, int rows, int top_k) override;
  void ngram(int layer, const int64_t* table_rows, int rows, int heads) override;
  void selection(int layer, const int32_t* blocks, const int32_t* counts, int rows,
                 int budget_blocks) override;

  const std::map<std::string, KindError>& errors() const { return errors_; }
  /// Rows whose selected blocks differ, in the order of layers and rows.
  const std::vector<BlockSwap>& swaps() const { return swaps_; }
  /// Relative L2 error of what the layer's attention reads; 0 when the golden file lacks it.
  double hidden_error(int layer) const;

 private:
  const TensorRef* find(const std::string& name, const std::vector<int64_t>& shape, DType dtype);
  void record(const std::string& kind, int layer, double error, bool is_count);

  const TensorMap& golden_;
  ops::QsaShape shape_;
  std::map<std::string, KindError> errors_{};
  std::map<int, double> hidden_errors_{};  // by layer
  std::vector<BlockSwap> swaps_{};
};

/// |a - b| / |b| over all elements; infinite when `a` has a NaN.
double relative_l2(const float* values, const float* reference, size_t count);

/// Elements of a golden tensor as the type it is stored in; the file must have it with this dtype.
template <class T>
std::vector<T> golden_values(const TensorRef& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.elements()));
  std::copy_n(tensor.data, tensor.bytes, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

}  // namespace tessera
