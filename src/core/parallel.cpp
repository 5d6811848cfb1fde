// SPDX-License-Identifier: Apache-2.0
// The pool: workers spin briefly for the next loop, then sleep; shares are claimed one by one.
#include "core/parallel.h"

#include <sched.h>

#include <atomic>
#include <cassert>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace tessera {
namespace {

constexpr int kMaxThreads = 1024;
// Loops of one token follow each other within microseconds: worth waiting for awake.
constexpr int kSpins = 4000;

thread_local int requested_threads = 0;
thread_local bool inside_loop = false;

int usable_cores() {
  static const int cores = [] {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }();
  return cores;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

/// Waits until `value` differs from `old`.
template <class T>
T wait_for_change(const std::atomic<T>& value, T old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    const T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    relax();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

/// The loop in flight. A claim is a compare-and-swap on (generation, next share). It succeeds only
/// while that loop has unclaimed shares, so the fields read before it belong to the same loop, and
/// the loop cannot end before the claimed share does.
class Pool {
 public:
  ~Pool() {
    stopping_ = true;
    generation_.fetch_add(1);
    generation_.notify_all();
  }

  /// False when another thread runs a loop: the caller then works alone.
  bool run(int64_t shares, int team, ShareFn fn) {
    const std::unique_lock lock(busy_, std::try_to_lock);
    if (!lock) return false;
    grow(team - 1);
    const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
    // Closed first: whoever reads a field of this loop finds every older claim refused.
    claim_.store(Claim{generation, kClosed}, std::memory_order_release);
    shares_.store(static_cast<uint32_t>(shares), std::memory_order_release);
    team_.store(team, std::memory_order_release);
    context_.store(fn.context(), std::memory_order_release);
    call_.store(fn.call(), std::memory_order_release);
    done_.store(0, std::memory_order_release);
    failure_ = nullptr;
    claim_.store(Claim{generation, 0}, std::memory_order_release);
    // An exchange, not a store: the notification must not look for sleepers before it is visible.
    generation_.exchange(generation);
    generation_.notify_all();

    work(generation, 0);
    for (uint32_t done = done_.load(std::memory_order_acquire); done < shares;)
      done = wait_for_change(done_, done);
    if (failure_) std::rethrow_exception(failure_);
    return true;
  }

 private:
  static constexpr uint32_t kClosed = ~uint32_t{0};
  struct Claim {
    uint32_t generation = 0;
    uint32_t next = 0;
  };

  void grow(int workers) {
    while (static_cast<int>(threads_.size()) < std::min(workers, kMaxThreads)) {
      const int thread = static_cast<int>(threads_.size()) + 1;
      try {
        threads_.emplace_back([this, thread, seen = generation_.load()] { worker(thread, seen); });
      } catch (const std::system_error&) {
        return;  // the system grants no more: the others take the shares
      }
    }
  }

  void worker(int thread, uint32_t seen) {
    inside_loop = true;
    while (!stopping_) {
      seen = wait_for_change(generation_, seen);
      work(seen, thread);
    }
  }

  /// Takes shares of that loop until none is left.
  void work(uint32_t generation, int thread) {
    for (;;) {
      Claim claim = claim_.load(std::memory_order_acquire);
      const uint32_t shares = shares_.load(std::memory_order_acquire);
      const auto call = call_.load(std::memory_order_acquire);
      void* context = context_.load(std::memory_order_acquire);
      if (thread >= team_.load(std::memory_order_acquire)) return;
      if (claim.generation != generation || claim.next >= shares) return;
      const Claim taken{claim.generation, claim.next + 1};
      if (!claim_.compare_exchange_strong(claim, taken, std::memory_order_acq_rel)) continue;
      run_share(call, context, claim.next, thread);
      if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == shares) done_.notify_all();
    }
  }

  void run_share(ShareFn::Call call, void* context, int64_t share, int thread) {
    const bool outer = std::exchange(inside_loop, true);
    try {
      call(context, share, thread);
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    inside_loop = outer;
  }

  std::mutex busy_;
  std::atomic<Claim> claim_{};
  std::atomic<uint32_t> generation_{0};
  std::atomic<uint32_t> shares_{0};
  std::atomic<int> team_{0};
  std::atomic<void*> context_{nullptr};
  std::atomic<ShareFn::Call> call_{nullptr};
  std::atomic<uint32_t> done_{0};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;  // last: ends before what it uses
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

void set_num_threads(int threads) { requested_threads = std::min(threads, kMaxThreads); }

int num_threads() { return requested_threads > 0 ? requested_threads : usable_cores(); }

void run_shares(int64_t shares, int team, ShareFn fn) {
  assert(shares < std::numeric_limits<uint32_t>::max());
  const auto threads = static_cast<int>(std::min<int64_t>(team, shares));
  const bool parallel = threads > 1 && !inside_loop;
  if (parallel && pool().run(shares, threads, fn)) return;
  for (int64_t share = 0; share < shares; ++share) fn.call()(fn.context(), share, 0);
}

}  // namespace tessera
