// SPDX-License-Identifier: Apache-2.0
// GDN rows before the delta rule: causal convolution and SiLU, unit keys and queries, gates.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/parallel.h"
#include "cpu/fast/gdn_parts.h"
#include "cpu/fast/ring.h"
#include "cpu/fast/row_math.h"
#include "cpu/fast/vector_math.h"

namespace tessera::cpu {
namespace {

constexpr float kNormEps = 1e-6F;         // spec/model.md section 3: of the L2 norm
constexpr float kLowestLogDecay = -1e4F;  // e^it is zero; sums of a chunk stay finite
constexpr double kHeadWork = 16;          // operations per channel of a head

/// The rows that each tap of one row reads, all channels, and the same rows from some channel on.
class Taps {
 public:
  explicit Taps(const ops::GdnArgs& args)
      : args_(args), rows_(static_cast<size_t>(args.shape.conv_kernel)), shifted_(rows_.size()) {}

  void set_row(const GdnChunk& chunk, int64_t launch_row, const float* zeros) {
    const auto row = static_cast<int>(launch_row - chunk.span->row_begin);
    int lag = args_.shape.conv_kernel;
    for (const float*& tap : rows_) {
      tap = lagged_row(*chunk.span, args_.conv_ring, row, --lag, floats(args_.qkv),
                       args_.shape.channels(), zeros);
    }
  }

  void convolve(int64_t channel, int count, float* mixed) {
    for (size_t tap = 0; tap < rows_.size(); ++tap) shifted_[tap] = rows_[tap] + channel;
    const int taps = args_.shape.conv_kernel;
    conv_silu_row(shifted_.data(), args_.conv_weight + channel * taps, taps, mixed + channel,
                  count);
  }

 private:
  const ops::GdnArgs& args_;
  std::vector<const float*> rows_;
  std::vector<const float*> shifted_;
};

void normalize(float* x, int count, float scale) {
  scale_row(x, scale / std::sqrt(sum_squares(x, count) + kNormEps), x, count);
}

void prepare_key_head(const ops::GdnArgs& args, Taps& taps, int head, float* mixed,
                      float* key_query) {
  const int dim = args.shape.key_dim;
  const int64_t query_at = int64_t{head} * dim;
  const int64_t key_at = (int64_t{args.shape.key_heads} + head) * dim;
  taps.convolve(query_at, dim, mixed);
  taps.convolve(key_at, dim, mixed);
  normalize(mixed + query_at, dim, 1.0F / std::sqrt(static_cast<float>(dim)));
  normalize(mixed + key_at, dim, 1.0F);
  key_query[head] = dot(mixed + key_at, mixed + query_at, dim);
}

float softplus(float x) { return std::max(x, 0.0F) + std::log1p(std::exp(-std::fabs(x))); }

float log_decay(const ops::GdnArgs& args, int head, float a) {
  const float g = -std::exp(args.a_log[head]) * softplus(a + args.dt_bias[head]);
  return g < kLowestLogDecay ? kLowestLogDecay : g;
}

}  // namespace

void gdn_prepare(const ops::GdnArgs& args, const GdnWindow& window, const GdnPrepared& prepared) {
  const ops::GdnShape& shape = args.shape;
  const int64_t items = shape.key_heads + shape.value_heads;
  parallel_for(window.rows * items, grain_for(kHeadWork * shape.key_dim),
               [&](int64_t begin, int64_t end, int) {
                 auto chunk = window.chunks.begin();
                 Taps taps(args);
                 for (int64_t item = begin; item < end; ++item) {
                   const int64_t row = item / items;
                   const int64_t launch_row = window.first_row + row;
                   const auto head = static_cast<int>(item % items);
                   while (launch_row >= chunk->launch_row() + chunk->rows) ++chunk;
                   if (item == begin || head == 0) taps.set_row(*chunk, launch_row, prepared.zeros);
                   float* mixed = prepared.mixed + row * shape.channels();
                   if (head < shape.key_heads) {
                     prepare_key_head(args, taps, head, mixed,
                                      prepared.key_query + row * shape.key_heads);
                     continue;
                   }
                   const int value_head = head - shape.key_heads;
                   const int64_t at = launch_row * shape.value_heads + value_head;
                   taps.convolve(gdn_head(shape, value_head).value_at, shape.value_dim, mixed);
                   prepared.log_decay[row * shape.value_heads + value_head] =
                       log_decay(args, value_head, args.a[at]);
                   prepared.beta[row * shape.value_heads + value_head] = vector_sigmoid(args.b[at]);
                 }
               });
}

void gdn_finish_row(const ops::GdnArgs& args, int64_t launch_row, int head) {
  const int dim = args.shape.value_dim;
  const int64_t at = (launch_row * args.shape.value_heads + head) * dim;
  float* out = floats(args.out) + at;
  const float mean = sum_squares(out, dim) / static_cast<float>(dim);
  gated_norm_row(out, 1.0F / std::sqrt(mean + args.eps), args.norm, floats(args.z) + at,
                 args.gate == ops::GateActivation::kSilu, out, dim);
}

}  // namespace tessera::cpu
