// SPDX-License-Identifier: Apache-2.0
// Header of a safetensors file: 8 bytes of length, JSON, then the tensors packed without gaps.
#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <limits>
#include <optional>

#include "io/json_reader.h"

namespace tessera {
namespace {

namespace json = boost::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format
constexpr size_t kMaxRank = 16;
constexpr std::array kKnownTypes = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3,
                                    DType::kI64, DType::kI32, DType::kU8};

/// One entry of the header, offsets relative to the first byte after it.
struct Entry {
  std::string name{};
  TensorRef tensor{};
  uint64_t begin = 0;
  uint64_t end = 0;
};

tl::unexpected<Error> corrupt(std::string what, std::string where, std::string expected = {},
                              std::string found = {}) {
  return fail({.code = Errc::kCorruptFile,
               .what = std::move(what),
               .where = std::move(where),
               .expected = std::move(expected),
               .found = std::move(found)});
}

std::string range_text(uint64_t begin, uint64_t end) {
  return "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DType dtype : kKnownTypes) {
    if (name == dtype_name(dtype)) return dtype;
  }
  return std::nullopt;
}

uint64_t read_length(std::string_view file) {
  uint64_t length = 0;
  for (size_t byte = 0; byte < kLengthBytes; ++byte) {
    length |= uint64_t{static_cast<unsigned char>(file[byte])} << (8 * byte);
  }
  return length;
}

/// The JSON text of the header.
Result<std::string_view> header_text(std::string_view file, const std::string& where) {
  if (file.size() < kLengthBytes) {
    return corrupt("file is too short for a safetensors header", where, "at least 8 bytes",
                   std::to_string(file.size()) + " bytes");
  }
  const uint64_t length = read_length(file);
  if (length > kMaxHeaderBytes) {
    return corrupt("safetensors header is too long", where,
                   "at most " + std::to_string(kMaxHeaderBytes) + " bytes",
                   std::to_string(length) + " bytes");
  }
  if (length > file.size() - kLengthBytes) {
    return corrupt("safetensors header is truncated", where, std::to_string(length) + " bytes",
                   std::to_string(file.size() - kLengthBytes) + " bytes");
  }
  const std::string_view text = file.substr(kLengthBytes, length);
  if (text.empty() || text.front() != '{') {
    return corrupt("not a safetensors file", where, "a header that starts with {",
                   text.empty() ? "an empty header" : "other bytes");
  }
  return text;
}

/// Non-negative integers of a JSON array.
std::optional<std::vector<uint64_t>> whole_numbers(const json::value* value, size_t max_count) {
  const json::array* items = value == nullptr ? nullptr : value->if_array();
  if (items == nullptr || items->size() > max_count) return std::nullopt;
  std::vector<uint64_t> numbers;
  for (const json::value& item : *items) {
    if (const int64_t* number = item.if_int64(); number != nullptr && *number >= 0) {
      numbers.push_back(static_cast<uint64_t>(*number));
    } else if (const uint64_t* large = item.if_uint64()) {
      numbers.push_back(*large);
    } else {
      return std::nullopt;
    }
  }
  return numbers;
}

/// Bytes of a dense tensor, nothing when the product leaves int64.
std::optional<uint64_t> dense_bytes(const std::vector<int64_t>& shape, DType dtype) {
  constexpr auto kLimit = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  uint64_t bytes = dtype_bytes(dtype);
  for (const int64_t dim : shape) {
    if (bytes > kLimit / static_cast<uint64_t>(dim)) return std::nullopt;
    bytes *= static_cast<uint64_t>(dim);
  }
  return bytes;
}

Result<std::vector<int64_t>> read_shape(const json::object& fields, const std::string& where) {
  const auto dims = whole_numbers(fields.if_contains("shape"), kMaxRank);
  if (!dims) return corrupt("bad shape", where, "an array of at most 16 non-negative integers");
  std::vector<int64_t> shape;
  for (const uint64_t dim : *dims) {
    if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return corrupt("bad shape", where, "dimensions below 2^63", std::to_string(dim));
    }
    shape.push_back(static_cast<int64_t>(dim));
  }
  return shape;
}

Result<DType> read_dtype(const json::object& fields, const std::string& where) {
  const json::value* value = fields.if_contains("dtype");
  const json::string* name = value == nullptr ? nullptr : value->if_string();
  if (name == nullptr) return corrupt("missing dtype", where, "a string");
  const std::optional<DType> dtype = dtype_from_name(*name);
  if (!dtype) {
    return fail({.code = Errc::kUnsupported,
                 .what = "unknown element type",
                 .where = where,
                 .expected = "F32, F16, BF16, F8_E4M3, I64, I32 or U8",
                 .found = std::string(*name)});
  }
  return *dtype;
}

/// Offsets of one tensor; they must lie in the payload and cover exactly the shape.
Result<void> read_offsets(const json::object& fields, uint64_t payload_bytes, Entry& entry) {
  const std::string where = entry.tensor.file + ": " + entry.name;
  const auto offsets = whole_numbers(fields.if_contains("data_offsets"), 2);
  if (!offsets || offsets->size() != 2) {
    return corrupt("bad data_offsets", where, "two non-negative integers");
  }
  entry.begin = offsets->front();
  entry.end = offsets->back();
  if (entry.begin > entry.end || entry.end > payload_bytes) {
    return corrupt("data_offsets leave the file", where,
                   "a range inside " + range_text(0, payload_bytes),
                   range_text(entry.begin, entry.end));
  }
  const std::optional<uint64_t> bytes = dense_bytes(entry.tensor.shape, entry.tensor.dtype);
  entry.tensor.bytes = entry.end - entry.begin;
  if (!bytes || *bytes != entry.tensor.bytes) {
    return corrupt("shape and data_offsets disagree", where,
                   (bytes ? std::to_string(*bytes) : std::string("over 2^63")) + " bytes for " +
                       entry.tensor.describe(),
                   std::to_string(entry.tensor.bytes) + " bytes");
  }
  return {};
}

Result<Entry> read_entry(std::string_view name, const json::value& value, uint64_t payload_bytes,
                         const std::string& file) {
  const std::string where = file + ": " + std::string(name);
  const json::object* fields = value.if_object();
  if (fields == nullptr) return corrupt("bad tensor entry", where, "an object");
  if (fields->size() != 3) {
    return corrupt("bad tensor entry", where, "dtype, shape and data_offsets",
                   std::to_string(fields->size()) + " fields");
  }
  Result<DType> dtype = read_dtype(*fields, where);
  if (!dtype) return fail(std::move(dtype.error()));
  Result<std::vector<int64_t>> shape = read_shape(*fields, where);
  if (!shape) return fail(std::move(shape.error()));
  Entry entry{.name = std::string(name),
              .tensor = {.dtype = *dtype, .shape = std::move(*shape), .file = file}};
  if (Result<void> offsets = read_offsets(*fields, payload_bytes, entry); !offsets) {
    return fail(std::move(offsets.error()));
  }
  return entry;
}

Result<void> check_metadata(const json::value& value, const std::string& where) {
  const json::object* pairs = value.if_object();
  const bool strings =
      pairs != nullptr && std::all_of(pairs->begin(), pairs->end(),
                                      [](const auto& pair) { return pair.value().is_string(); });
  if (!strings) return corrupt("bad __metadata__", where, "an object of strings");
  return {};
}

/// The format packs tensors back to back: a gap, an overlap or a rest means a damaged file.
Result<void> check_packing(std::vector<Entry>& entries, uint64_t payload_bytes,
                           const std::string& where) {
  std::sort(entries.begin(), entries.end(), [](const Entry& left, const Entry& right) {
    return left.begin != right.begin ? left.begin < right.begin : left.end < right.end;
  });
  constexpr const char* kHint = "an entry between them may be missing from the header";
  uint64_t position = 0;
  std::string before = "the start of the data";
  for (const Entry& entry : entries) {
    if (entry.begin != position) {
      const bool is_gap = entry.begin > position;
      return fail({.code = Errc::kCorruptFile,
                   .what = is_gap ? "gap between tensors" : "tensors overlap",
                   .where = where + ": " + before + " and " + entry.name,
                   .expected = entry.name + " to start at byte " + std::to_string(position),
                   .found = range_text(entry.begin, entry.end),
                   .hint = is_gap ? kHint : ""});
    }
    position = entry.end;
    before = entry.name;
  }
  if (position != payload_bytes) {
    return fail({.code = Errc::kCorruptFile,
                 .what = "bytes after the last tensor",
                 .where = where + ": " + before,
                 .expected = std::to_string(position) + " bytes",
                 .found = std::to_string(payload_bytes) + " bytes",
                 .hint = "an entry after it may be missing from the header"});
  }
  return {};
}

}  // namespace

int64_t TensorRef::elements() const {
  // Parsing bounds the product of a shape without zeros; with one, the other factors are free.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

bool TensorRef::aligned() const {
  return reinterpret_cast<uintptr_t>(data) % dtype_bytes(dtype) == 0;
}

std::string TensorRef::describe() const { return shape_text(shape) + " " + dtype_name(dtype); }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis != 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + "]";
}

Result<TensorMap> parse_safetensors(std::string_view file, const std::string& where) {
  const Result<std::string_view> header = header_text(file, where);
  if (!header) return fail(header.error());
  const Result<json::value> parsed = parse_json(*header, where);
  if (!parsed) return fail(parsed.error());
  const std::string_view payload = file.substr(kLengthBytes + header->size());

  std::vector<Entry> entries;
  for (const auto& [name, value] : parsed->as_object()) {
    if (name == "__metadata__") {
      if (Result<void> metadata = check_metadata(value, where); !metadata) {
        return fail(std::move(metadata.error()));
      }
      continue;
    }
    Result<Entry> entry = read_entry(name, value, payload.size(), where);
    if (!entry) return fail(std::move(entry.error()));
    entries.push_back(std::move(*entry));
  }
  if (Result<void> packing = check_packing(entries, payload.size(), where); !packing) {
    return fail(std::move(packing.error()));
  }
  TensorMap tensors;
  for (Entry& entry : entries) {
    entry.tensor.data = reinterpret_cast<const std::byte*>(payload.data()) + entry.begin;
    tensors.emplace(std::move(entry.name), std::move(entry.tensor));
  }
  return tensors;
}

}  // namespace tessera
