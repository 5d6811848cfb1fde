// SPDX-License-Identifier: Apache-2.0
// The delayed producer catches a kernel that reads or writes before its wait, and no other.
#include <cmath>

#include "cuda/cuda_fixture.h"
#include "cuda/delayed_producer.h"
#include "cuda/device/pdl.cuh"

namespace tessera::test {
namespace {

enum class Fault { kNone, kReadsEarly, kWritesEarly };

template <Fault kFault>
struct Behaviour {
  static constexpr Fault fault = kFault;
};

template <class Behaviour>
__global__ void add_one(const float* x, float* y, int count) {
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  constexpr bool kEarly = Behaviour::fault == Fault::kReadsEarly;
  float value = 0;
  if (kEarly && at < count) value = *static_cast<const volatile float*>(x + at);
  if (Behaviour::fault == Fault::kWritesEarly && at < count) y[at] = 1;
  cuda::device::wait_for_inputs();
  if (at >= count) return;
  if (!kEarly) value = x[at];
  y[at] = value + 1;
}

class DelayedProducerTest : public CudaTest {
 protected:
  struct Outcome {
    bool untouched = false;
    std::vector<float> y{};
  };

  template <Fault kFault>
  Outcome run() {
    const std::vector<float> x{1, 2, 3, 4, 5};
    float* input = world().copy(x);
    float* output = reinterpret_cast<float*>(world().bytes(x.size() * sizeof(float)));
    DelayedProducer producer(context());
    producer.late(input, x.size() * sizeof(float));
    producer.untouched(output, x.size() * sizeof(float));
    const cuda::LaunchShape shape{.grid = dim3(1), .block = dim3(32)};
    const auto op = [&] {
      cuda::launch(context(), shape, add_one<Behaviour<kFault>>, input, output,
                   static_cast<int>(x.size()));
    };
    op();  // the first launch loads the kernel, which takes longer than any delay
    Outcome outcome;
    outcome.untouched = producer.run(op);
    outcome.y = read_floats(output, x.size());
    return outcome;
  }
};

TEST_F(DelayedProducerTest, PassesAKernelThatWaits) {
  const Outcome outcome = run<Fault::kNone>();
  EXPECT_TRUE(outcome.untouched);
  EXPECT_EQ(outcome.y, (std::vector<float>{2, 3, 4, 5, 6}));
}

TEST_F(DelayedProducerTest, ShowsAnEarlyRead) {
  if (!context().pdl() || !context().gpu().is_hopper()) GTEST_SKIP() << "no dependent launches";
  EXPECT_TRUE(std::isnan(run<Fault::kReadsEarly>().y[0]));
}

TEST_F(DelayedProducerTest, ShowsAnEarlyWrite) {
  if (!context().pdl() || !context().gpu().is_hopper()) GTEST_SKIP() << "no dependent launches";
  EXPECT_FALSE(run<Fault::kWritesEarly>().untouched);
}

}  // namespace
}  // namespace tessera::test
