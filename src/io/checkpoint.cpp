// SPDX-License-Identifier: Apache-2.0
// Finds the weight files of a folder and joins their tensors; index and shards must agree exactly.
#include "io/checkpoint.h"

#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <filesystem>
#include <iomanip>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>

#include "core/log.h"
#include "io/json_reader.h"

namespace tessera {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr const char* kExtension = ".safetensors";
constexpr size_t kMaxIndexBytes = 256U << 20;

/// Tensor name to file name.
using WeightMap = std::map<std::string, std::string, std::less<>>;

struct Index {
  WeightMap weights{};
  std::optional<double> total_bytes{};  // some writers store a float
};

tl::unexpected<Error> disagree(std::string what, std::string where, std::string found) {
  return fail({.code = Errc::kCorruptFile,
               .what = std::move(what),
               .where = std::move(where),
               .found = std::move(found),
               .hint = "the index and the weight files belong to different downloads"});
}

/// A plain name in the folder: an index must not reach other files of the machine.
bool plain_file_name(std::string_view name) {
  return name.size() > std::string_view(kExtension).size() && name.ends_with(kExtension) &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

/// metadata.total_size; anything else under the name is ignored, since no byte is read by it.
std::optional<double> read_total_size(const json::object& root) {
  const json::value* metadata = root.if_contains("metadata");
  const json::object* pairs = metadata == nullptr ? nullptr : metadata->if_object();
  const json::value* size = pairs == nullptr ? nullptr : pairs->if_contains("total_size");
  if (size == nullptr || !size->is_number()) return std::nullopt;
  json::error_code ignored;
  return size->to_number<double>(ignored);
}

/// Only a warning: published indexes round it, or count tied tensors twice.
void compare_total_size(const Index& index, const std::string& path, const TensorMap& tensors) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.bytes;
  if (!index.total_bytes || *index.total_bytes == static_cast<double>(bytes)) return;
  std::ostringstream declared;
  declared << std::fixed << std::setprecision(0) << *index.total_bytes;
  log_message(LogLevel::kWarning, path + ": metadata.total_size is " + declared.str() +
                                      ", the tensors have " + std::to_string(bytes) + " bytes");
}

Result<Index> read_index(const std::string& path) {
  const Result<std::string> text = read_text_file(path, kMaxIndexBytes);
  if (!text) return fail(text.error());
  const Result<json::value> parsed = parse_json(*text, path);
  if (!parsed) return fail(parsed.error());
  const json::object* root = parsed->if_object();
  const json::value* map = root == nullptr ? nullptr : root->if_contains("weight_map");
  const json::object* pairs = map == nullptr ? nullptr : map->if_object();
  if (pairs == nullptr || pairs->empty()) {
    return fail({.code = Errc::kCorruptFile,
                 .what = "bad index",
                 .where = path,
                 .expected = "weight_map: tensor names to file names"});
  }
  Index index{.total_bytes = read_total_size(*root)};
  for (const auto& [name, value] : *pairs) {
    const json::string* file = value.if_string();
    if (file == nullptr || !plain_file_name(*file)) {
      return fail({.code = Errc::kCorruptFile,
                   .what = "bad shard name",
                   .where = path + ": " + std::string(name),
                   .expected = "the name of a .safetensors file in the same folder",
                   .found = file == nullptr ? "not a string" : std::string(*file)});
    }
    index.weights.emplace(std::string(name), std::string(*file));
  }
  return index;
}

Result<TensorMap> open_file(const std::string& path, Checkpoint& checkpoint) {
  Result<std::shared_ptr<const MappedFile>> file = MappedFile::open(path);
  if (!file) return fail(std::move(file.error()));
  checkpoint.files.push_back(*file);
  return parse_safetensors((*file)->bytes(), path);
}

/// Adds one shard; each of its tensors must be listed for exactly this file.
Result<void> add_shard(const std::string& dir, const std::string& name, const WeightMap& weights,
                       Checkpoint& checkpoint) {
  const std::string path = dir + "/" + name;
  Result<TensorMap> shard = open_file(path, checkpoint);
  if (!shard) {
    Error error = std::move(shard.error());
    if (error.code == Errc::kNotFound) {
      error.what = "missing shard";
      error.hint = "the index lists it; is the download complete?";
    }
    return fail(std::move(error));
  }
  for (auto& [tensor_name, tensor] : *shard) {
    const auto listed = weights.find(tensor_name);
    if (listed == weights.end()) {
      return disagree("tensor is not in the index", path + ": " + tensor_name, {});
    }
    if (listed->second != name) {
      return disagree("tensor is in another shard than listed", path + ": " + tensor_name,
                      "listed in " + listed->second);
    }
    checkpoint.tensors.emplace(tensor_name, std::move(tensor));
  }
  return {};
}

Result<void> open_shards(const std::string& dir, Checkpoint& checkpoint) {
  const std::string path = dir + "/" + kIndexFile;
  const Result<Index> index = read_index(path);
  if (!index) return fail(index.error());
  const WeightMap& weights = index->weights;
  std::set<std::string, std::less<>> names;
  for (const auto& [tensor, file] : weights) names.insert(file);
  for (const std::string& name : names) {
    if (Result<void> added = add_shard(dir, name, weights, checkpoint); !added) return added;
  }
  for (const auto& [tensor, file] : weights) {
    if (!checkpoint.tensors.contains(tensor)) {
      return disagree("tensor of the index is missing", dir + "/" + file + ": " + tensor, {});
    }
  }
  compare_total_size(*index, path, checkpoint.tensors);
  return {};
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> open_checkpoint(const std::string& model_dir) {
  const auto checkpoint = std::make_shared<Checkpoint>();
  checkpoint->dir = model_dir;
  std::error_code ignored;
  const bool single = fs::exists(model_dir + "/" + kSingleFile, ignored);
  const bool sharded = fs::exists(model_dir + "/" + kIndexFile, ignored);
  if (single && sharded) {
    return fail({.code = Errc::kCorruptFile,
                 .what = "two sets of weights",
                 .where = model_dir,
                 .expected = std::string(kSingleFile) + " or " + kIndexFile,
                 .found = "both",
                 .hint = "remove the one that is left over"});
  }
  if (!single && !sharded) {
    return fail({.code = Errc::kNotFound,
                 .what = "no weights",
                 .where = model_dir,
                 .expected = std::string(kSingleFile) + " or " + kIndexFile,
                 .hint = "give the folder of a checkpoint in the released layout"});
  }
  if (sharded) {
    if (Result<void> opened = open_shards(model_dir, *checkpoint); !opened) {
      return fail(std::move(opened.error()));
    }
    return checkpoint;
  }
  Result<TensorMap> tensors = open_file(model_dir + "/" + kSingleFile, *checkpoint);
  if (!tensors) return fail(std::move(tensors.error()));
  checkpoint->tensors = std::move(*tensors);
  return checkpoint;
}

}  // namespace tessera
