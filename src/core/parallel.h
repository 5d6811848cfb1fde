// SPDX-License-Identifier: Apache-2.0
// The only place that knows the threading library: a blocking parallel loop over a fixed partition.
#pragma once

#include <omp.h>
#include <algorithm>
#include <cstdint>

namespace tessera {

/// Threads that `parallel_for` uses from this thread on; 0 restores the number of usable cores.
void set_num_threads(int threads);
int num_threads();

/// Calls fn(begin, end, thread) once per thread on a contiguous share of [0, count), at multiples
/// of `grain`. Results must not depend on the split: each index writes only its own output.
template <class Fn>
void parallel_for(int64_t count, int64_t grain, Fn&& fn) {
  const int64_t blocks = (count + grain - 1) / grain;
  const auto team = static_cast<int>(std::min<int64_t>(num_threads(), blocks));
  if (team <= 1) {
    if (count > 0) fn(int64_t{0}, count, 0);
    return;
  }
#pragma omp parallel num_threads(team)
  {
    const int thread = omp_get_thread_num();
    const int64_t first = blocks * thread / team;
    const int64_t last = blocks * (thread + 1) / team;
    if (first < last) fn(first * grain, std::min(last * grain, count), thread);
  }
}

/// Same, but threads take blocks of `grain` as they become free: for uneven work.
template <class Fn>
void parallel_for_dynamic(int64_t count, int64_t grain, Fn&& fn) {
  const int64_t blocks = (count + grain - 1) / grain;
  const auto team = static_cast<int>(std::min<int64_t>(num_threads(), blocks));
  if (team <= 1) {
    for (int64_t block = 0; block < blocks; ++block)
      fn(block * grain, std::min((block + 1) * grain, count), 0);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
  for (int64_t block = 0; block < blocks; ++block)
    fn(block * grain, std::min((block + 1) * grain, count), omp_get_thread_num());
}

}  // namespace tessera
