// SPDX-License-Identifier: Apache-2.0
// Addresses of the hashed n-gram table, and the gather of its rows. A thread computes one address,
// or decodes eight neighbouring elements.
#include <stdexcept>
#include <string>

#include "cuda/cuda_kernels.h"
#include "cuda/device/batch.cuh"
#include "cuda/device/bf16.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/ple/ple_plan.h"

namespace tessera::cuda {
namespace device {
namespace {

struct NgramIdsKernelArgs {
  const int32_t* ids = nullptr;        // [rows]
  const int64_t* constants = nullptr;  // multipliers, primes, offsets
  int64_t* table_rows = nullptr;       // [rows, heads]
  ops::RingRef token_ring;
  int ngram_size = 0;
  int heads_per_ngram = 0;
  int32_t eos = 0;

  __host__ __device__ int heads() const { return (ngram_size - 1) * heads_per_ngram; }
};

/// Id of the token `lag` places before a row of a span; EOS before the start of the sequence.
__device__ __forceinline__ int32_t token_before(const NgramIdsKernelArgs& args,
                                                const ops::RowSpan& span, int row, int lag) {
  const int inner = row - span.row_begin;
  if (inner >= lag) return args.ids[row - lag];
  const int64_t position = span.position + inner - lag;
  if (position < 0) return args.eos;
  return static_cast<int32_t>(
      *reinterpret_cast<const int64_t*>(ring_entry(args.token_ring, span.slot, position)));
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    ngram_ids(const __grid_constant__ NgramIdsKernelArgs args, const Batch batch) {
  const int heads = args.heads();
  const auto entry = static_cast<int64_t>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const auto row = static_cast<int>(entry / heads);
  const auto head = static_cast<int>(entry % heads);
  const int64_t prime = __ldg(args.constants + args.ngram_size + head);
  const int64_t offset = __ldg(args.constants + args.ngram_size + heads + head);
  allow_next_kernel();
  wait_for_inputs();
  if (row >= batch.num_rows) return;
  const ops::RowSpan span = batch.spans[batch.row_span[row]];
  uint64_t mixed = 0;
  bool cut = false;  // a predecessor is the end of a text: everything older counts as that id
  const int last_lag = head / args.heads_per_ngram + 1;
  for (int lag = 0; lag <= last_lag; ++lag) {
    const int32_t token = cut ? args.eos : token_before(args, span, row, lag);
    cut = cut || (lag > 0 && token == args.eos);
    // Wraps like the reference's int64.
    mixed ^=
        static_cast<uint64_t>(int64_t{token}) * static_cast<uint64_t>(__ldg(args.constants + lag));
  }
  const int64_t rest = static_cast<int64_t>(mixed) % prime;
  args.table_rows[entry] = (rest < 0 ? rest + prime : rest) + offset;
}

/// On the device a table is one shard; a few more are for tests of what a checkpoint holds.
constexpr int kMaxShards = 8;

struct GatherKernelArgs {
  const int64_t* table_rows = nullptr;  // [rows, heads]
  Bf16* out = nullptr;                  // [rows, heads, row_dim]
  const std::byte* shards[kMaxShards] = {};
  int64_t rows_per_shard = 0;
  int64_t entries = 0;  // rows * heads
  int num_shards = 0;
  int row_dim = 0;
  float scale = 1.0F;
};

/// Byte address of table row `row`.
template <class T>
__device__ __forceinline__ const T* table_row(const GatherKernelArgs& args, int64_t row) {
  const std::byte* shard = args.shards[0];
  if (args.num_shards > 1) {
    const int64_t index = row / args.rows_per_shard;
    row -= index * args.rows_per_shard;
    shard = args.shards[index];
  }
  return reinterpret_cast<const T*>(shard) + row * args.row_dim;
}

__device__ __forceinline__ void load8(const Bf16* from, float (&values)[kPleVector]) {
  unpack_bf16x8(__ldg(reinterpret_cast<const uint4*>(from)), values);
}
__device__ __forceinline__ void load8(const F8* from, float (&values)[kPleVector]) {
  const uint2 codes = __ldg(reinterpret_cast<const uint2*>(from));
  const uint2 low = f8x4_to_bf16x4(codes.x), high = f8x4_to_bf16x4(codes.y);
  unpack_bf16x8({low.x, low.y, high.x, high.y}, values);
}
__device__ __forceinline__ void load8(const float* from, float (&values)[kPleVector]) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(from));
  const float4 high = __ldg(reinterpret_cast<const float4*>(from) + 1);
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

/// One thread per Config::kVector elements of the output.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    ngram_gather(const __grid_constant__ GatherKernelArgs args) {
  using T = typename Config::Element;
  allow_next_kernel();
  wait_for_inputs();
  const auto pieces = static_cast<uint32_t>(args.row_dim / Config::kVector);
  const auto piece = static_cast<int64_t>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const int64_t entry = piece / pieces;
  if (entry >= args.entries) return;
  const auto column = static_cast<int>(piece % pieces) * Config::kVector;
  const T* from = table_row<T>(args, args.table_rows[entry]) + column;
  Bf16* to = args.out + entry * args.row_dim + column;
  if constexpr (Config::kVector == 1) {
    *to = from_float<Bf16>(to_float(*from) * args.scale);
  } else {
    float values[kPleVector];
    load8(from, values);
#pragma unroll
    for (float& value : values) value *= args.scale;
    *reinterpret_cast<uint4*>(to) = pack_bf16x8(values);
  }
}

}  // namespace
}  // namespace device

namespace {

struct IdsConfig {
  static constexpr int kThreads = 128;
};

template <class T, int kElements>
struct GatherConfig {
  using Element = T;
  static constexpr int kVector = kElements;
  static constexpr int kThreads = 128;
};

unsigned blocks_for(int64_t threads, int block) {
  return static_cast<unsigned>((threads + block - 1) / block);
}

template <class T>
void gather(Context& context, const device::GatherKernelArgs& args, bool vectors) {
  const auto run = [&](auto config) {
    using Config = decltype(config);
    const int64_t threads = args.entries * (args.row_dim / Config::kVector);
    launch(context, {.grid = {blocks_for(threads, Config::kThreads)}, .block = {Config::kThreads}},
           device::ngram_gather<Config>, args);
  };
  if (vectors)
    run(GatherConfig<T, kPleVector>{});
  else
    run(GatherConfig<T, 1>{});
}

}  // namespace

void launch_ngram_ids(Context& context, const ops::NgramIdsArgs& args) {
  const NgramHash& hash = *args.hash;
  const device::NgramIdsKernelArgs kernel_args{.ids = args.ids,
                                               .constants = hash.device_constants,
                                               .table_rows = args.table_rows,
                                               .token_ring = args.token_ring,
                                               .ngram_size = hash.ngram_size,
                                               .heads_per_ngram = hash.heads_per_ngram,
                                               .eos = hash.eos};
  const int64_t entries = int64_t{args.batch.num_rows} * kernel_args.heads();
  launch(context,
         {.grid = {blocks_for(entries, IdsConfig::kThreads)}, .block = {IdsConfig::kThreads}},
         device::ngram_ids<IdsConfig>, kernel_args, context.batch());
}

void launch_ngram_gather(Context& context, const ops::NgramGatherArgs& args) {
  const ops::NgramTable& table = *args.table;
  if (table.shards.size() > device::kMaxShards)
    throw std::invalid_argument("an n-gram table of " + std::to_string(table.shards.size()) +
                                " shards: a device table has one");
  device::GatherKernelArgs kernel_args{.table_rows = args.table_rows,
                                       .out = static_cast<device::Bf16*>(args.out),
                                       .rows_per_shard = table.rows_per_shard,
                                       .entries = int64_t{args.rows} * args.heads,
                                       .num_shards = static_cast<int>(table.shards.size()),
                                       .row_dim = table.row_dim};
  for (size_t shard = 0; shard < table.shards.size(); ++shard)
    kernel_args.shards[shard] = static_cast<const std::byte*>(table.shards[shard]);
  const bool vectors = supports_gather_vectors(args).empty();
  switch (table.dtype) {
    case DType::kBF16: return gather<device::Bf16>(context, kernel_args, vectors);
    case DType::kF32: return gather<float>(context, kernel_args, vectors);
    case DType::kF8E4M3:
      kernel_args.scale = table.scale;
      return gather<device::F8>(context, kernel_args, vectors);
    default: throw std::invalid_argument("an n-gram table is BF16, E4M3 or FP32");
  }
}

ops::KernelNote note_ngram(const GpuSpec&) {
  return {.op = "ngram_ids, ngram_gather",
          .kernel = "a thread per address, a thread per 8 elements",
          .reason = "rows of whole vectors; others: element by element"};
}

}  // namespace tessera::cuda
