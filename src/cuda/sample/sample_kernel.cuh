// SPDX-License-Identifier: Apache-2.0
// Sampling of a row by one block or one cluster: a pass over the logits finds the best token and
// what is wrong with them; where more is asked for, the logits stay in shared memory for the edits,
// the cuts and the draw.
#pragma once

#include "core/philox.h"
#include "cuda/device/pdl.cuh"
#include "cuda/sample/sample_select.cuh"

namespace tessera::cuda::device {

struct SampleKernelArgs {
  const float* logits = nullptr;  // [rows, vocab]
  int vocab = 0;
  int slice = 0;  // logits of a block
  // Of the host: pinned memory, ready before the launch, results cleared. Of a round: `rows` are
  // what an earlier kernel wrote, without edits, and results are arbitrary.
  bool of_round = false;
  const ops::SampleRow* rows = nullptr;
  const int* edit_bounds = nullptr;       // [rows, blocks + 1]: edits of each slice
  const ops::LogitEdit* edits = nullptr;  // of all rows
  ops::SampledToken* results = nullptr;   // [rows]
  float* copies = nullptr;                // [rows, vocab] scratch for edited logits, or nullptr
};

/// What a pass over all logits tells.
struct RowScan {
  uint64_t best = 0;            // packed token; 0: every logit is -Inf
  uint32_t bad = 0xFFFFFFFFU;   // lowest id of a NaN or +Inf
  uint32_t floor = kLowestKey;  // at least as many tokens as the group has warps reach this key
};

/// Scan of the tokens of one thread, in ascending order.
struct ThreadScan {
  float best = -INFINITY;
  uint32_t best_id = 0xFFFFFFFFU, bad = 0xFFFFFFFFU;

  __device__ __forceinline__ void add(float logit, uint32_t id) {
    if (!(logit < INFINITY)) bad = min(bad, id);
    if (logit > best) best = logit, best_id = id;
  }

  __device__ RowScan over(SampleGroup& group) const {
    SampleShared& shared = group.shared();
    const bool any = best_id != 0xFFFFFFFFU && bad == 0xFFFFFFFFU;
    const uint64_t in_warp = warp_max64(any ? packed(key_of(best), best_id) : 0);
    const uint32_t bad_in_warp = __reduce_min_sync(kAllLanes, bad);
    __syncthreads();  // readers of warp_values are done
    if (lane_id() == 0) {
      shared.warp_values[warp_id()] = in_warp;
      shared.warp_bad[warp_id()] = bad_in_warp;
    }
    __syncthreads();  // the values of all warps are there
    RowScan scan{.floor = 0xFFFFFFFFU};
#pragma unroll
    for (int warp = 0; warp < kSampleWarps; ++warp) {
      const uint64_t value = shared.warp_values[warp];
      scan.best = max(scan.best, value);
      scan.floor = min(scan.floor, key_in(value));
      scan.bad = min(scan.bad, shared.warp_bad[warp]);
    }
    group.exchange(scan.best, uint64_t{scan.bad} << 32 | scan.floor);
    for (int block = 0; block < group.blocks(); ++block) {
      const Published& other = shared.gathered[block];
      scan.best = max(scan.best, other.first);
      scan.bad = min(scan.bad, static_cast<uint32_t>(other.second >> 32));
      scan.floor = min(scan.floor, static_cast<uint32_t>(other.second));
    }
    scan.floor = max(scan.floor, kLowestKey);
    return scan;
  }
};

/// First pass: four logits at once where they are aligned. `to`: where the slice is kept, or
/// nullptr.
__device__ __forceinline__ ThreadScan read_slice(const Slice& slice, float* to) {
  constexpr int kVector = 4;
  ThreadScan scan;
  int begin = slice.warp_begin;
  const auto address = reinterpret_cast<uintptr_t>(slice.logits) | reinterpret_cast<uintptr_t>(to);
  if (address % (kVector * sizeof(float)) == 0) {
    const int vectors = (slice.warp_end - begin) / kVector;
#pragma unroll 4
    for (int index = lane_id(); index < vectors; index += kWarp) {
      const int at = begin + index * kVector;
      const float4 four = *reinterpret_cast<const float4*>(slice.logits + at);
      if (to != nullptr) *reinterpret_cast<float4*>(to + at) = four;
      const auto id = static_cast<uint32_t>(slice.first + at);
      scan.add(four.x, id);
      scan.add(four.y, id + 1);
      scan.add(four.z, id + 2);
      scan.add(four.w, id + 3);
    }
    begin += vectors * kVector;
  }
  for (int at = begin + lane_id(); at < slice.warp_end; at += kWarp) {
    const float logit = slice.logits[at];
    if (to != nullptr) to[at] = logit;
    scan.add(logit, static_cast<uint32_t>(slice.first + at));
  }
  return scan;
}

/// Edits of this block's tokens, in the order and with the roundings of the CPU.
__device__ __forceinline__ void apply_edits(const SampleKernelArgs& args, const ops::SampleRow& row,
                                            int begin, int end, int first, float* logits) {
  for (int at = begin + static_cast<int>(threadIdx.x); at < end; at += kSampleThreads) {
    const int token = args.edits[at].token;
    if (at > begin && args.edits[at - 1].token == token) continue;  // another thread has them
    float logit = logits[token - first];
    for (int index = at; index < end; ++index) {
      const ops::LogitEdit edit = args.edits[index];
      if (edit.token != token) break;
      logit = __fadd_rn(logit, edit.bias);
      if (edit.occurrences < 0) continue;
      logit = logit > 0.0F ? __fdiv_rn(logit, row.repetition_penalty)
                           : __fmul_rn(logit, row.repetition_penalty);
      logit =
          __fsub_rn(logit, __fmul_rn(row.frequency_penalty, static_cast<float>(edit.occurrences)));
      if (edit.occurrences > 0) logit = __fsub_rn(logit, row.presence_penalty);
    }
    logits[token - first] = logit;
  }
}

/// Log of the sum of exp(logit) over the row; the group's common result.
__device__ __forceinline__ double log_total(SampleGroup& group, const Slice& slice, float best) {
  const Weigher weigh(best, 1.0F);
  uint64_t sum = 0;
  slice.for_each([&](float logit, uint32_t) { sum += weigh(logit); });
  group.exchange(group.block_sum(sum), 0);
  const auto total = static_cast<double>(group.sum_before(group.blocks()));
  return static_cast<double>(best) +
         log(total / static_cast<double>(uint64_t{1} << kSampleWeightBits));
}

/// The `count` best tokens, 1..kMaxTopTokens, listed by the first block.
__device__ __forceinline__ void list_top(SampleGroup& group, const Slice& slice, int count,
                                         int valid, const RowScan& scan, double log_sum,
                                         ops::SampledToken* result) {
  SampleShared& shared = group.shared();
  Cut cut;
  if (count < valid) {
    const bool few = count <= group.blocks() * kSampleWarps;
    CutSearch search(group, slice);
    cut = search.find(Cut{}, few ? scan.floor : kLowestKey, key_in(scan.best), CountOne{},
                      [count](uint64_t) { return static_cast<uint64_t>(count); });
  }
  if (threadIdx.x == 0) shared.num_top = 0;
  __syncthreads();  // the list is empty
  slice.for_each([&](float logit, uint32_t id) {
    const uint32_t key = key_of(logit);
    if (cut.keeps(key, id)) shared.top[atomicAdd(&shared.num_top, 1U)] = {packed(key, id), 0};
  });
  __syncthreads();  // the list of this block is complete
  group.exchange(shared.num_top, 0);
  if (group.rank() == 0 && warp_id() == 0) {
    const int lane = lane_id();
    int block = 0, inner = lane;
    while (block < group.blocks() && inner >= static_cast<int>(shared.gathered[block].first))
      inner -= static_cast<int>(shared.gathered[block++].first);
    uint64_t token = 0;
    if (lane < count) {
      const uint4 raw = load_remote(remote_address(&shared.top[inner], block));
      token = uint64_t{raw.y} << 32 | raw.x;
    }
    int rank = 0;
    for (int other = 0; other < count; ++other)
      rank += __shfl_sync(kAllLanes, token, other) > token ? 1 : 0;
    if (lane < count)
      result->top[static_cast<size_t>(rank)] = {
          id_in(token), static_cast<float>(static_cast<double>(logit_of(key_in(token))) - log_sum)};
    if (lane == 0) result->num_top = count;
  }
}

/// The tokens that may be drawn: top-k, then the nucleus within it.
__device__ __forceinline__ Cut kept_tokens(SampleGroup& group, const Slice& slice,
                                           const ops::SampleRow& row, const RowScan& scan,
                                           const Weigher& weigh) {
  CutSearch search(group, slice);
  const uint32_t high = key_in(scan.best);
  Cut cut;
  if (row.top_k > 0 && row.top_k < row.valid_vocab) {
    const bool few = row.top_k <= group.blocks() * kSampleWarps;
    cut = search.find(cut, few ? scan.floor : kLowestKey, high, CountOne{},
                      [&row](uint64_t) { return static_cast<uint64_t>(row.top_k); });
  }
  if (row.top_p >= 1.0F) return cut;
  return search.find(cut, cut.key, high, CountWeight{weigh}, [&row](uint64_t total) {
    const double share = static_cast<double>(row.top_p) * static_cast<double>(total);
    const uint64_t least = __double2ull_ru(share);
    return min(max(least, uint64_t{1}), total);
  });
}

/// Inverse CDF over the kept tokens in ascending order of id. done(token) runs in one thread.
template <class Done>
__device__ __forceinline__ void draw(SampleGroup& group, const Slice& slice,
                                     const ops::SampleRow& row, const Cut& cut,
                                     const Weigher& weigh, Done&& done) {
  const auto weight = [&](float logit, uint32_t id) -> uint64_t {
    if (!cut.keeps(key_of(logit), id)) return 0;
    const float relative = weigh.relative(logit);
    return relative < row.min_p ? 0 : Weigher::fixed(relative);
  };
  uint64_t mass = 0;
  slice.for_each([&](float logit, uint32_t id) { mass += weight(logit, id); });
  const uint64_t in_block = group.block_sum(mass);
  group.exchange(in_block, 0);
  const uint64_t total = group.sum_before(group.blocks());
  const double uniform =
      philox_uniform(row.seed, static_cast<uint64_t>(row.position), DrawPurpose::kSample);
  const uint64_t scaled = __double2ull_rd(uniform * static_cast<double>(total));
  const uint64_t target = min(scaled, total - 1);
  uint64_t before = group.sum_before(group.rank());
  for (int warp = 0; warp < warp_id(); ++warp) before += group.shared().warp_values[warp];
  if (before > target || target >= before + group.shared().warp_values[warp_id()]) return;
  slice.for_each_step([&](float logit, uint32_t id, bool valid) {
    const uint64_t mine = valid ? weight(logit, id) : 0;
    const uint64_t through = before + warp_prefix64(mine);
    const uint32_t reached = __ballot_sync(kAllLanes, through > target);
    if (reached == 0) {
      before = __shfl_sync(kAllLanes, through, kWarp - 1);
      return true;
    }
    if (lane_id() == __ffs(static_cast<int>(reached)) - 1) done(static_cast<int32_t>(id));
    return false;
  });
}

template <class Config>
__device__ __forceinline__ void sample_row(const SampleKernelArgs& args, int row_index,
                                           SampleGroup& group, float* kept) {
  SampleShared& shared = group.shared();
  const ops::SampleRow& row = shared.row;
  const float* logits =
      args.logits + static_cast<size_t>(row_index) * static_cast<size_t>(args.vocab);
  ops::SampledToken* result = args.results + row_index;
  const bool leads = group.rank() == 0 && threadIdx.x == 0;
  const int first = group.rank() * args.slice;
  const int count = max(0, min(args.slice, row.valid_vocab - first));
  const bool edited = row.num_edits > 0;
  if constexpr (!Config::kInShared)
    kept = edited ? args.copies + static_cast<size_t>(row_index) * args.vocab + first : nullptr;
  const Slice raw(logits + first, first, count);
  RowScan scan = read_slice(raw, kept).over(group);
  const Slice slice(kept == nullptr ? raw.logits : kept, first, count);

  const auto failed = [&](const Slice& scanned) {
    if (scan.bad == 0xFFFFFFFFU && scan.best != 0) return false;
    if (scan.bad == 0xFFFFFFFFU) {
      if (leads) result->status = ops::SampleStatus::kNoToken;
    } else if (const auto bad = static_cast<int>(scan.bad);
               threadIdx.x == 0 && bad >= first && bad - first < count) {
      result->status = ops::SampleStatus::kBadLogit;
      result->token = bad;
      result->bad_logit = scanned.logits[bad - first];
    }
    return true;
  };
  if (failed(raw)) return;
  if constexpr (Config::kBestOnly) {
    if (leads) result->token = id_in(scan.best);
    return;
  }

  double log_sum = 0;
  if (row.top_logprobs >= 0) {
    log_sum = log_total(group, raw, logit_of(key_in(scan.best)));
    const int top = min(min(row.top_logprobs, ops::kMaxTopTokens), row.valid_vocab);
    if (top > 0) list_top(group, slice, top, row.valid_vocab, scan, log_sum, result);
  }
  if (edited) {
    apply_edits(args, row, shared.edits_begin, shared.edits_end, first, kept);
    __syncthreads();  // edited logits are there
    ThreadScan again;
    slice.for_each([&](float logit, uint32_t id) { again.add(logit, id); });
    scan = again.over(group);
    if (failed(slice)) return;
  }
  const auto done = [&](int32_t token) {
    result->token = token;
    if (row.top_logprobs >= 0)
      result->logprob = static_cast<float>(static_cast<double>(logits[token]) - log_sum);
  };
  if (row.temperature == 0.0F) {
    if (leads) done(id_in(scan.best));
    return;
  }
  const Weigher weigh(logit_of(key_in(scan.best)), row.temperature);
  const Cut cut = kept_tokens(group, slice, row, scan, weigh);
  draw(group, slice, row, cut, weigh, done);
}

/// The words of a plain struct by as many threads of a block, from thread 0 on.
template <class T>
__device__ __forceinline__ void copy_words(T* to, const T* from) {
  constexpr int kWords = sizeof(T) / sizeof(uint32_t);
  static_assert(kWords * sizeof(uint32_t) == sizeof(T) && kWords <= kSampleThreads);
  const auto word = static_cast<int>(threadIdx.x);
  if (word < kWords)
    reinterpret_cast<uint32_t*>(to)[word] = reinterpret_cast<const uint32_t*>(from)[word];
}

/// The first exchange of the group, which precedes every other write of a result, orders this one.
__device__ __forceinline__ void clear_result(const SampleGroup& group, ops::SampledToken* result) {
  constexpr int kWords = sizeof(ops::SampledToken) / sizeof(uint32_t);
  static_assert(kWords * sizeof(uint32_t) == sizeof(ops::SampledToken));
  static_assert(static_cast<int>(ops::SampleStatus::kDrawn) == 0 && kWords <= kSampleThreads);
  if (group.rank() == 0 && static_cast<int>(threadIdx.x) < kWords)
    reinterpret_cast<uint32_t*>(result)[threadIdx.x] = 0;
}

/// One block, or one cluster, per row.
template <class Config>
__global__ void __launch_bounds__(kSampleThreads)
    sample(const __grid_constant__ SampleKernelArgs args) {
  extern __shared__ uint4 storage[];
  SampleShared& shared = *reinterpret_cast<SampleShared*>(storage);
  SampleGroup group(shared);
  const int row = static_cast<int>(blockIdx.x) / group.blocks();
  if (!args.of_round) {
    // The host wrote these before the launch: no kernel has to be waited for.
    copy_words(&shared.row, args.rows + row);
    if (threadIdx.x == kWarp) {
      const int* bounds = args.edit_bounds + row * (group.blocks() + 1) + group.rank();
      shared.edits_begin = bounds[0];
      shared.edits_end = bounds[1];
    }
  }
  allow_next_kernel();
  wait_for_inputs();
  if (args.of_round) {
    copy_words(&shared.row, args.rows + row);
    clear_result(group, args.results + row);
  }
  __syncthreads();  // the row's settings are there
  sample_row<Config>(args, row, group, reinterpret_cast<float*>(&shared + 1));
  cluster_sync();  // nobody leaves while others read its shared memory
}

}  // namespace tessera::cuda::device
