// SPDX-License-Identifier: Apache-2.0
// Products with a stored weight (F32, BF16, FP8) on raw pointers: what linear, experts and mixer
// are built from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/arena.h"
#include "ops/rows.h"
#include "ops/weight.h"

namespace tessera::cpu {

/// y[row][n] = sum_k x[row][k] W[n][k].
struct LinearJob {
  ops::LinearWeight weight;
  const float* x = nullptr;  // [rows, in_features]
  int64_t x_stride = 0;      // floats from row to row
  float* y = nullptr;        // [rows, out_features], must not overlap x
  int64_t y_stride = 0;      // floats from row to row
};

/// Multi-threaded, all jobs in one parallel region. The sum of an output runs in an order set by
/// in_features alone: same bits for any number of rows, threads or jobs. The two paths agree only
/// within rounding.
void linear_decode(std::span<const LinearJob> jobs, int rows);
void linear_prefill(std::span<const LinearJob> jobs, int rows, Arena& scratch);
void linear_run(std::span<const LinearJob> jobs, int rows, ops::Role role, Arena& scratch);

/// Decode path, one thread: y[row][n] for n in [first, last) and rows given by pointer.
struct DotRows {
  ops::LinearWeight weight;
  int first = 0;
  int last = 0;
  const float* const* x = nullptr;  // [rows] pointers to in_features floats
  float* const* y = nullptr;        // [rows] pointers to out_features floats
  int rows = 0;
};
void dot_rows(const DotRows& args);

/// Prefill path, one thread, all of job.weight; `workspace` holds linear_workspace_floats().
void linear_prefill_one(const LinearJob& job, int rows, float* workspace);
size_t linear_workspace_floats();

}  // namespace tessera::cpu
