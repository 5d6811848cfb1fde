// SPDX-License-Identifier: Apache-2.0
// Relative errors of float tensors, counted differences of choices.
#include "eval/golden_tap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace tessera {

double relative_l2(const float* values, const float* reference, size_t count) {
  double difference = 0;
  double norm = 0;
  for (size_t at = 0; at < count; ++at) {
    const double delta = static_cast<double>(values[at]) - static_cast<double>(reference[at]);
    difference += delta * delta;
    norm += static_cast<double>(reference[at]) * static_cast<double>(reference[at]);
  }
  if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  return std::sqrt(difference / std::max(norm, std::numeric_limits<double>::min()));
}

/// The golden tensor of that name, nullptr when the set has none; a different size counts as an
/// error.
const TensorRef* GoldenTap::find(const std::string& name, const std::vector<int64_t>& shape,
                                 DType dtype) {
  const auto at = golden_.find(name);
  if (at == golden_.end()) return nullptr;
  const TensorRef& tensor = at->second;
  if (tensor.dtype != dtype || tensor.shape != shape) {
    record(name, 0, std::numeric_limits<double>::infinity(), true);
    return nullptr;
  }
  return &tensor;
}

void GoldenTap::record(const std::string& kind, int layer, double error, bool is_count) {
  KindError& entry = errors_[kind];
  if (entry.compared == 0 || error > entry.worst) {
    entry.worst = error;
    entry.layer = layer;
  }
  ++entry.compared;
  entry.is_count = is_count;
}

void GoldenTap::values(std::string_view name, int layer, const float* data, int rows, int cols) {
  const auto count = static_cast<size_t>(rows) * static_cast<size_t>(cols);
  std::string key = "text." + std::string(name);
  const std::string kind = key;
  if (name != "final_hidden") key += std::to_string(layer);
  const TensorRef* tensor = find(key, {rows, cols}, DType::kF32);
  if (tensor == nullptr) return;
  const auto reference = golden_values<float>(*tensor);
  std::vector<float> computed(data, data + count);
  if (name == "attn_inject")  // the golden file holds the weight, the op the logit
    for (float& value : computed) value = 2.0F / (1.0F + std::exp(-value));
  record(kind, layer, relative_l2(computed.data(), reference.data(), count), false);
}

void GoldenTap::experts(int layer, const int32_t* ids, int rows, int top_k) {
  const auto per_row = static_cast<size_t>(top_k);
  const auto count = static_cast<size_t>(rows) * per_row;
  const TensorRef* tensor =
      find("text.experts" + std::to_string(layer), {rows, top_k}, DType::kI32);
  if (tensor == nullptr) return;
  const auto reference = golden_values<int32_t>(*tensor);
  int different = 0;
  for (size_t begin = 0; begin < count; begin += per_row) {
    const std::set<int32_t> ours(ids + begin, ids + begin + per_row);
    const auto first = reference.begin() + static_cast<std::ptrdiff_t>(begin);
    const std::set<int32_t> theirs(first, first + top_k);
    different += ours != theirs ? 1 : 0;
  }
  record("text.experts (sets)", layer, different, true);
}

void GoldenTap::ngram(int layer, const int64_t* table_rows, int rows, int heads) {
  const auto count = static_cast<size_t>(rows) * static_cast<size_t>(heads);
  const TensorRef* tensor = find("ngram_ids" + std::to_string(layer), {rows, heads}, DType::kI64);
  if (tensor == nullptr) return;
  const auto reference = golden_values<int64_t>(*tensor);
  int different = 0;
  for (size_t at = 0; at < count; ++at) different += table_rows[at] != reference[at] ? 1 : 0;
  record("ngram_ids", layer, different, true);
}

void GoldenTap::selection(int layer, const int32_t* blocks, const int32_t* counts, int rows,
                          int budget_blocks) {
  const auto tokens = static_cast<size_t>(rows);
  const TensorRef* tensor = find("text.selected" + std::to_string(layer), {rows, rows}, DType::kU8);
  if (tensor == nullptr) return;
  const auto reference = golden_values<uint8_t>(*tensor);
  int different = 0;
  std::vector<uint8_t> selected(tokens);
  for (int row = 0; row < rows; ++row) {
    std::fill(selected.begin(), selected.end(), uint8_t{0});
    const int32_t* list = blocks + static_cast<size_t>(row) * static_cast<size_t>(budget_blocks);
    for (int entry = 0; entry < counts[row]; ++entry)
      std::fill_n(selected.begin() + list[entry] * shape_.block, shape_.block, uint8_t{1});
    const int tail = (row + 1) / shape_.block * shape_.block;
    std::fill(selected.begin() + tail, selected.begin() + row + 1, uint8_t{1});
    const auto expected = reference.begin() + static_cast<std::ptrdiff_t>(tokens) * row;
    different += std::equal(selected.begin(), selected.end(), expected) ? 0 : 1;
  }
  record("text.selected (sets)", layer, different, true);
}

}  // namespace tessera
