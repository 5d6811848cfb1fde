// SPDX-License-Identifier: Apache-2.0
// Takes tensors out of a checkpoint by name and shape, and keeps account of what was taken.
#pragma once

#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "model/config_fields.h"
#include "model/weights.h"

namespace tessera {

enum class WeightPart : uint8_t {
  kEmbedding,
  kLmHead,
  kGatedResidual,
  kGdn,
  kQsa,
  kIndexer,
  kRouter,
  kRoutedExperts,
  kSharedExpert,
  kPle,
  kNgramTable,
  kDraftLayer,
};
inline constexpr int kNumWeightParts = 12;

using Shape = std::vector<int64_t>;

/// After the first error every call returns an empty value, so callers check once, at the end.
class WeightBinder {
 public:
  WeightBinder(const Checkpoint& checkpoint, ModelWeights& weights)
      : checkpoint_(checkpoint), weights_(weights) {}

  const TensorMap& tensors() const { return checkpoint_.tensors; }
  bool has(const std::string& name) const { return checkpoint_.tensors.contains(name); }

  /// [out, in]; F8_E4M3 needs `name` + "_scale_inv", one scale per 128 x 128 block.
  ops::LinearWeight linear(const std::string& name, int out, int in, WeightPart part);
  /// A stack of equal matrices [count, out, in] in one tensor, without FP8.
  std::vector<ops::LinearWeight> stacked(const std::string& name, int count, int out, int in,
                                         WeightPart part);
  /// A small tensor as floats; NaN and infinity are refused.
  const float* values(const std::string& name, const Shape& shape, WeightPart part);
  /// A tensor of one element, [1] or [].
  float scalar(const std::string& name, WeightPart part);
  /// Int64 constants that repeat what the config implies; absent ones are fine.
  void expect_integers(const std::string& name, const std::vector<int64_t>& expected,
                       WeightPart part);

  /// The tensor, marked as used; nullptr (and an error) when it is missing or has another shape.
  const TensorRef* take(const std::string& name, const Shape& shape, WeightPart part);
  /// Readable address of a taken tensor and its type: F16 becomes F32, unaligned data is copied.
  std::pair<const void*, DType> place(const TensorRef& tensor);

  /// From now on every tensor counts as one of `part`, whatever the caller says.
  void account_all_as(WeightPart part) { only_part_ = part; }

  void refuse(Error error) { error_.report(std::move(error)); }
  const FirstError& error() const { return error_; }
  bool used(const std::string& name) const { return used_.contains(name); }
  std::vector<SizeEntry> sizes() const;
  /// Element types of the tensors of a part.
  const std::set<DType>& types(WeightPart part) const { return account(part).types; }

 private:
  struct Account {
    uint64_t bytes = 0;
    uint64_t parameters = 0;
    std::set<DType> types{};
  };
  const Account& account(WeightPart part) const { return accounts_[static_cast<size_t>(part)]; }
  Account& account(WeightPart part) { return accounts_[static_cast<size_t>(part)]; }

  const TensorRef* find(const std::string& name, const std::string& expected);
  void mark(const std::string& name, const TensorRef& tensor, WeightPart part, bool parameters);
  const float* block_scales(const std::string& name, int out, int in, WeightPart part);
  const float* finite_floats(const std::string& name, const TensorRef& tensor);
  void wrong_shape(const std::string& name, const TensorRef& tensor, const std::string& expected);
  void wrong_type(const std::string& name, const TensorRef& tensor, const std::string& expected);

  const Checkpoint& checkpoint_;
  ModelWeights& weights_;
  FirstError error_{};
  std::unordered_set<std::string> used_{};
  std::array<Account, kNumWeightParts> accounts_{};
  std::optional<WeightPart> only_part_{};
};

}  // namespace tessera
