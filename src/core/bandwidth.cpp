// SPDX-License-Identifier: Apache-2.0
// Streams through buffers larger than the caches, on every thread, and keeps the median rate.
#include "core/bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/huge_buffer.h"
#include "core/parallel.h"

namespace tessera {
namespace {

constexpr size_t kBufferBytes = size_t{256} << 20;
/// One pass of one thread reads this much: short enough to fit between interruptions.
constexpr size_t kPassBytes = size_t{8} << 20;
constexpr size_t kLeastPasses = 8;
constexpr double kSeconds = 0.4;  // after which no further pass starts

using Clock = std::chrono::steady_clock;
using Line = uint64_t __attribute__((vector_size(64)));

/// Sum of all words by one accumulator per chain. The chains read neighbouring cache lines (one
/// stream), or, `far_apart`, each its own quarter (four streams, which some machines read faster).
uint64_t sum_words(const std::byte* from, size_t bytes, bool far_apart) {
  constexpr size_t kChains = 4, kWords = sizeof(Line) / sizeof(uint64_t);
  const size_t apart = far_apart ? bytes / kChains : sizeof(Line);
  const size_t step = far_apart ? sizeof(Line) : kChains * sizeof(Line);
  Line sum[kChains] = {};
  for (size_t round = 0; round < bytes / (kChains * sizeof(Line)); ++round) {
    for (size_t chain = 0; chain < kChains; ++chain) {
      Line line;
      std::memcpy(&line, from + round * step + chain * apart, sizeof(Line));
      sum[chain] += line;
    }
  }
  const Line all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  uint64_t total = 0;
  for (size_t word = 0; word < kWords; ++word) total += all[word];
  return total;
}

HugeBuffer touched_buffer() {
  HugeBuffer buffer(kBufferBytes);
  std::memset(buffer.data(), 1, kBufferBytes);
  return buffer;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Median rate of many passes of fn(offset) on every thread; by the time a pass comes back to a
/// slot, the slots between have pushed it out of the caches.
template <class Fn>
double median_rate(int threads, Fn&& fn) {
  const size_t slots = kBufferBytes / kPassBytes;
  const auto team = static_cast<size_t>(threads);
  std::vector<double> rates;
  const auto begin = Clock::now();
  for (size_t pass = 0; pass < kLeastPasses || seconds_since(begin) < kSeconds; ++pass) {
    const auto start = Clock::now();
    auto one_slot = [&](int64_t share, int) {
      fn((pass * team + static_cast<size_t>(share)) % slots * kPassBytes);
    };
    run_shares(threads, threads, ShareFn(one_slot));
    rates.push_back(static_cast<double>(kPassBytes * team) / seconds_since(start));
  }
  const auto middle = rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

}  // namespace

double measure_read_bandwidth(int threads) {
  const auto buffer = touched_buffer();
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (const bool far_apart : {false, true})
    best = std::max(best, median_rate(threads, [&](size_t offset) {
                      sink += sum_words(buffer.data() + offset, kPassBytes, far_apart);
                    }));
  return best;
}

double measure_copy_bandwidth(int threads) {
  constexpr double kReadAndWritten = 2;
  const auto source = touched_buffer();
  const auto target = touched_buffer();
  return kReadAndWritten * median_rate(threads, [&](size_t offset) {
           std::memcpy(target.data() + offset, source.data() + offset, kPassBytes);
         });
}

}  // namespace tessera
