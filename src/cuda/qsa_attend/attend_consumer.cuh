// SPDX-License-Identifier: Apache-2.0
// Consumer warps of the tile kernel: a few warps run one row over the tiles of its own list. For
// the logits they share out the tokens, for the weighted sum of values the dims.
#pragma once

#include "cuda/device/named_barrier.cuh"
#include "cuda/qsa_attend/attend_fold.cuh"
#include "cuda/qsa_attend/attend_tile_config.cuh"

namespace tessera::cuda::device {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

template <class Config>
class AttendConsumer {
 public:
  using Elements = typename Config::Elements;
  using Shared = AttendShared<Config>;

  __device__ AttendConsumer(Shared& shared, const ops::QsaAttendArgs& args, int kv_head)
      : shared_(shared),
        args_(args),
        kv_head_(kv_head),
        row_(warp_id() / Config::kRowWarps),
        share_(warp_id() % Config::kRowWarps) {}

  /// Leaves the row's folded sums in shared memory. Every consumer warp runs every pass, because it
  /// has to release what the pass loaded.
  __device__ void run(const AttendRows& rows) {
    if (row_ < rows.count) stage_query(rows);
    row_barrier();  // the row's queries are staged
    bool last = false;
    for (int pass_index = 0; !last; ++pass_index) {
      const int stage = pass_index % Shared::kPasses;
      const auto parity = static_cast<uint32_t>(pass_index / Shared::kPasses % 2);
      const AttendPass<Config>& pass = shared_.pass[stage];
      wait_barrier(&shared_.keys_full[stage], parity);
      last = pass.last != 0;
      entries_ = pass.entries[row_];
      tail_tokens_ = pass.tail_tokens[row_];
      const bool mine =
          row_ >= pass.row_begin && row_ < pass.row_end && entries_ + tail_tokens_ > 0;
      if (mine) score(pass);
      release(&shared_.keys_empty[stage]);
      Partial tile[2];
      if (mine) weigh(tile);
      wait_barrier(&shared_.values_full[stage], parity);
      if (mine) accumulate(pass, tile);
      release(&shared_.values_empty[stage]);
    }
    publish(rows);
  }

 private:
  static constexpr int kWarpEntries = kAttendTileBlocks / Config::kRowWarps;
  static constexpr int kWarpParts = kSumParts / Config::kRowWarps;
  static constexpr int kColumns = 8;  // of an MMA tile
  static constexpr int kTileEntries = kColumns / Config::kBlock;
  static constexpr int kKeyTiles = kWarpEntries / kTileEntries;  // tokens of a warp
  static constexpr int kKeyBatch =
      kKeyTiles < Elements::kKeyBatch ? kKeyTiles : Elements::kKeyBatch;
  static constexpr int kPartTiles = kKeyTiles / kWarpParts;
  static constexpr int kWarpDims = Config::kDim / Config::kRowWarps;
  static constexpr int kSumTiles = kWarpDims / kColumns;  // dims of a warp
  static constexpr int kSlices = kSumTiles / 4;  // of the dims: keeps few sums besides the folded
  static constexpr int kSliceTiles = kSumTiles / kSlices;
  static constexpr int kSteps = Config::kDim / kAttendChunk;
  static constexpr int kGroupEntries = kAttendChunk / Config::kBlock;  // of one step over tokens

  static constexpr int kLineVectors = 8;  // 128 bytes: what swizzle_key permutes

  __device__ int quad() const { return lane_id() / 4; }
  __device__ int lane_in_quad() const { return lane_id() % 4; }
  __device__ void row_barrier() const { named_barrier_sync(1 + row_, Config::kRowThreads); }
  __device__ static void release(Barrier* barrier) {
    __syncwarp();  // all lanes have read their operands
    if (lane_id() == 0) arrive(barrier);
  }
  /// Heads 12 .. 15 of the MMA tile read head 11 again; nobody looks at their results.
  __device__ static int real_head(int head) { return min(head, Config::kGroup - 1); }

  __device__ void stage_query(const AttendRows& rows) {
    constexpr int kHeadChunks = Config::kDim / kAttendChunk;
    const size_t head =
        static_cast<size_t>(rows.first + row_) * static_cast<size_t>(args_.shape.heads) +
        static_cast<size_t>(kv_head_) * Config::kGroup;
    const auto* from =
        reinterpret_cast<const uint4*>(static_cast<const Bf16*>(args_.q) + head * Config::kDim);
    const int thread = static_cast<int>(threadIdx.x) % Config::kRowThreads;
    for (int unit = thread; unit < Config::kGroup * kHeadChunks; unit += Config::kRowThreads) {
      uint4 chunk[2] = {from[2 * unit], from[2 * unit + 1]};
      Elements::query_chunk(chunk);
      auto* to = reinterpret_cast<uint4*>(
          &shared_.query[row_][unit / kHeadChunks][unit % kHeadChunks * kAttendChunk]);
      to[0] = chunk[0];
      to[1] = chunk[1];
    }
    // The tail's step over tokens is half masked: those weights stay zero.
    constexpr int kMasked = Shared::kWeightTokens - kAttendChunk + kColumns;
    if (thread < Config::kGroup)
      *reinterpret_cast<uint4*>(&shared_.weights[row_][thread][kMasked]) = {};
  }

  /// Where vector `index` of a token of an entry lies in the ring, whose pass part starts at slot
  /// `first`.
  __device__ uint32_t locate(const AttendPass<Config>& pass, int first, int entry, int token,
                             int index) const {
    const int place = pass.place[row_][entry];
    int slot = first + place;
    if (slot >= Config::kSlots) slot -= Config::kSlots;
    return static_cast<uint32_t>(slot * Config::kBlockBytes + token * Config::kTokenBytes +
                                 (index ^ swizzle_key(place, token)) * kVectorBytes);
  }
  /// The vector `vectors` further in the same line, when that has no bit in common with the index
  /// of the first one.
  __device__ static uint32_t ahead(uint32_t located, int vectors) {
    return located ^ static_cast<uint32_t>(vectors * kVectorBytes);
  }
  /// Entry that row `line` of an 8x8 matrix over entries `first`, `first` + 1 belongs to: past the
  /// list the last entry stands in, whose weight there is zero. It is one of the row's own, so that
  /// a NaN in it is the row's own too.
  __device__ int entry_of(int first, int line) const {
    return min(first + line / Config::kBlock, entries_ - 1);
  }
  __device__ int tail_token_of(int line) const {
    return min(line % Config::kBlock, tail_tokens_ - 1);
  }

  /// Logits of the warp's tokens; part 0 takes those of the open tail too.
  __device__ void score(const AttendPass<Config>& pass) {
    const int line = lane_id() % kColumns, matrix = lane_id() / kColumns;
    const int first_entry = share_ * kWarpEntries;
    if (first_entry < entries_) {
#pragma unroll
      for (int first = 0; first < kKeyTiles; first += kKeyBatch) {
        uint32_t from[kKeyBatch];
#pragma unroll
        for (int tile = 0; tile < kKeyBatch; ++tile) {
          const int entry = entry_of(first_entry + (first + tile) * kTileEntries, line);
          from[tile] = locate(pass, pass.first_key, entry, line % Config::kBlock, matrix);
        }
        multiply_keys(from, logits_ + first);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      const int entry = first_entry + tile * kTileEntries + 2 * lane_in_quad() / Config::kBlock;
#pragma unroll
      for (float& logit : logits_[tile])
        logit = entry < entries_ ? logit * Config::kLogitScale : -kInfinity;
    }
    if (!scores_tail()) return;
    const uint32_t tail[1] = {
        locate(pass, pass.first_key, kTailEntry, tail_token_of(line), matrix)};
    multiply_keys(tail, tail_logits_);
#pragma unroll
    for (int value = 0; value < 4; ++value) {
      float& logit = tail_logits_[0][value];
      const bool valid = 2 * lane_in_quad() + value % 2 < tail_tokens_;
      logit = valid ? logit * Config::kLogitScale : -kInfinity;
    }
  }
  __device__ bool scores_tail() const { return share_ == 0 && tail_tokens_ > 0; }

  /// Heads x tokens of kTiles column tiles, over all dims in ascending order.
  template <int kTiles>
  __device__ void multiply_keys(const uint32_t (&from)[kTiles], float (*logits)[4]) {
    constexpr int kLoadVectors = 4;  // one of each 8x8 matrix
    constexpr int kLineLoads = kLineVectors / kLoadVectors;
    const uint16_t* query =
        &shared_.query[row_][real_head(lane_id() % kMmaRows)][lane_id() / kMmaRows * kVectorBf16];
    const std::byte* ring = shared_.ring;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int value = 0; value < 4; ++value) logits[tile][value] = 0;
#pragma unroll 1  // more of it in flight costs the registers of the folded sums
    for (int line = 0; line < Config::kTokenVectors / kLineVectors; ++line) {
#pragma unroll
      for (int load = 0; load < kLineLoads; ++load) {
        uint32_t heads[Elements::kKeySteps][4];
#pragma unroll
        for (int step = 0; step < Elements::kKeySteps; ++step)
          load_matrix_x4(heads[step], query + (load * Elements::kKeySteps + step) * kAttendChunk);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          uint32_t raw[4];
          load_matrix_x4(raw, ring + ahead(from[tile], load * kLoadVectors));
#pragma unroll
          for (int step = 0; step < Elements::kKeySteps; ++step) {
            uint32_t keys[2];
            Elements::key_operand(raw, step, keys);
            Elements::multiply(logits[tile], heads[step], keys);
          }
        }
      }
      query += kLineLoads * Elements::kKeySteps * kAttendChunk;
      ring += kLineVectors * kVectorBytes;
    }
  }
  /// Weights relative to the tile's peak into shared memory, rounded as the values' product uses
  /// them; peak and sum of the lane's two heads into `tile`.
  __device__ void weigh(Partial (&tile)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float peak = -kInfinity;
#pragma unroll
      for (int key_tile = 0; key_tile < kKeyTiles; ++key_tile)
        peak = fmaxf(peak, fmaxf(logits_[key_tile][2 * half], logits_[key_tile][2 * half + 1]));
      if (scores_tail())
        peak = fmaxf(peak, fmaxf(tail_logits_[0][2 * half], tail_logits_[0][2 * half + 1]));
      peak = warp_max<4>(peak);
      if (lane_in_quad() == 0) shared_.peak[row_][share_][quad() + kColumns * half] = peak;
    }
    row_barrier();  // the peaks of all warps are there; the last tile's weights have been used
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = quad() + kColumns * half;
#pragma unroll
      for (int warp = 0; warp < Config::kRowWarps; ++warp)
        tile[half].peak = fmaxf(tile[half].peak, shared_.peak[row_][warp][head]);
#pragma unroll
      for (int part = 0; part < kWarpParts; ++part) {
        float sum = part_weights(half, part, tile[half].peak);
        if (part == 0 && scores_tail())
          sum += store_weights(head, kTailEntry * Config::kBlock, tail_logits_[0][2 * half],
                               tail_logits_[0][2 * half + 1], tile[half].peak);
        sum = warp_sum<4>(sum);
        if (lane_in_quad() == 0) shared_.weight_sum[row_][share_ * kWarpParts + part][head] = sum;
      }
    }
    row_barrier();  // weights and sums of all warps are there
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int part = 0; part < kSumParts; ++part)
        tile[half].sum += shared_.weight_sum[row_][part][quad() + kColumns * half];
    }
  }
  /// Weights of one of the warp's parts; returns the lane's share of their sum.
  __device__ float part_weights(int half, int part, float peak) {
    float sum = 0;
    if ((share_ * kWarpParts + part) * (kAttendTileBlocks / kSumParts) >= entries_) return sum;
#pragma unroll
    for (int inner = 0; inner < kPartTiles; ++inner) {
      const int tile = part * kPartTiles + inner;
      const int token = share_ * kWarpEntries * Config::kBlock + tile * kColumns;
      sum += store_weights(quad() + kColumns * half, token, logits_[tile][2 * half],
                           logits_[tile][2 * half + 1], peak);
    }
    return sum;
  }
  __device__ float store_weights(int head, int first_token, float even, float odd, float peak) {
    float low = exp2f(even - peak), high = exp2f(odd - peak);
    const uint32_t pair = Elements::pack(low, high);
    if (head < Config::kGroup)
      *reinterpret_cast<uint32_t*>(&shared_.weights[row_][head][first_token + 2 * lane_in_quad()]) =
          pair;
    return low + high;
  }

  /// Weighted sum of the tile's values, folded into the sums of the tiles before.
  __device__ void accumulate(const AttendPass<Config>& pass, const Partial (&tile)[2]) {
    const FoldFactors factors[2] = {fold(partial_[0], tile[0]), fold(partial_[1], tile[1])};
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      float sums[kSliceTiles][4]{};
      sum_slice(pass, slice, sums);
#pragma unroll
      for (int sum_tile = 0; sum_tile < kSliceTiles; ++sum_tile)
#pragma unroll
        for (int value = 0; value < 4; ++value) {
          float& total = sums_[slice * kSliceTiles + sum_tile][value];
          total = fold_value(factors[value / 2], total, sums[sum_tile][value]);
        }
    }
  }
  /// The sums of a slice of the warp's dims.
  __device__ void sum_slice(const AttendPass<Config>& pass, int slice,
                            float (&sums)[kSliceTiles][4]) {
    constexpr int kWarpVectors = Config::kTokenVectors / Config::kRowWarps;
    const int line = lane_id() % kColumns, matrix = lane_id() / kColumns;
    const int vector = share_ * kWarpVectors + slice * kWarpVectors / kSlices + matrix / 2;
#pragma unroll 1
    for (int first = 0; first < entries_; first += kGroupEntries) {
      const int entry = entry_of(first + matrix % 2 * kTileEntries, line);
      add_values(locate(pass, pass.first_value, entry, line % Config::kBlock, vector),
                 first * Config::kBlock, sums);
    }
    if (tail_tokens_ > 0)
      add_values(locate(pass, pass.first_value, kTailEntry, tail_token_of(line), vector),
                 kTailEntry * Config::kBlock, sums);
  }
  /// One step over 16 tokens: `located` is the lane's first vector.
  __device__ void add_values(uint32_t located, int first_token, float (&sums)[kSliceTiles][4]) {
    constexpr int kLoadVectors = 2;  // of each token half
    uint32_t weights[4];
    load_matrix_x4(weights, &shared_.weights[row_][real_head(lane_id() % kMmaRows)]
                                            [first_token + lane_id() / kMmaRows * kVectorBf16]);
#pragma unroll
    for (int load = 0; load < kSliceTiles / Elements::kValueTiles; ++load) {
      uint32_t raw[4];
      load_matrix_x4_transposed(raw, shared_.ring + ahead(located, load * kLoadVectors));
#pragma unroll
      for (int tile = 0; tile < Elements::kValueTiles; ++tile) {
        uint32_t values[2];
        Elements::value_operand(raw, tile, values);
        Elements::multiply(sums[load * Elements::kValueTiles + tile], weights, values);
      }
    }
  }

  __device__ void publish(const AttendRows& rows) {
    // The sums replace the ring: every consumer has read its last operands.
    named_barrier_sync(1 + Config::kRows, Config::kConsumerThreads);
    if (row_ >= rows.count) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = quad() + kColumns * half;
      if (head >= Config::kGroup) continue;
      if (share_ == 0 && lane_in_quad() == 0)
        shared_.partial[row_][head] = {partial_[half].peak, partial_[half].sum, 0, 0};
#pragma unroll
      for (int chunk = 0; chunk < kWarpDims / kAttendChunk; ++chunk)
        Elements::store_chunk(&shared_.sums[row_][head][share_ * kWarpDims + chunk * kAttendChunk],
                              lane_in_quad(), &sums_[2 * chunk][2 * half],
                              &sums_[2 * chunk + 1][2 * half]);
    }
  }

  Shared& shared_;
  const ops::QsaAttendArgs& args_;
  int kv_head_, row_, share_;
  int entries_ = 0, tail_tokens_ = 0;  // of the row in this pass
  float logits_[kKeyTiles][4];         // of the warp's tokens, base-2 units
  float tail_logits_[1][4];
  Partial partial_[2];  // heads quad() and quad() + 8, tiles so far
  float sums_[kSumTiles][4]{};
};

#endif

}  // namespace tessera::cuda::device
