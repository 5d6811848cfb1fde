// SPDX-License-Identifier: Apache-2.0
#include "core/parallel.h"

#include <atomic>

namespace tessera {
namespace {
std::atomic<int> requested_threads{0};
}

void set_num_threads(int threads) { requested_threads = threads; }

int num_threads() {
  const int requested = requested_threads.load(std::memory_order_relaxed);
  return requested > 0 ? requested : omp_get_num_procs();
}

}  // namespace tessera
