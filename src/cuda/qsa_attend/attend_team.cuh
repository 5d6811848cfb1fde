// SPDX-License-Identifier: Apache-2.0
// A team of warps runs some tiles of one row. For the logits its warps share out the tokens,
// for the weighted sum of values the dims. Keys and values go from memory to registers; rows that
// select the same blocks meet in the first-level cache.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/cluster_push.cuh"
#include "cuda/device/named_barrier.cuh"
#include "cuda/qsa_attend/attend_fold.cuh"
#include "cuda/qsa_attend/attend_list.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <class Config>
class AttendTeam {
 public:
  using Elements = typename Config::Elements;
  using Shared = AttendTeamShared<Config>;
  static constexpr int kHeadVectors =
      Config::kDim * static_cast<int>(sizeof(Bf16)) / kVectorBytes;  // of a query
  static constexpr int kQueryParts = Config::kGroup * kHeadVectors / Config::kTeamThreads;
  static_assert(kQueryParts * Config::kTeamThreads == Config::kGroup * kHeadVectors);

  __device__ AttendTeam(Shared& shared, const ops::QsaAttendArgs& args, int kv_head, int team)
      : shared_(shared),
        args_(args),
        team_(team),
        share_(warp_id() % Config::kTeamWarps),
        first_head_(kv_head * Config::kGroup),
        list_(shared, args, kv_head) {}

  /// What does not depend on the sequence: the row's list and queries, on their way.
  struct Begun {
    typename AttendList<Config>::Entries entries;
    uint4 query[kQueryParts];
    int row;
    bool sharing;
  };
  /// `sharing`: the row before runs beside this one.
  __device__ Begun start(int row, bool sharing, int tile) {
    Begun begun{.entries = list_.start(row, sharing, tile), .row = row, .sharing = sharing};
    const auto head = static_cast<size_t>(row * args_.shape.heads + first_head_);
    const auto* from = static_cast<const std::byte*>(args_.q) + head * kHeadVectors * kVectorBytes;
#pragma unroll
    for (int part = 0; part < kQueryParts; ++part)
      gather_vector(begun.query[part], from + query_unit(part) * kVectorBytes);
    return begun;
  }

  /// Folds tiles `first` .. `end` - 1. `last`: the tile that the open tail belongs to.
  __device__ void run(const Begun& begun, int64_t position, const int32_t* pages, int first,
                      int end, int last) {
    const int64_t tokens = position + 1;
    const bool owns_tail = first <= last && last < end;
    const int tail_tokens = owns_tail ? static_cast<int>(tokens % Config::kBlock) : 0;
    list_.stage(begun.entries, pages);
    uint32_t tail_place = 0;
    if (tail_tokens > 0) {
      tail_place = list_.place_of(pages, static_cast<int>(tokens / Config::kBlock));
      if (share_ == 0) list_.prefetch_tail(args_.cache.keys, tail_place);
      if (share_ == 1) list_.prefetch_tail(args_.cache.values, tail_place);
    }
    if (query_unit(0) == 0)
      shared_.task = {begun.row, begun.sharing, pages, tail_place, tail_tokens};
    stage_query(begun.query);
    barrier();  // queries, places and the task are there
    list_.mark_shared(begun.entries, begun.row, begun.sharing);
    for (int tile = first; tile < end; ++tile) {
      if constexpr (!Config::kOneTile)
        if (tile == list_.first_tile() + AttendList<Config>::kTiles) restage(tile);
      entries_ = list_.entries(tile);
      tail_tokens_ = tile == last ? shared_.task.tail_tokens : 0;
      if (entries_ + tail_tokens_ > 0) run_tile(tile, tile == list_.first_tile());
    }
  }

  /// Leaves the folded sums in shared memory. A lane holds 16 neighbouring dims of two heads in
  /// each slice.
  __device__ void publish() const {
    barrier();  // the sums replace queries and weights: every warp has used its last ones
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = quad() + kColumns * half;
      if (head >= Config::kGroup) continue;
      if (share_ == 0 && lane_in_quad() == 0)
        shared_.partial[head] = {partial_[half].peak, partial_[half].sum, 0, 0};
      float* to = &shared_.sums[head][share_ * kWarpDims + lane_in_quad() * kLaneDims];
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int dim = 0; dim < kLaneDims; dim += 4)
          *reinterpret_cast<float4*>(to + slice * kSliceDims + dim) = four_sums(slice, half, dim);
    }
  }
  /// Pushes the folded sums as those of `rank`: the dims of a lane belong to one block.
  __device__ void push(AttendInbox<Config>& inbox, int rank) const {
    static_assert(AttendInbox<Config>::kDims == kLaneDims && kSlices == 1);
    const int block = share_ * (kWarpDims / kLaneDims) + lane_in_quad();
    const uint32_t full = remote_address(&inbox.full, block);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = quad() + kColumns * half;
      if (head >= Config::kGroup) continue;
      push_counted(remote_address(&inbox.partial[rank][head], block),
                   float2{partial_[half].peak, partial_[half].sum}, full);
      const uint32_t to = remote_address(inbox.sums[rank][head], block);
#pragma unroll
      for (int dim = 0; dim < kLaneDims; dim += 4)
        push_counted(to + static_cast<uint32_t>(dim * static_cast<int>(sizeof(float))),
                     four_sums(0, half, dim), full);
    }
  }

 private:
  static constexpr int kColumns = 8;  // of an MMA tile
  static constexpr int kWarpEntries = kAttendTileBlocks / Config::kTeamWarps;
  static constexpr int kKeyTiles = kWarpEntries * Config::kBlock / kColumns;
  static constexpr int kKeyLanes = 4;  // that share a token
  static constexpr int kKeyVectors = Config::kTokenBytes / (kKeyLanes * kVectorBytes);
  /// Loads under way per lane: as many as registers hold beside the sums.
  static constexpr int kKeysAhead =
      std::min(kKeyVectors, Config::kOneTile ? kSpreadKeysAhead : kAttendKeysAhead);
  static constexpr int kSteps = kAttendTileBlocks * Config::kBlock / kAttendChunk;  // over tokens
  static constexpr int kStepEntries = kAttendChunk / Config::kBlock;
  static constexpr int kValuesAhead = Config::kOneTile ? kSpreadValuesAhead : kAttendValuesAhead;
  static constexpr int kWarpDims = Config::kDim / Config::kTeamWarps;
  static constexpr int kSumTiles = kColumns;  // that the vectors of eight lanes cover
  static constexpr int kSliceDims = kSumTiles * kColumns;
  static constexpr int kSlices = kWarpDims / kSliceDims;
  static constexpr int kWarpParts = kSumParts / Config::kTeamWarps;
  static constexpr int kPartTiles = kKeyTiles / kWarpParts;
  static constexpr int kLaneDims = 2 * kColumns;  // neighbours that a lane sums

  using ValueVector = typename Elements::ValueVector;
  using Values = ValueVector[4];  // tokens 2t, 2t + 1, 2t + 8, 2t + 9 of a step

  __device__ int quad() const { return lane_id() / 4; }
  __device__ int lane_in_quad() const { return lane_id() % 4; }
  __device__ void barrier() const { named_barrier_sync(1 + team_, Config::kTeamThreads); }
  __device__ int query_unit(int part) const {
    return part * Config::kTeamThreads + static_cast<int>(threadIdx.x) % Config::kTeamThreads;
  }
  /// Heads 12 .. 15 of the MMA tile read head 11 again; nobody looks at their results.
  __device__ static int real_head(int head) { return min(head, Config::kGroup - 1); }

  __device__ void stage_query(const uint4 (&query)[kQueryParts]) {
#pragma unroll
    for (int part = 0; part < kQueryParts; ++part) {
      const int unit = query_unit(part);
      const uint4 pairs = query[part];
      *reinterpret_cast<uint4*>(shared_.query[unit / kHeadVectors] +
                                unit % kHeadVectors * kVectorBytes) = {
          Elements::query_pair(pairs.x), Elements::query_pair(pairs.y),
          Elements::query_pair(pairs.z), Elements::query_pair(pairs.w)};
    }
    // The tail's step over tokens is half masked: those weights stay zero.
    const int thread = query_unit(0);
    if (thread < Config::kGroup)
      *reinterpret_cast<uint4*>(&shared_.weights[thread][Shared::kTailToken + kColumns]) = {};
  }
  /// The next tiles of a list that is longer than what is staged at once.
  __device__ void restage(int tile) {
    const AttendTask& task = shared_.task;
    auto entries = list_.load(task.row, task.sharing != 0, tile);
    entries.count = shared_.count;
    barrier();  // the old places have been used
    list_.stage(entries, task.pages);
    barrier();  // the new ones are there
    list_.mark_shared(entries, task.row, task.sharing != 0);
  }

  __device__ void run_tile(int tile, bool first) {
    float logits[kKeyTiles][4]{};
    Values values[kSlices][kSteps];
    if (entries_ > 0) {
      const std::byte* from[kKeyTiles];
#pragma unroll
      for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
        const int token = key_tile * kColumns + quad();
        const int entry = real_entry(share_ * kWarpEntries + token / Config::kBlock);
        from[key_tile] = list_.key(tile, entry) + token % Config::kBlock * Config::kTokenBytes +
                         lane_in_quad() * kVectorBytes;
      }
      if (first) list_.prefetch(args_.cache.values, tile, false);
      score<kKeyTiles, kKeysAhead>(from, logits);
    }
#pragma unroll
    for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile) {
      const int token = key_tile * kColumns + 2 * lane_in_quad();
      const bool listed = share_ * kWarpEntries + token / Config::kBlock < entries_;
#pragma unroll
      for (float& logit : logits[key_tile])
        logit = listed ? logit * Config::kLogitScale : -kInfinity;
    }
    float tail_logits[1][4];
    if (scores_tail()) score_tail(tail_logits);
    if (entries_ > 0) {
#pragma unroll
      for (int step = 0; step < kValuesAhead; ++step) load_values(tile, 0, step, values[0][step]);
    }

    Partial partial[2];
    weigh(logits, tail_logits, partial);
    prefetch_ahead(tile, first);
    FoldFactors factors[2] = {{0, 1}, {0, 1}};
    if constexpr (Config::kOneTile)
      partial_[0] = partial[0], partial_[1] = partial[1];
    else
      factors[0] = fold(partial_[0], partial[0]), factors[1] = fold(partial_[1], partial[1]);
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      float sums[kSumTiles][4]{};
      if (entries_ > 0) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          add_values(values[slice][step], step * kAttendChunk, sums);
          const int ahead = slice * kSteps + step + kValuesAhead;
          if (ahead < kSlices * kSteps)
            load_values(tile, ahead / kSteps, ahead % kSteps,
                        values[ahead / kSteps][ahead % kSteps]);
        }
      }
      if (tail_tokens_ > 0) add_tail(slice, sums);
#pragma unroll
      for (int sum_tile = 0; sum_tile < kSumTiles; ++sum_tile)
#pragma unroll
        for (int value = 0; value < 4; ++value) {
          float& total = sums_[slice][sum_tile][value];
          total = Config::kOneTile ? sums[sum_tile][value]
                                   : fold_value(factors[value / 2], total, sums[sum_tile][value]);
        }
    }
  }
  /// Two tiles ahead: what a tile takes is less than a trip to memory under load.
  __device__ void prefetch_ahead(int tile, bool first) const {
    if constexpr (Config::kOneTile) return;
    constexpr int kDistance = 2;
#pragma unroll 1
    for (int next = first ? tile + 1 : tile + kDistance; next <= tile + kDistance; ++next) {
      list_.prefetch(args_.cache.keys, next, true);
      list_.prefetch(args_.cache.values, next, true);
    }
  }
  /// Past the list its last entry stands in, whose weight is zero. It is one of the row's own, so
  /// that a NaN in it is the row's own too.
  __device__ int real_entry(int entry) const { return min(entry, entries_ - 1); }
  /// The first warp takes the logits of the open tail too.
  __device__ bool scores_tail() const { return share_ == 0 && tail_tokens_ > 0; }

  /// Heads x tokens of kTiles column tiles. Even and odd vectors of dims have sums of their own,
  /// which halves the chain of products. `from`: the lane's first vector of its token in each tile.
  template <int kTiles, int kAhead>
  __device__ void score(const std::byte* const (&from)[kTiles], float (&logits)[kTiles][4]) const {
    constexpr int kStride = kKeyLanes * kVectorBytes;
    uint4 keys[kKeyVectors][kTiles];
    float odd[kTiles][4]{};
#pragma unroll
    for (int vector = 0; vector < kAhead; ++vector)
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        gather_vector(keys[vector][tile], from[tile] + vector * kStride);
#pragma unroll
    for (int vector = 0; vector < kKeyVectors; ++vector) {
      multiply_keys(vector, keys[vector], vector % 2 == 0 ? logits : odd);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile)
        if (vector + kAhead < kKeyVectors)
          gather_vector(keys[vector + kAhead][tile], from[tile] + (vector + kAhead) * kStride);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int value = 0; value < 4; ++value) logits[tile][value] += odd[tile][value];
  }
  template <int kTiles>
  __device__ void multiply_keys(int vector, const uint4 (&keys)[kTiles],
                                float (&logits)[kTiles][4]) const {
    constexpr int kWords = 2 * Elements::kKeySteps;  // of a query beside a vector of a key
    const int at = (vector * kKeyLanes + lane_in_quad()) * kWords * static_cast<int>(sizeof(int));
    uint32_t low[kWords], high[kWords];
    load_words(shared_.query[quad()] + at, low);
    load_words(shared_.query[real_head(quad() + kColumns)] + at, high);
#pragma unroll
    for (int step = 0; step < Elements::kKeySteps; ++step) {
      const uint32_t heads[4] = {low[2 * step], high[2 * step], low[2 * step + 1],
                                 high[2 * step + 1]};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        uint32_t operand[2];
        Elements::key_operand(keys[tile], step, operand);
        Elements::multiply(logits[tile], heads, operand);
      }
    }
  }
  template <int kWords>
  __device__ static void load_words(const std::byte* from, uint32_t (&words)[kWords]) {
#pragma unroll
    for (int word = 0; word < kWords; word += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[word / 4];
      words[word] = four.x, words[word + 1] = four.y;
      words[word + 2] = four.z, words[word + 3] = four.w;
    }
  }
  /// Lanes past the tail read its last token again.
  __device__ int tail_token(int token) const { return min(token, tail_tokens_ - 1); }
  __device__ void score_tail(float (&logits)[1][4]) const {
    const std::byte* const from[1] = {list_.at(args_.cache.keys, shared_.task.tail_place) +
                                      tail_token(quad()) * Config::kTokenBytes +
                                      lane_in_quad() * kVectorBytes};
#pragma unroll
    for (float& logit : logits[0]) logit = 0;
    score<1, kKeysAhead>(from, logits);
#pragma unroll
    for (int value = 0; value < 4; ++value) {
      const bool exists = 2 * lane_in_quad() + value % 2 < tail_tokens_;
      logits[0][value] = exists ? logits[0][value] * Config::kLogitScale : -kInfinity;
    }
  }

  /// Weights relative to the tile's peak into shared memory, rounded as the values' product uses
  /// them; peak and sum of the lane's two heads into `tile`.
  __device__ void weigh(const float (&logits)[kKeyTiles][4], const float (&tail_logits)[1][4],
                        Partial (&tile)[2]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float peak = -kInfinity;
#pragma unroll
      for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile)
        peak = fmaxf(peak, fmaxf(logits[key_tile][2 * half], logits[key_tile][2 * half + 1]));
      if (scores_tail())
        peak = fmaxf(peak, fmaxf(tail_logits[0][2 * half], tail_logits[0][2 * half + 1]));
      peak = warp_max<4>(peak);
      if (lane_in_quad() == 0) shared_.peak[share_][quad() + kColumns * half] = peak;
    }
    barrier();  // the peaks of all warps are there; the last tile's weights have been used
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = quad() + kColumns * half;
#pragma unroll
      for (int warp = 0; warp < Config::kTeamWarps; ++warp)
        tile[half].peak = fmaxf(tile[half].peak, shared_.peak[warp][head]);
#pragma unroll
      for (int part = 0; part < kWarpParts; ++part) {
        float sum = 0;
#pragma unroll
        for (int inner = 0; inner < kPartTiles; ++inner) {
          const int key_tile = part * kPartTiles + inner;
          sum += store_weights(head, share_ * kWarpEntries * Config::kBlock + key_tile * kColumns,
                               logits[key_tile][2 * half], logits[key_tile][2 * half + 1],
                               tile[half].peak);
        }
        if (part == 0 && scores_tail())
          sum += store_weights(head, Shared::kTailToken, tail_logits[0][2 * half],
                               tail_logits[0][2 * half + 1], tile[half].peak);
        sum = warp_sum<4>(sum);
        if (lane_in_quad() == 0) shared_.weight_sum[share_ * kWarpParts + part][head] = sum;
      }
    }
    barrier();  // weights and sums of all warps are there
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int part = 0; part < kSumParts; ++part)
        tile[half].sum += shared_.weight_sum[part][quad() + kColumns * half];
  }
  __device__ float store_weights(int head, int first_token, float even, float odd,
                                 float peak) const {
    float low = exp2f(even - peak), high = exp2f(odd - peak);
    const uint32_t pair = Elements::pack(low, high);
    if (head < Config::kGroup)
      *reinterpret_cast<uint32_t*>(&shared_.weights[head][first_token + 2 * lane_in_quad()]) = pair;
    return low + high;
  }

  /// The lane's dims of its four tokens of a step over 16 tokens.
  __device__ void load_values(int tile, int slice, int step, Values& values) const {
    const int token = 2 * lane_in_quad();
    const int offset = token % Config::kBlock * Config::kTokenBytes + value_column(slice);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int entry = step * kStepEntries + (half * kColumns + token) / Config::kBlock;
      const std::byte* from = list_.value(tile, real_entry(entry)) + offset;
      gather_vector(values[2 * half], from);
      gather_vector(values[2 * half + 1], from + Config::kTokenBytes);
    }
  }
  __device__ int value_column(int slice) const {
    return (share_ * kSlices + slice) * kSliceDims *
               static_cast<int>(sizeof(typename Elements::Element)) +
           quad() * static_cast<int>(sizeof(ValueVector));
  }
  __device__ void add_values(const Values& values, int first_token,
                             float (&sums)[kSumTiles][4]) const {
    uint32_t weights[4];
    load_matrix_x4(weights, &shared_.weights[real_head(lane_id() % kMmaRows)]
                                            [first_token + lane_id() / kMmaRows * kVectorBf16]);
#pragma unroll
    for (int dim = 0; dim < kSumTiles; ++dim) {
      const uint32_t operand[2] = {Elements::value_pair(values[0], values[1], dim),
                                   Elements::value_pair(values[2], values[3], dim)};
      Elements::multiply(sums[dim], weights, operand);
    }
  }
  /// The weights of tokens 8 .. 15 are zero: any of the row's own values do.
  __device__ void add_tail(int slice, float (&sums)[kSumTiles][4]) const {
    const std::byte* from =
        list_.at(args_.cache.values, shared_.task.tail_place) + value_column(slice);
    const int token = 2 * lane_in_quad();
    Values values;
    gather_vector(values[0], from + tail_token(token) * Config::kTokenBytes);
    gather_vector(values[1], from + tail_token(token + 1) * Config::kTokenBytes);
    values[2] = values[0], values[3] = values[1];
    add_values(values, Shared::kTailToken, sums);
  }

  /// Dims `dim` .. `dim` + 3 of the lane's 16: a lane's two columns of the column tiles.
  __device__ float4 four_sums(int slice, int half, int dim) const {
    const int tile = dim % kSumTiles, value = 2 * half + dim / kSumTiles;
    const auto& sums = sums_[slice];
    return {sums[tile][value], sums[tile + 1][value], sums[tile + 2][value], sums[tile + 3][value]};
  }

  Shared& shared_;
  const ops::QsaAttendArgs& args_;
  int team_, share_;
  int first_head_;  // of a row
  AttendList<Config> list_;
  int entries_ = 0, tail_tokens_ = 0;  // of the tile
  Partial partial_[2];                 // heads quad() and quad() + 8, tiles so far
  float sums_[kSlices][kSumTiles][4]{};
};

#endif

}  // namespace tessera::cuda::device
