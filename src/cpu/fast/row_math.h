// SPDX-License-Identifier: Apache-2.0
// Leaf loops over one row of floats, compiled per instruction set. A row's result depends on its
// length alone, so an op built from them gives the same bits for any number of rows.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "ops/weight.h"

namespace tessera::cpu {

/// dst = src * scale; src is kF32, kBF16 or kF8E4M3. The scale applies to kF8E4M3 only.
void widen_row(const void* src, DType dtype, float scale, float* dst, int count);

/// dst = src rounded to nearest even; dst is kF32 or kBF16.
void narrow_row(const float* src, DType dtype, void* dst, int count);

/// Row `row` of a weight as float, block scales applied.
void widen_weight_row(const ops::LinearWeight& weight, int row, float* dst);

float sum_squares(const float* x, int count);
float dot(const float* a, const float* b, int count);

/// y = x * factor * (1 + w); y may be x.
void scale_one_plus(const float* x, const float* weight, float factor, float* y, int count);

/// RMS1 of one row: y = x rsqrt(mean(x^2) + eps) (1 + w); y may be x.
void rms_one_plus(const float* x, const float* weight, float eps, float* y, int count);

/// y = x * factor; y may be x.
void scale_row(const float* x, float factor, float* y, int count);

/// y += factor * x.
void add_scaled(float factor, const float* x, float* y, int count);

/// y = silu(x * factor); y may be x.
void silu_row(const float* x, float factor, float* y, int count);

/// y = sigmoid(x); y may be x.
void sigmoid_row(const float* x, float* y, int count);

/// y = mean over the branches of sigmoid(gate_g) * norm_g.
void gated_branch_mean(const float* gate, const float* norm, int branches, int hidden, float* y);

/// y = x * factor * w * act(gate), act = sigmoid or silu.
void gated_norm_row(const float* x, float factor, const float* weight, const float* gate, bool silu,
                    float* y, int count);

/// y = x * factor * sigmoid(gate).
void gate_row(const float* x, float factor, const float* gate, float* y, int count);

/// Half-split rotation of the first 2 * half values of x, in place.
void rotate_row(const float* cosine, const float* sine, int half, float* x);

/// Depthwise convolution of one row: y[c] = silu(sum over taps of rows[tap][c] * weight[c, tap]).
/// `rows` holds one row of `count` values per tap, zeros where the sequence had not begun.
void conv_silu_row(const float* const* rows, const float* weight, int taps, float* y, int count);

/// Same, added to y.
void add_conv_silu_row(const float* const* rows, const float* weight, int taps, float* y,
                       int count);

}  // namespace tessera::cpu
