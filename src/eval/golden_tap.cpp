// SPDX-License-Identifier: Apache-2.0
// Relative errors of float tensors, counted differences of choices.
#include "eval/golden_tap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

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

namespace {

/// How one row's blocks differ from the tokens [tokens] that the reference attends to, if they do:
/// those of its blocks and the open tail.
std::optional<BlockSwap> compare_row(std::span<const uint8_t> expected,
                                     const std::vector<int32_t>& blocks, int block_tokens,
                                     int row) {
  const int visible = (row + 1) / block_tokens;
  BlockSwap swap{.row = row};
  std::vector<uint8_t> selected(expected.size(), 0);
  for (const int32_t block : blocks) {
    const bool exists = block >= 0 && block < visible;
    if (exists) std::fill_n(selected.begin() + block * block_tokens, block_tokens, uint8_t{1});
    if (!exists || expected[static_cast<size_t>(block * block_tokens)] == 0)
      swap.taken.push_back(block);
  }
  for (int block = 0; block < visible; ++block) {
    const auto first = static_cast<size_t>(block * block_tokens);
    if (expected[first] != 0 && selected[first] == 0) swap.dropped.push_back(block);
  }
  std::fill(selected.begin() + visible * block_tokens, selected.begin() + row + 1, uint8_t{1});
  const bool same_tokens = std::equal(selected.begin(), selected.end(), expected.begin());
  if (same_tokens && swap.taken.empty()) return std::nullopt;
  return swap;
}

}  // namespace

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
  const double error = relative_l2(computed.data(), reference.data(), count);
  if (name == "attn_in") hidden_errors_[layer] = error;
  record(kind, layer, error, false);
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
  const size_t before = swaps_.size();
  for (int row = 0; row < rows; ++row) {
    const int32_t* list = blocks + static_cast<size_t>(row) * static_cast<size_t>(budget_blocks);
    const std::vector<int32_t> ours(list, list + std::clamp(counts[row], 0, budget_blocks));
    const auto expected = std::span(reference).subspan(tokens * static_cast<size_t>(row), tokens);
    if (auto swap = compare_row(expected, ours, shape_.block, row)) {
      swap->layer = layer;
      swaps_.push_back(std::move(*swap));
    }
  }
  record(kSelectedSets, layer, static_cast<double>(swaps_.size() - before), true);
}

double GoldenTap::hidden_error(int layer) const {
  const auto at = hidden_errors_.find(layer);
  return at == hidden_errors_.end() ? 0 : at->second;
}

}  // namespace tessera
