// SPDX-License-Identifier: Apache-2.0
// First and last stage of a GDN prompt launch (sm_90a), each row on its own: convolution, unit keys
// and queries into tiles; gated norm of the outputs in place.
#pragma once

#include "cuda/device/pdl.cuh"
#include "cuda/gdn/gdn_math.cuh"
#include "cuda/gdn/gdn_tiles.cuh"

namespace tessera::cuda::device {

struct GdnPrepare {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kRows = ops::kGdnChunk / kWarps;  // of a warp
  static constexpr int kLaneDims = kGdnDim / kWarp;
  static constexpr int kNormRows = 4;  // rows of a warp whose loads are under way at once
};

/// Weights of a lane's four channels.
struct ConvWeights {
  float4 channel[4];  // taps of each

  __device__ void load(const float* conv_weight, int first_channel) {
    const auto* rows = reinterpret_cast<const float4*>(conv_weight) + first_channel;
#pragma unroll
    for (int index = 0; index < 4; ++index) channel[index] = __ldg(rows + index);
  }
};

__device__ __forceinline__ float tap_sum(const float4& w, float oldest, float older, float old,
                                         float newest) {
  return quick_silu(fmaf(newest, w.w, fmaf(old, w.z, fmaf(older, w.y, oldest * w.x))));
}

/// Calls sink(row of the chunk, four convolved channels of this lane) for the warp's rows; zeros
/// behind the chunk's last row.
template <class Config, class Sink>
__device__ __forceinline__ void convolve_rows(const ops::GdnArgs& args, const GdnSlotChunk& chunk,
                                              int first_channel, const ConvWeights& weights,
                                              Sink&& sink) {
  constexpr int kBefore = kGdnTaps - 1;
  const int first = warp_id() * Config::kRows;
  uint2 raw[kBefore + Config::kRows] = {};
#pragma unroll
  for (int at = 0; at < kBefore + Config::kRows; ++at) {
    const int row = first + at - kBefore;
    if (row >= chunk.at.rows) continue;
    const Bf16* inputs = conv_inputs(args, chunk.span, chunk.at.first + row);
    if (inputs != nullptr) raw[at] = __ldg(reinterpret_cast<const uint2*>(inputs + first_channel));
  }
  const auto unpacked = [](const uint2& pairs) {
    const float2 low = unpack_bf16(pairs.x), high = unpack_bf16(pairs.y);
    return float4{low.x, low.y, high.x, high.y};
  };
#pragma unroll
  for (int at = 0; at < Config::kRows; ++at) {
    const float4 a = unpacked(raw[at]), b = unpacked(raw[at + 1]);
    const float4 c = unpacked(raw[at + 2]), d = unpacked(raw[at + 3]);
    float4 out = {tap_sum(weights.channel[0], a.x, b.x, c.x, d.x),
                  tap_sum(weights.channel[1], a.y, b.y, c.y, d.y),
                  tap_sum(weights.channel[2], a.z, b.z, c.z, d.z),
                  tap_sum(weights.channel[3], a.w, b.w, c.w, d.w)};
    if (first + at >= chunk.at.rows) out = {};
    sink(first + at, out);
  }
}

__device__ __forceinline__ uint2 pack_bf16x4(const float4& x, float factor) {
  return {pack_bf16(x.x * factor, x.y * factor), pack_bf16(x.z * factor, x.w * factor)};
}

/// Unit rows times `scale` into a tile of 128 dims.
template <class Config>
__device__ __forceinline__ void prepare_unit_rows(const ops::GdnArgs& args,
                                                  const GdnSlotChunk& chunk, int first_channel,
                                                  const ConvWeights& weights, float scale,
                                                  std::byte* tile) {
  const int lane = lane_id();
  const int lane_channel = first_channel + lane * Config::kLaneDims;
  convolve_rows<Config>(args, chunk, lane_channel, weights, [&](int row, const float4& x) {
    const float squares = warp_sum(fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, x.x * x.x))));
    const uint2 packed = pack_bf16x4(x, rsqrtf(squares + kGdnNormEps) * scale);
    reinterpret_cast<uint2*>(tile + KeyTile::offset(row, lane / 2))[lane % 2] = packed;
  });
}

/// Grid: slots of the window x (key heads, then value heads).
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    gdn_prepare(const ops::GdnArgs args, const Batch batch, const GdnWorkspace work) {
#if __CUDA_ARCH__ >= 900
  constexpr float kQueryScale = 0x1.6a09e6p-4F;  // kGdnDim^-0.5
  const int slot = work.first_slot + static_cast<int>(blockIdx.x);
  const int part = static_cast<int>(blockIdx.y);
  const int lane = lane_id();
  const int keys_at = args.shape.key_heads * kGdnDim;
  const bool is_key = part < args.shape.key_heads;
  const int first = is_key ? part * kGdnDim : keys_at + part * kGdnDim;
  ConvWeights weights, key_weights{};
  weights.load(args.conv_weight, first + lane * Config::kLaneDims);
  if (is_key) key_weights.load(args.conv_weight, keys_at + first + lane * Config::kLaneDims);
  wait_for_inputs();
  const GdnSlotChunk chunk = find_chunk(batch, slot);
  if (chunk.at.rows <= 0) return;
  if (is_key) {
    prepare_unit_rows<Config>(args, chunk, first, weights, kQueryScale, work.queries(slot, part));
    prepare_unit_rows<Config>(args, chunk, keys_at + first, key_weights, 1.0F,
                              work.keys(slot, part));
    return;
  }
  // Value heads follow the query and key heads: part counts from key_heads on.
  constexpr int kHalfLanes = kWarp / 2;
  const int head = part - args.shape.key_heads;
  std::byte* tile = work.values(slot, head, lane / kHalfLanes);
  convolve_rows<Config>(args, chunk, first + lane * Config::kLaneDims, weights,
                        [&](int row, const float4& x) {
                          std::byte* unit = tile + SquareTile::offset(row, lane % kHalfLanes / 2);
                          reinterpret_cast<uint2*>(unit)[lane % 2] = pack_bf16x4(x, 1.0F);
                        });
#endif
}

/// Four dims a lane of one row: `out` as the scan left it.
__device__ __forceinline__ uint2 gated_norm(const ops::GdnArgs& args, const float4& norm,
                                            const uint2& out, const uint2& gate) {
  const float2 a = unpack_bf16(out.x), b = unpack_bf16(out.y);
  const float2 z_a = unpack_bf16(gate.x), z_b = unpack_bf16(gate.y);
  const float squares = warp_sum(fmaf(b.y, b.y, fmaf(b.x, b.x, fmaf(a.y, a.y, a.x * a.x))));
  const float factor = rsqrtf(squares * (1.0F / kGdnDim) + args.eps);
  const auto gated = [&](float o, float weight, float z) {
    return round_bf16(o * factor) * weight * output_gate(args.gate, z);
  };
  return {pack_bf16(gated(a.x, norm.x, z_a.x), gated(a.y, norm.y, z_a.y)),
          pack_bf16(gated(b.x, norm.z, z_b.x), gated(b.y, norm.w, z_b.y))};
}

/// Gated norm in place. Grid: slots of the window x value heads.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    gdn_norm(const ops::GdnArgs args, const Batch batch, const GdnWorkspace work) {
#if __CUDA_ARCH__ >= 900
  const int lane = lane_id();
  const float4 norm = __ldg(reinterpret_cast<const float4*>(args.norm) + lane);
  wait_for_inputs();
  const GdnSlotChunk chunk = find_chunk(batch, work.first_slot + static_cast<int>(blockIdx.x));
  const int head = static_cast<int>(blockIdx.y);
  const int end = min(chunk.at.rows, (warp_id() + 1) * Config::kRows);
  const auto index = [&](int row) {
    return gate_index(args, chunk.launch_row(row), head) * kGdnDim +
           static_cast<size_t>(lane * Config::kLaneDims);
  };
  for (int first = warp_id() * Config::kRows; first < end; first += Config::kNormRows) {
    uint2 out[Config::kNormRows] = {}, gate[Config::kNormRows] = {};
#pragma unroll
    for (int at = 0; at < Config::kNormRows; ++at) {
      if (first + at >= end) continue;
      const size_t from = index(first + at);
      out[at] = *reinterpret_cast<const uint2*>(static_cast<const Bf16*>(args.out) + from);
      gate[at] = __ldg(reinterpret_cast<const uint2*>(static_cast<const Bf16*>(args.z) + from));
    }
#pragma unroll
    for (int at = 0; at < Config::kNormRows; ++at) {
      const uint2 packed = gated_norm(args, norm, out[at], gate[at]);
      if (first + at < end)
        *reinterpret_cast<uint2*>(static_cast<Bf16*>(args.out) + index(first + at)) = packed;
    }
  }
#endif
}

}  // namespace tessera::cuda::device
