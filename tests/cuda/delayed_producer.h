// SPDX-License-Identifier: Apache-2.0
// Proves that a kernel waits for its inputs: it starts while the kernel that writes them still
// runs, and finds NaN if it looks too early.
#pragma once

#include <functional>
#include <vector>

#include "cuda/context.h"

namespace tessera::test {

/// Usage: run the op once plainly (the first launch loads its kernels) and keep its results,
/// restore what it changed in place, then
///   DelayedProducer producer(context);
///   producer.late(x, bytes);         // each activation or state that the op reads
///   producer.untouched(y, bytes);    // each output
///   EXPECT_TRUE(producer.run([&] { launch_op(context, args); }));
/// and compare bits. Launch inputs (spans) and scratch memory are late by themselves.
class DelayedProducer {
 public:
  explicit DelayedProducer(cuda::Context& context);
  ~DelayedProducer();
  DelayedProducer(const DelayedProducer&) = delete;
  DelayedProducer& operator=(const DelayedProducer&) = delete;

  /// What the buffer holds now is written when the producer ends; until then it holds NaN.
  void late(void* device, size_t bytes);
  /// Filled with poison, which must be intact when the producer ends: nothing may be written before
  /// the inputs are there.
  void untouched(void* device, size_t bytes);

  /// Launches the producer and the op behind it, with PDL when the context has it, and waits.
  /// False: an `untouched` buffer was written too early.
  bool run(const std::function<void()>& op);

  /// Plain data of the producer kernel.
  struct Region {
    std::byte* data = nullptr;
    const std::byte* late_content = nullptr;  // nullptr: fill with `poison`, or check it
    size_t bytes = 0;
    unsigned char poison = 0xFF;
    bool check = false;
  };

 private:
  std::byte* allocate(size_t bytes);

  cuda::Context& context_;
  std::vector<Region> regions_{};
  std::vector<std::byte*> owned_{};
};

}  // namespace tessera::test
