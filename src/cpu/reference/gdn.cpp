// SPDX-License-Identifier: Apache-2.0
// Reference of Gated DeltaNet: the recurrence, token by token, for decode and prefill alike.
#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "cpu/reference/history.h"
#include "cpu/reference/numerics.h"
#include "cpu/reference/reference_kernels.h"

namespace tessera::cpu::reference {
namespace {

constexpr double kL2Eps = 1e-6;  // of the q and k normalisation, fixed by the specification

/// Causal depthwise convolution then SiLU of one token, all channels.
void convolve(const ops::GdnArgs& args, const History<float>& inputs, int64_t position,
              float* out) {
  const auto channels = static_cast<size_t>(args.shape.channels());
  const int taps = args.shape.conv_kernel;
  std::vector<double> sums(channels, 0.0);
  for (int tap = 0; tap < taps; ++tap) {
    const float* input = inputs.at(position - (taps - 1 - tap));
    if (input == nullptr) continue;
    for (size_t channel = 0; channel < channels; ++channel)
      sums[channel] +=
          double{input[channel]} *
          double{args.conv_weight[channel * static_cast<size_t>(taps) + static_cast<size_t>(tap)]};
  }
  for (size_t channel = 0; channel < channels; ++channel)
    out[channel] = static_cast<float>(silu(sums[channel]));
}

/// In FP32, as verify launches store it: a replayed row is the row that was run.
std::vector<float> l2_normalized(const float* x, int count, double scale) {
  const double factor = scale / std::sqrt(dot(x, x, count) + kL2Eps);
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t index = 0; index < out.size(); ++index)
    out[index] = static_cast<float>(x[index] * factor);
  return out;
}

/// What one row brings to one head: k [dk] and v [dv].
struct Update {
  const float* key = nullptr;
  const float* value = nullptr;
  float log_decay = 0;
  float beta = 0;
};

/// One step of the delta rule of one head. `matrix` [dk, dv] is updated; returns o [dv], empty
/// without `query`.
std::vector<float> delta_step(const ops::GdnShape& shape, const Update& update, const float* query,
                              float* matrix) {
  const auto dk = static_cast<size_t>(shape.key_dim), dv = static_cast<size_t>(shape.value_dim);
  const double decay = std::exp(double{update.log_decay});
  std::vector<double> retrieved(dv, 0.0), out(dv, 0.0);
  for (size_t key = 0; key < dk; ++key) {
    for (size_t value = 0; value < dv; ++value) {
      float& cell = matrix[key * dv + value];
      cell = static_cast<float>(double{cell} * decay);
      retrieved[value] += double{cell} * double{update.key[key]};
    }
  }
  for (size_t key = 0; key < dk; ++key) {
    for (size_t value = 0; value < dv; ++value) {
      float& cell = matrix[key * dv + value];
      cell =
          static_cast<float>(double{cell} + double{update.key[key]} * double{update.beta} *
                                                (double{update.value[value]} - retrieved[value]));
      if (query != nullptr) out[value] += double{cell} * double{query[key]};
    }
  }
  if (query == nullptr) return {};
  return {out.begin(), out.end()};
}

/// o * inverse_rms * norm * act(z).
void gated_norm(const ops::GdnArgs& args, const float* o, const float* z, float* out) {
  const int dv = args.shape.value_dim;
  const double factor = inverse_rms(o, dv, double{args.eps});
  for (int value = 0; value < dv; ++value) {
    const double gate = args.gate == ops::GateActivation::kSigmoid ? sigmoid(double{z[value]})
                                                                   : silu(double{z[value]});
    out[value] = static_cast<float>(o[value] * factor * double{args.norm[value]} * gate);
  }
}

/// Applies the accepted rows that the last verify launch left to one head.
void replay(const ops::GdnArgs& args, const ops::RowSpan& span, int head, float* matrix) {
  const ops::GdnPending layout{args.shape};
  const auto at = static_cast<size_t>(head);
  std::byte* pending = span.slot + args.pending_offset;
  for (int row = 0; row < args.accepted_rows(span.slot); ++row) {
    const float* stored = layout.row(pending, row);
    delta_step(args.shape,
               {.key = stored + layout.key_at(head),
                .value = stored + layout.value_at(head),
                .log_decay = stored[layout.log_decay_at() + at],
                .beta = stored[layout.beta_at() + at]},
               nullptr, matrix);
  }
}

void leave_pending(const ops::GdnArgs& args, const ops::RowSpan& span, int row, int head,
                   const Update& update) {
  const ops::GdnPending layout{args.shape};
  if (row >= args.pending_rows) return;
  float* stored = layout.row(span.slot + args.pending_offset, row);
  std::copy_n(update.key, args.shape.key_dim, stored + layout.key_at(head));
  std::copy_n(update.value, args.shape.value_dim, stored + layout.value_at(head));
  stored[layout.log_decay_at() + static_cast<size_t>(head)] = update.log_decay;
  stored[layout.beta_at() + static_cast<size_t>(head)] = update.beta;
}

/// All rows of a span through one value head; `convolved` [rows of the span, channels].
void run_head(const ops::GdnArgs& args, const ops::RowSpan& span, const float* convolved,
              int head) {
  const ops::GdnShape& shape = args.shape;
  const int key_head = head / (shape.value_heads / shape.key_heads);
  const auto dk = static_cast<size_t>(shape.key_dim), dv = static_cast<size_t>(shape.value_dim);
  const auto heads = static_cast<size_t>(shape.value_heads);
  const size_t q_at = static_cast<size_t>(key_head) * dk;
  const size_t k_at = q_at + static_cast<size_t>(shape.key_heads) * dk;
  const size_t v_at =
      2 * static_cast<size_t>(shape.key_heads) * dk + static_cast<size_t>(head) * dv;
  auto* matrix = reinterpret_cast<float*>(span.slot + args.matrix_offset) +
                 static_cast<size_t>(head) * dk * dv;
  std::vector<float> copy;
  if (args.verify) {
    replay(args, span, head, matrix);
    copy.assign(matrix, matrix + dk * dv);
    matrix = copy.data();
  }
  for (int row = 0; row < span.num_rows; ++row) {
    const float* mixed =
        convolved + static_cast<size_t>(row) * static_cast<size_t>(shape.channels());
    const size_t at = static_cast<size_t>(span.row_begin + row) * heads + static_cast<size_t>(head);
    const auto q = l2_normalized(mixed + q_at, shape.key_dim, 1.0 / std::sqrt(shape.key_dim));
    const auto k = l2_normalized(mixed + k_at, shape.key_dim, 1.0);
    const Update update = {
        .key = k.data(),
        .value = mixed + v_at,
        .log_decay = static_cast<float>(-std::exp(double{args.a_log[head]}) *
                                        softplus(double{args.a[at]} + double{args.dt_bias[head]})),
        .beta = static_cast<float>(sigmoid(double{args.b[at]}))};
    const auto o = delta_step(shape, update, q.data(), matrix);
    if (args.verify) leave_pending(args, span, row, head, update);
    gated_norm(args, o.data(), floats(args.z) + at * dv, floats(args.out) + at * dv);
  }
}

void run_span(const ops::GdnArgs& args, const ops::RowSpan& span) {
  const auto channels = static_cast<size_t>(args.shape.channels());
  const History<float> inputs(span, args.conv_ring,
                              floats(args.qkv) + static_cast<size_t>(span.row_begin) * channels,
                              channels, channels);
  std::vector<float> convolved(static_cast<size_t>(span.num_rows) * channels);
  for (int row = 0; row < span.num_rows; ++row)
    convolve(args, inputs, span.position + row, &convolved[static_cast<size_t>(row) * channels]);
  inputs.store();
  parallel_for(args.shape.value_heads, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t head = begin; head < end; ++head)
      run_head(args, span, convolved.data(), static_cast<int>(head));
  });
}

}  // namespace

void gdn(const ops::GdnArgs& args) {
  for (const ops::RowSpan& span : args.batch.spans)
    if (span.num_rows > 0 || args.verify) run_span(args, span);
}

}  // namespace tessera::cpu::reference
