// SPDX-License-Identifier: Apache-2.0
// Shape, type and placement checks of checkpoint tensors.
#include "model/weight_binder.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>

namespace tessera {
namespace {

constexpr std::array<const char*, kNumWeightParts> kPartNames = {
    "embedding", "lm_head",        "gated residual", "gdn", "qsa",          "indexer",
    "router",    "routed experts", "shared expert",  "ple", "n-gram table", "draft layer"};

constexpr const char* kOtherModel = "config.json and the weights belong to different models";

std::string locate(const TensorRef& tensor, const std::string& name) {
  return tensor.file + ": " + name;
}

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

template <class T>
T read_unaligned(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

float float_at(const TensorRef& tensor, size_t index) {
  const std::byte* from = tensor.data + index * dtype_bytes(tensor.dtype);
  switch (tensor.dtype) {
    case DType::kF32: return read_unaligned<float>(from);
    case DType::kBF16: return bf16_to_float(read_unaligned<uint16_t>(from));
    case DType::kF16: return f16_to_float(read_unaligned<uint16_t>(from));
    default: return std::numeric_limits<float>::quiet_NaN();
  }
}

std::vector<float> to_floats(const TensorRef& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  for (size_t index = 0; index < values.size(); ++index) values[index] = float_at(tensor, index);
  return values;
}

std::string type_names(const std::set<DType>& types) {
  std::string text;
  for (const DType dtype : types)
    text += (text.empty() ? "" : ", ") + std::string(dtype_name(dtype));
  return text;
}

}  // namespace

const TensorRef* WeightBinder::find(const std::string& name, const std::string& expected) {
  if (error_) return nullptr;
  const auto found = checkpoint_.tensors.find(name);
  if (found != checkpoint_.tensors.end()) return &found->second;
  refuse({.code = Errc::kNotFound,
          .what = "missing tensor",
          .where = checkpoint_.dir + ": " + name,
          .expected = expected,
          .hint = "the download is incomplete, or " + std::string(kOtherModel)});
  return nullptr;
}

void WeightBinder::mark(const std::string& name, const TensorRef& tensor, WeightPart part,
                        bool parameters) {
  used_.insert(name);
  Account& entry = account(only_part_.value_or(part));
  entry.bytes += tensor.bytes;
  if (!parameters) return;
  entry.parameters += static_cast<uint64_t>(tensor.elements());
  entry.types.insert(tensor.dtype);
}

void WeightBinder::wrong_shape(const std::string& name, const TensorRef& tensor,
                               const std::string& expected) {
  refuse({.code = Errc::kMismatch,
          .what = "wrong shape",
          .where = locate(tensor, name),
          .expected = expected,
          .found = tensor.describe(),
          .hint = kOtherModel});
}

void WeightBinder::wrong_type(const std::string& name, const TensorRef& tensor,
                              const std::string& expected) {
  refuse({.code = Errc::kUnsupported,
          .what = "unsupported element type",
          .where = locate(tensor, name),
          .expected = expected,
          .found = tensor.describe()});
}

const TensorRef* WeightBinder::take(const std::string& name, const Shape& shape, WeightPart part) {
  const TensorRef* tensor = find(name, shape_text(shape));
  if (tensor == nullptr) return nullptr;
  if (tensor->shape != shape) {
    wrong_shape(name, *tensor, shape_text(shape));
    return nullptr;
  }
  mark(name, *tensor, part, true);
  return tensor;
}

std::pair<const void*, DType> WeightBinder::place(const TensorRef& tensor) {
  if (tensor.dtype == DType::kF16) {
    weights_.converted.push_back(to_floats(tensor));
    return {weights_.converted.back().data(), DType::kF32};
  }
  if (tensor.aligned()) return {tensor.data, tensor.dtype};
  weights_.copied.emplace_back(tensor.data, tensor.data + tensor.bytes);
  return {weights_.copied.back().data(), tensor.dtype};
}

ops::LinearWeight WeightBinder::linear(const std::string& name, int out, int in, WeightPart part) {
  const TensorRef* tensor = take(name, {out, in}, part);
  if (tensor == nullptr) return {};
  if (!is_float(tensor->dtype) && tensor->dtype != DType::kF8E4M3) {
    wrong_type(name, *tensor, "BF16, F16, F32, or F8_E4M3 with scales");
    return {};
  }
  ops::LinearWeight weight{.out_features = out, .in_features = in};
  std::tie(weight.data, weight.dtype) = place(*tensor);
  if (weight.dtype == DType::kF8E4M3) {
    weight.scale = block_scales(name + "_scale_inv", out, in, part);
  }
  return weight;
}

const float* WeightBinder::block_scales(const std::string& name, int out, int in, WeightPart part) {
  const auto blocks = [](int size) { return (size + ops::kScaleBlock - 1) / ops::kScaleBlock; };
  const std::string expected = shape_text({blocks(out), blocks(in)});
  const TensorRef* tensor = find(name, expected);
  if (tensor == nullptr) return nullptr;
  if (tensor->shape != Shape{blocks(out), blocks(in)}) {
    wrong_shape(name, *tensor, expected);
    return nullptr;
  }
  mark(name, *tensor, part, false);
  return finite_floats(name, *tensor);
}

std::vector<ops::LinearWeight> WeightBinder::stacked(const std::string& name, int count, int out,
                                                     int in, WeightPart part) {
  const TensorRef* tensor = take(name, {count, out, in}, part);
  if (tensor == nullptr) return {};
  if (!is_float(tensor->dtype)) {
    wrong_type(name, *tensor, "BF16, F16 or F32 (quantised experts come one tensor per expert)");
    return {};
  }
  const auto [data, dtype] = place(*tensor);
  std::vector<ops::LinearWeight> weights;
  for (int index = 0; index < count; ++index) {
    ops::LinearWeight weight{.dtype = dtype, .out_features = out, .in_features = in};
    weight.data = static_cast<const std::byte*>(data) + static_cast<size_t>(index) * weight.bytes();
    weights.push_back(weight);
  }
  return weights;
}

const float* WeightBinder::finite_floats(const std::string& name, const TensorRef& tensor) {
  if (!is_float(tensor.dtype)) {
    wrong_type(name, tensor, "BF16, F16 or F32");
    return nullptr;
  }
  std::vector<float> floats = to_floats(tensor);
  for (size_t index = 0; index < floats.size(); ++index) {
    if (std::isfinite(floats[index])) continue;
    refuse({.code = Errc::kNumerics,
            .what = "value is not finite",
            .where = locate(tensor, name),
            .found = std::to_string(floats[index]) + " at element " + std::to_string(index),
            .hint = "the file is damaged"});
    return nullptr;
  }
  weights_.converted.push_back(std::move(floats));
  return weights_.converted.back().data();
}

const float* WeightBinder::values(const std::string& name, const Shape& shape, WeightPart part) {
  const TensorRef* tensor = take(name, shape, part);
  return tensor == nullptr ? nullptr : finite_floats(name, *tensor);
}

float WeightBinder::scalar(const std::string& name, WeightPart part) {
  const TensorRef* tensor = find(name, "[1]");
  if (tensor == nullptr) return 0;
  if (!tensor->shape.empty() && tensor->shape != Shape{1}) {
    wrong_shape(name, *tensor, "[1]");
    return 0;
  }
  mark(name, *tensor, part, false);
  const float* value = finite_floats(name, *tensor);
  return value == nullptr ? 0 : *value;
}

void WeightBinder::expect_integers(const std::string& name, const std::vector<int64_t>& expected,
                                   WeightPart part) {
  if (!has(name)) return;
  const TensorRef* tensor = find(name, {});
  if (tensor == nullptr) return;
  const Shape shape = {static_cast<int64_t>(expected.size())};
  if (tensor->dtype != DType::kI64 || tensor->shape != shape) {
    wrong_shape(name, *tensor, shape_text(shape) + " I64");
    return;
  }
  mark(name, *tensor, part, false);
  for (size_t index = 0; index < expected.size(); ++index) {
    const auto found = read_unaligned<int64_t>(tensor->data + index * sizeof(int64_t));
    if (found == expected[index]) continue;
    refuse({.code = Errc::kMismatch,
            .what = "hash constant differs from the one that config.json implies",
            .where = locate(*tensor, name) + "[" + std::to_string(index) + "]",
            .expected = std::to_string(expected[index]),
            .found = std::to_string(found),
            .hint = kOtherModel});
    return;
  }
}

std::vector<SizeEntry> WeightBinder::sizes() const {
  std::vector<SizeEntry> entries;
  for (size_t part = 0; part < accounts_.size(); ++part) {
    const Account& entry = accounts_[part];
    if (entry.bytes == 0) continue;
    entries.push_back({.name = kPartNames[part],
                       .bytes = entry.bytes,
                       .parameters = entry.parameters,
                       .note = type_names(entry.types)});
  }
  return entries;
}

}  // namespace tessera
