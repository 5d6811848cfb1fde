// SPDX-License-Identifier: Apache-2.0
// Names and shapes of an n-gram memory layer and of its table, which files hold in row shards.
#include <algorithm>

#include "io/mapped_file.h"
#include "model/weight_layers.h"

namespace tessera {
namespace {

/// The shard as stored: half-precision tables become floats like every other F16 tensor.
const void* bind_shard(WeightBinder& binder, const std::string& name, const Shape& shape,
                       ops::NgramTable& table, bool first) {
  const TensorRef* tensor = binder.take(name, shape, WeightPart::kNgramTable);
  if (tensor == nullptr) return nullptr;
  const auto [data, dtype] = binder.place(*tensor);
  const bool known = dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF8E4M3;
  if (!known || (!first && dtype != table.dtype)) {
    binder.refuse({.code = Errc::kUnsupported,
                   .what = "unsupported element type of an n-gram shard",
                   .where = tensor->file + ": " + name,
                   .expected = first ? "BF16, F16, F32 or F8_E4M3 with weight_scale"
                                     : std::string(dtype_name(table.dtype)) + " as in shard 0",
                   .found = tensor->describe()});
    return nullptr;
  }
  table.dtype = dtype;
  if (data == tensor->data) advise_random(data, tensor->bytes);
  return data;
}

ops::NgramTable bind_table(WeightBinder& binder, const std::string& prefix, const NgramHash& hash,
                           const PleConfig& ple) {
  ops::NgramTable table;
  table.num_rows = hash.num_rows;
  table.row_dim = ple.embed_dim / ple.heads();
  table.rows_per_shard = (hash.num_rows + ple.split_parts - 1) / ple.split_parts;
  for (int shard = 0; shard < ple.split_parts && !binder.error(); ++shard) {
    const int64_t rows =
        std::clamp(hash.num_rows - shard * table.rows_per_shard, int64_t{0}, table.rows_per_shard);
    const std::string name = prefix + "shard_" + std::to_string(shard) + ".weight";
    table.shards.push_back(bind_shard(binder, name, {rows, table.row_dim}, table, shard == 0));
  }
  if (table.dtype == DType::kF8E4M3) {
    table.scale = binder.scalar(prefix + "weight_scale", WeightPart::kNgramTable);
  }
  return table;
}

}  // namespace

PleWeights bind_ple(WeightBinder& binder, const std::string& prefix, int ple_index,
                    const ModelConfig& config) {
  const PleConfig& ple = config.ple;
  constexpr WeightPart kPart = WeightPart::kPle;
  PleWeights weights;
  weights.key = binder.linear(prefix + "key_proj.weight", config.wide(), ple.embed_dim, kPart);
  weights.value = binder.linear(prefix + "value_proj.weight", config.hidden, ple.embed_dim, kPart);
  weights.norm_key = binder.values(prefix + "norm_key.weight", {config.wide()}, kPart);
  weights.norm_query = binder.values(prefix + "norm_query.weight", {config.wide()}, kPart);
  weights.norm_conv = binder.values(prefix + "norm_conv.weight", {config.wide()}, kPart);
  weights.conv =
      binder.values(prefix + "conv1d.weight", {config.wide(), 1, ple.conv_kernel}, kPart);

  weights.hash = make_ngram_hash(ple, config.vocab_size, ple_index);
  const std::string embedding = prefix + "ple_embedding.";
  binder.expect_integers(embedding + "layer_multipliers", weights.hash.multipliers, kPart);
  binder.expect_integers(embedding + "ngram_heads_offsets", weights.hash.offsets, kPart);
  binder.expect_integers(embedding + "ngram_heads_vocab_sizes", weights.hash.primes, kPart);
  weights.table = bind_table(binder, embedding + "ngram_embedding.", weights.hash, ple);
  return weights;
}

}  // namespace tessera
