// SPDX-License-Identifier: Apache-2.0
// Blocking parallel loops over a fixed partition, on one pool of threads per process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace tessera {

/// Threads that loops started by this thread use, itself included; 0 restores the number of usable
/// cores. Per thread: two engines cannot change each other's count between sizing and running.
void set_num_threads(int threads);
int num_threads();

/// Reference to a callable fn(share, thread); does not own it.
class ShareFn {
 public:
  template <class Fn>
  explicit ShareFn(Fn& fn)
      : context_(&fn), call_([](void* context, int64_t share, int thread) {
          (*static_cast<Fn*>(context))(share, thread);
        }) {}
  using Call = void (*)(void* context, int64_t share, int thread);
  void* context() const { return context_; }
  Call call() const { return call_; }

 private:
  void* context_;
  Call call_;
};

/// Runs shares 0 .. shares - 1, each once, on at most `team` threads; returns when all are done.
/// The caller takes shares too and never waits for a thread that has not started one, so a busy
/// machine delays nothing. Within a share, and while another thread of the process runs a loop, it
/// is serial. An exception of a share is rethrown after the others have ended.
void run_shares(int64_t shares, int team, ShareFn fn);

/// Elementary operations (a multiply-add, a few bytes moved) below which waking a thread costs more
/// than it saves: about 10 us of work.
inline constexpr double kMinShareWork = 32768;

/// Indices per share such that a share is worth a thread, for `work` operations per index.
inline int64_t grain_for(double work) {
  return std::max<int64_t>(1, static_cast<int64_t>(kMinShareWork / std::max(work, 1.0)));
}

/// Calls fn(begin, end, thread) on contiguous parts of [0, count) that start at multiples of
/// `grain`, one part per thread. `thread` < num_threads() is not used by two calls at once. Results
/// must not depend on the split: each index writes only its own output.
template <class Fn>
void parallel_for(int64_t count, int64_t grain, Fn&& fn) {
  const int64_t blocks = (count + grain - 1) / grain;
  const int64_t shares = std::min<int64_t>(num_threads(), blocks);
  if (shares <= 1) {
    if (count > 0) fn(int64_t{0}, count, 0);
    return;
  }
  auto body = [&](int64_t share, int thread) {
    const int64_t first = blocks * share / shares * grain;
    const int64_t last = std::min(blocks * (share + 1) / shares * grain, count);
    fn(first, last, thread);
  };
  run_shares(shares, static_cast<int>(shares), ShareFn(body));
}

/// Same, but threads take blocks of `grain` as they become free: for uneven work.
template <class Fn>
void parallel_for_dynamic(int64_t count, int64_t grain, Fn&& fn) {
  const int64_t blocks = (count + grain - 1) / grain;
  auto body = [&](int64_t block, int thread) {
    fn(block * grain, std::min((block + 1) * grain, count), thread);
  };
  run_shares(blocks, num_threads(), ShareFn(body));
}

}  // namespace tessera
