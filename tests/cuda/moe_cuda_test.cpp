// SPDX-License-Identifier: Apache-2.0
// Router and experts at the sizes their kernels are made for: against the definition on a sample of
// rows, equal bits of a row in every launch and run, fast against generic kernels, and nothing
// touched before the inputs are there.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"
#include "cuda/moe/moe_parts.h"

namespace tessera::test {
namespace {

constexpr double kRounding = 0x1p-8;  // half a unit in the last place of a BF16 value
constexpr int kMostRows = 256;
constexpr size_t kBf16 = sizeof(uint16_t);

/// Row `first` of a device buffer.
template <class T>
T* at_row(T* data, int first, size_t width) {
  return data + static_cast<size_t>(first) * width;
}
void* bf16_row(void* data, int first, size_t width) {
  return at_row(static_cast<std::byte*>(data), first, width * kBf16);
}

struct RouterSize {
  int hidden;
  int experts;
  int top_k;
};

struct Routed {
  std::vector<float> logits, shared_logit, weights;
  std::vector<int32_t> ids;
};

class RouterCudaTest : public CudaTest {
 protected:
  void prepare(const RouterSize& size, int rows) {
    world().clear();
    size_ = size;
    gate_ = world().weight(DType::kBF16, size.experts, size.hidden, 2);
    shared_gate_ = world().weight(DType::kBF16, 1, size.hidden);
    x_ = world().bf16(count(rows, size.hidden));
  }
  static size_t count(int rows, int width) {
    return static_cast<size_t>(rows) * static_cast<size_t>(width);
  }

  ops::RouterArgs args(int first, int rows, ops::Role role) {
    const auto floats = [&](int width) {
      return reinterpret_cast<float*>(world().bytes(count(rows, width) * sizeof(float)));
    };
    return {.x = bf16_row(x_, first, static_cast<size_t>(size_.hidden)),
            .gate = gate_,
            .shared_gate = shared_gate_,
            .logits = floats(size_.experts),
            .shared_logit = floats(1),
            .ids = reinterpret_cast<int32_t*>(floats(size_.top_k)),
            .weights = floats(size_.top_k),
            .rows = rows,
            .num_experts = size_.experts,
            .top_k = size_.top_k,
            .role = role};
  }
  Routed results(const ops::RouterArgs& done) {
    return {.logits = read_floats(done.logits, count(done.rows, size_.experts)),
            .shared_logit = read_floats(done.shared_logit, static_cast<size_t>(done.rows)),
            .weights = read_floats(done.weights, count(done.rows, size_.top_k)),
            .ids = read(done.ids, count(done.rows, size_.top_k))};
  }
  Routed run(int first, int rows, ops::Role role) {
    const ops::RouterArgs launch = args(first, rows, role);
    cuda::launch_router(context(), launch);
    return results(launch);
  }

  /// Logits against the definition; ids and weights against the logits found.
  void expect_row(const Routed& got, const std::vector<float>& x, const std::vector<float>& gate,
                  size_t row) const {
    const auto hidden = static_cast<size_t>(size_.hidden),
               experts = static_cast<size_t>(size_.experts),
               top_k = static_cast<size_t>(size_.top_k);
    const std::span<const float> logits = std::span(got.logits).subspan(row * experts, experts);
    std::vector<double> want(experts, 0.0);
    for (size_t expert = 0; expert < experts; ++expert)
      for (size_t col = 0; col < hidden; ++col)
        want[expert] += double{x[row * hidden + col]} * double{gate[expert * hidden + col]};
    ASSERT_TRUE(close(logits, to_float(want), sum_tolerance(static_cast<double>(hidden)), 1));
    std::vector<int32_t> order(experts);
    for (size_t expert = 0; expert < experts; ++expert)
      order[expert] = static_cast<int32_t>(expert);
    std::stable_sort(order.begin(), order.end(), [&](int32_t left, int32_t right) {
      return logits[static_cast<size_t>(left)] > logits[static_cast<size_t>(right)];
    });
    double total = 0;
    std::vector<float> weights;
    const auto exponential = [&](size_t slot) {
      return std::exp(double{logits[static_cast<size_t>(order[slot])]} -
                      double{logits[static_cast<size_t>(order[0])]});
    };
    for (size_t slot = 0; slot < top_k; ++slot) total += exponential(slot);
    for (size_t slot = 0; slot < top_k; ++slot) {
      ASSERT_EQ(got.ids[row * top_k + slot], order[slot]) << "slot " << slot;
      weights.push_back(static_cast<float>(exponential(slot) / total));
    }
    ASSERT_TRUE(close(std::span(got.weights).subspan(row * top_k, top_k), weights, 2 * kRounding));
  }

  void expect_same_rows(const Routed& all, int first, const Routed& some, int rows) const {
    const auto part = [&](const std::vector<float>& values, int width) {
      return std::span(values).subspan(count(first, width), count(rows, width));
    };
    ASSERT_TRUE(same_bits(some.logits, part(all.logits, size_.experts)));
    ASSERT_TRUE(same_bits(some.shared_logit, part(all.shared_logit, 1)));
    ASSERT_TRUE(same_bits(some.weights, part(all.weights, size_.top_k)));
    const std::span<const int32_t> ids =
        std::span(all.ids).subspan(count(first, size_.top_k), count(rows, size_.top_k));
    ASSERT_TRUE(std::equal(ids.begin(), ids.end(), some.ids.begin()));
  }

  RouterSize size_{};
  ops::LinearWeight gate_, shared_gate_;
  void* x_ = nullptr;
};

constexpr RouterSize kRouterSizes[] = {
    {2560, 512, 10}, {256, 16, 4}, {128, 12, 10}, {64, 16, 4}, {130, 600, 7}};

TEST_F(RouterCudaTest, MatchesTheDefinition) {
  for (const RouterSize& size : kRouterSizes) {
    prepare(size, kMostRows);
    const std::vector<float> gate = read_weight(gate_);
    const std::vector<float> x = read_bf16(x_, count(kMostRows, size.hidden));
    for (const ops::Role role : kRoles)
      for (const int rows : sized<std::vector<int>>({1, 3, 8, 9, 17, 64, kMostRows}, {1, 9, 17})) {
        SCOPED_TRACE(testing::Message()
                     << "hidden " << size.hidden << " rows " << rows << " " << role_name(role));
        const Routed got = run(0, rows, role);
        for (const int row : {0, rows / 2, rows - 1})
          ASSERT_NO_FATAL_FAILURE(expect_row(got, x, gate, static_cast<size_t>(row)));
      }
  }
}

TEST_F(RouterCudaTest, RowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  for (const RouterSize& size : kRouterSizes) {
    prepare(size, kMostRows);
    const Routed all = run(0, kMostRows, ops::Role::kDecode);
    for (const int rows : {1, 2, 3, 4, 5, 6, 8, 9, 16, 33, kMostRows})
      for (int first = 0; first + rows <= kMostRows; first += 41)
        ASSERT_NO_FATAL_FAILURE(
            expect_same_rows(all, first, run(first, rows, ops::Role::kDecode), rows));
  }
}

/// Launches without a pause share the arrival counter.
TEST_F(RouterCudaTest, LaunchesInARowDoNotDisturbEachOther) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  prepare(kRouterSizes[0], kMostRows);
  const Routed all = run(0, kMostRows, ops::Role::kDecode);
  constexpr int kRounds = 60;
  std::vector<std::pair<int, ops::RouterArgs>> launches;
  for (int round = 0; round < kRounds; ++round)
    for (const int rows : {1, 4, 6, 12, 8}) {
      const int first = (round * 11 + rows) % (kMostRows - rows);
      launches.emplace_back(first, args(first, rows, ops::Role::kDecode));
    }
  for (const auto& [first, launch] : launches) cuda::launch_router(context(), launch);
  for (const auto& [first, launch] : launches)
    ASSERT_NO_FATAL_FAILURE(expect_same_rows(all, first, results(launch), launch.rows));
}

TEST_F(RouterCudaTest, WaitsForItsInputs) {
  for (const ops::Role role : kRoles)
    for (const int rows : {1, 20}) {
      SCOPED_TRACE(testing::Message() << role_name(role) << " rows " << rows);
      prepare(kRouterSizes[0], rows);
      const ops::RouterArgs launch = args(0, rows, role);
      cuda::launch_router(context(), launch);
      const Routed want = results(launch);
      DelayedProducer producer(context());
      producer.late(x_, count(rows, size_.hidden) * kBf16);
      producer.untouched(launch.logits, count(rows, size_.experts) * sizeof(float));
      producer.untouched(launch.shared_logit, static_cast<size_t>(rows) * sizeof(float));
      producer.untouched(launch.ids, count(rows, size_.top_k) * sizeof(int32_t));
      producer.untouched(launch.weights, count(rows, size_.top_k) * sizeof(float));
      EXPECT_TRUE(producer.run([&] { cuda::launch_router(context(), launch); }));
      ASSERT_NO_FATAL_FAILURE(expect_same_rows(want, 0, results(launch), rows));
    }
}

struct ExpertSize {
  int hidden;
  int width;
  int experts;
  int top_k;
  DType routed = DType::kBF16;
  DType shared = DType::kBF16;
};

/// Rows that share experts: the routing stays within this many.
enum class Spread { kAll, kFew };

class ExpertsCudaTest : public CudaTest {
 protected:
  void prepare(const ExpertSize& size, int rows, Spread spread = Spread::kAll) {
    world().clear();
    known_.clear();
    size_ = size;
    hidden_ = static_cast<size_t>(size.hidden);
    top_k_ = static_cast<size_t>(size.top_k);
    experts_ = world().experts(size.routed, size.experts, size.hidden, size.width);
    shared_ = world().experts(size.shared, 1, size.hidden, size.width)[0];
    const auto count = static_cast<size_t>(rows);
    x_ = world().bf16(count * hidden_);
    weights_ = world().floats(count * top_k_, 0.1, 0.3);
    shared_logit_ = world().floats(count, 2);
    Random random(81);
    ids_host_.clear();
    const int among =
        spread == Spread::kFew ? std::min(size.experts, size.top_k + 2) : size.experts;
    for (int row = 0; row < rows; ++row) {
      const auto order = random.permutation(among);
      // Few: experts far apart, so that groups are not neighbours in memory.
      for (int slot = 0; slot < size.top_k; ++slot)
        ids_host_.push_back(order[static_cast<size_t>(slot)] * (size.experts / among));
    }
    ids_ = world().copy(ids_host_);
  }

  ops::ExpertsArgs args(int first, int rows, ops::Role role, void* x = nullptr) {
    return {.x = bf16_row(x == nullptr ? x_ : x, first, hidden_),
            .ids = at_row(ids_, first, top_k_),
            .weights = at_row(weights_, first, top_k_),
            .shared_logit = shared_logit_ + first,
            .experts = experts_,
            .shared = shared_,
            .out = world().bytes(static_cast<size_t>(rows) * hidden_ * kBf16),
            .rows = rows,
            .top_k = size_.top_k,
            .role = role};
  }
  std::vector<float> results(const ops::ExpertsArgs& done) {
    return read_bf16(done.out, static_cast<size_t>(done.rows) * hidden_);
  }
  std::vector<float> run(int first, int rows, ops::Role role) {
    const ops::ExpertsArgs launch = args(first, rows, role);
    cuda::launch_experts(context(), launch);
    return results(launch);
  }

  struct HostExpert {
    std::vector<float> gate, up, down;
  };
  const HostExpert& host_expert(int id) {
    auto [place, fresh] = known_.try_emplace(id);
    if (fresh) {
      const ops::ExpertWeight& expert = id < 0 ? shared_ : experts_[static_cast<size_t>(id)];
      place->second = {read_weight(expert.gate), read_weight(expert.up), read_weight(expert.down)};
    }
    return place->second;
  }

  static double dot(const float* row, const std::vector<float>& x) {
    double sum = 0;
    for (size_t col = 0; col < x.size(); ++col) sum += double{row[col]} * double{x[col]};
    return sum;
  }

  /// Row `row` of the prepared ones by definition.
  std::vector<float> by_definition(size_t row) {
    const auto width = static_cast<size_t>(size_.width);
    const std::vector<float> x = read_bf16(bf16_row(x_, static_cast<int>(row), hidden_), hidden_);
    const std::vector<float> weights = read_floats(weights_ + row * top_k_, top_k_);
    const double shared_logit = double{read_floats(shared_logit_ + row, 1)[0]};
    std::vector<double> out(hidden_, 0.0);
    for (size_t slot = 0; slot <= top_k_; ++slot) {
      const bool routed = slot < top_k_;
      const HostExpert& expert = host_expert(routed ? ids_host_[row * top_k_ + slot] : -1);
      std::vector<float> inner(width);
      for (size_t col = 0; col < width; ++col)
        inner[col] = as_bf16(static_cast<float>(silu(dot(&expert.gate[col * hidden_], x)) *
                                                dot(&expert.up[col * hidden_], x)));
      const double scale = routed ? double{weights[slot]} : sigmoid(shared_logit);
      for (size_t col = 0; col < hidden_; ++col)
        out[col] += scale * dot(&expert.down[col * width], inner);
    }
    return to_float(out);
  }

  void expect_row(const std::vector<float>& got, size_t first, size_t row) {
    const std::vector<float> want = by_definition(first + row);
    // Rounded: the inner products (a few land on the other side), results of prompts, the sum.
    ASSERT_TRUE(close(std::span(got).subspan(row * hidden_, hidden_), want, 3 * kRounding))
        << "row " << row;
  }
  void expect_same_rows(const std::vector<float>& all, int first, const std::vector<float>& some,
                        int rows) const {
    ASSERT_TRUE(same_bits(some, std::span(all).subspan(static_cast<size_t>(first) * hidden_,
                                                       static_cast<size_t>(rows) * hidden_)));
  }
  std::string describe(ops::Role role, int rows) const {
    return "hidden " + std::to_string(size_.hidden) + " " + dtype_name(size_.routed) + "+" +
           dtype_name(size_.shared) + " rows " + std::to_string(rows) + " " + role_name(role);
  }

  ExpertSize size_{};
  size_t hidden_ = 0, top_k_ = 0;
  std::vector<ops::ExpertWeight> experts_{};
  ops::ExpertWeight shared_;
  void* x_ = nullptr;
  float* weights_ = nullptr;
  float* shared_logit_ = nullptr;
  int32_t* ids_ = nullptr;
  std::vector<int32_t> ids_host_{};
  std::map<int, HostExpert> known_{};
};

/// Reduced: the same kernel instances over smaller matrices.
const std::vector<ExpertSize> kFastSizes =
    sized<std::vector<ExpertSize>>({{2560, 640, 40, 10},
                                    {2560, 640, 40, 10, DType::kF8E4M3, DType::kBF16},
                                    {2560, 640, 40, 10, DType::kF8E4M3, DType::kF8E4M3},
                                    {256, 128, 16, 4},
                                    {128, 128, 16, 4},
                                    // slices that ten warps do not divide: 13 and 3, 19 and 7
                                    {832, 192, 12, 4},
                                    {1216, 448, 12, 1},
                                    {1664, 384, 12, 4, DType::kF8E4M3, DType::kF8E4M3},
                                    {128, 64, 12, 10}},
                                   {{512, 128, 16, 4},
                                    {256, 128, 16, 4, DType::kF8E4M3, DType::kBF16},
                                    {256, 128, 16, 4, DType::kF8E4M3, DType::kF8E4M3},
                                    {256, 128, 16, 4},
                                    {128, 128, 16, 4},
                                    // slices that ten warps do not divide: 13 and 3, 19 and 7
                                    {832, 192, 12, 4},
                                    {1216, 448, 12, 1},
                                    {1664, 384, 12, 4, DType::kF8E4M3, DType::kF8E4M3},
                                    {128, 64, 12, 10}});

TEST_F(ExpertsCudaTest, MatchesTheDefinition) {
  for (const ExpertSize& size : kFastSizes) {
    prepare(size, kMostRows);
    for (const ops::Role role : kRoles)
      for (const int rows :
           sized<std::vector<int>>({1, 2, 7, 8, 9, 63, 65, kMostRows}, {1, 9, 65})) {
        SCOPED_TRACE(describe(role, rows));
        const std::vector<float> got = run(0, rows, role);
        for (const int row : {0, rows - 1})
          ASSERT_NO_FATAL_FAILURE(expect_row(got, 0, static_cast<size_t>(row)));
      }
  }
}

TEST_F(ExpertsCudaTest, AllExpertsOfTheReleasedModel) {
  if (reduced()) GTEST_SKIP() << "reduced run: needs the experts of the released model";
  for (const DType routed : {DType::kBF16, DType::kF8E4M3}) {
    prepare({2560, 640, 512, 10, routed, DType::kBF16}, 1100);
    for (const ops::Role role : kRoles) {
      SCOPED_TRACE(describe(role, 1100));
      const std::vector<float> got = run(0, 1100, role);
      for (const size_t row : {size_t{0}, size_t{513}, size_t{1099}})
        ASSERT_NO_FATAL_FAILURE(expect_row(got, 0, row));
    }
  }
}

/// More rows of one expert than share a pass or a tile.
TEST_F(ExpertsCudaTest, CrowdedExperts) {
  const int rows = sized(700, 300);
  for (const ExpertSize& size : kFastSizes) {
    prepare(size, rows, Spread::kFew);
    for (const ops::Role role : kRoles) {
      SCOPED_TRACE(describe(role, rows));
      const std::vector<float> got = run(0, rows, role);
      for (const int row : {0, rows / 2, rows - 1})
        ASSERT_NO_FATAL_FAILURE(expect_row(got, 0, static_cast<size_t>(row)));
    }
  }
}

TEST_F(ExpertsCudaTest, RowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  for (const ExpertSize& size : kFastSizes)
    for (const Spread spread : {Spread::kAll, Spread::kFew}) {
      prepare(size, kMostRows, spread);
      for (const ops::Role role : kRoles) {
        const std::vector<float> all = run(0, kMostRows, role);
        ASSERT_NO_FATAL_FAILURE(expect_same_rows(all, 0, run(0, kMostRows, role), kMostRows));
        for (const int rows : {1, 2, 3, 4, 5, 6, 8, 9, 16, 33, 65, 200})
          for (int first = 0; first + rows <= kMostRows; first += 83) {
            SCOPED_TRACE(describe(role, rows));
            ASSERT_NO_FATAL_FAILURE(expect_same_rows(all, first, run(first, rows, role), rows));
          }
      }
    }
}

/// Prompts of FP8 experts take other kernels once an expert has many rows.
TEST_F(ExpertsCudaTest, WideAndNarrowTilesGiveTheSameBits) {
  constexpr int kManyRows = 700;
  for (const ExpertSize& size : {kFastSizes[1], kFastSizes[2]}) {
    prepare(size, kManyRows);
    const std::vector<float> all = run(0, kManyRows, ops::Role::kPrefill);
    for (const int rows : {33, kMostRows})
      ASSERT_NO_FATAL_FAILURE(expect_same_rows(all, 41, run(41, rows, ops::Role::kPrefill), rows));
  }
}

TEST_F(ExpertsCudaTest, GenericKernelsAgree) {
  for (const ExpertSize& size : kFastSizes) {
    constexpr int kRows = 37;
    prepare(size, kRows);
    for (const ops::Role role : kRoles) {
      SCOPED_TRACE(describe(role, kRows));
      const std::vector<float> want = run(0, kRows, role);
      const ops::ExpertsArgs launch = args(0, kRows, role);
      const cuda::moe::MoeShape shape{.hidden = size.hidden,
                                      .width = size.width,
                                      .shared_width = size.width,
                                      .num_experts = size.experts,
                                      .top_k = size.top_k,
                                      .routed = size.routed,
                                      .shared = size.shared};
      const auto routed = cuda::moe::stack_experts(experts_);
      const auto shared = cuda::moe::stack_experts({&shared_, 1});
      cuda::moe::generic_experts(context(), {launch, shape, routed, shared, 0, kRows});
      ASSERT_TRUE(close(results(launch), want, 3 * kRounding));
    }
  }
}

/// The fused residual update gives the bits of a separate one.
TEST_F(ExpertsCudaTest, CombineFollowsTheExperts) {
  constexpr int kBranches = 4, kRows = 21;
  for (const ExpertSize& size : kFastSizes) {
    prepare(size, kRows);
    const size_t wide = kRows * kBranches * hidden_;
    const std::vector<float> residual = read_bf16(world().bf16(wide, 2), wide);
    const float* inject = world().floats(kRows * kBranches);
    const float* norm = world().floats(kBranches * hidden_, 0.2);
    for (const ops::Role role : kRoles)
      for (const bool normed : {true, false}) {
        SCOPED_TRACE(describe(role, kRows));
        const auto combine_args = [&](void* out) {
          return ops::CombineArgs{.wide = upload_bf16(residual),
                                  .out = out,
                                  .inject = inject,
                                  .next_norm = normed ? norm : nullptr,
                                  .normed = normed ? world().bytes(wide * kBf16) : nullptr,
                                  .eps = kEps,
                                  .rows = kRows,
                                  .branches = kBranches,
                                  .hidden = size.hidden};
        };
        ops::ExpertsArgs fused = args(0, kRows, role), plain = args(0, kRows, role);
        const ops::CombineArgs inside = combine_args(fused.out), after = combine_args(plain.out);
        fused.combine = &inside;
        cuda::launch_experts(context(), fused);
        cuda::launch_experts(context(), plain);
        cuda::launch_combine(context(), after);
        ASSERT_TRUE(same_bits(results(fused), results(plain)));
        ASSERT_TRUE(same_bits(read_bf16(inside.wide, wide), read_bf16(after.wide, wide)));
        if (!normed) continue;
        ASSERT_TRUE(same_bits(read_bf16(inside.normed, wide), read_bf16(after.normed, wide)));
      }
  }
}

/// Launches that follow each other without a pause share the scratch memory.
TEST_F(ExpertsCudaTest, LaunchesInARowDoNotDisturbEachOther) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  prepare(kFastSizes[0], kMostRows);
  const std::vector<float> decode = run(0, kMostRows, ops::Role::kDecode);
  const std::vector<float> prompt = run(0, kMostRows, ops::Role::kPrefill);
  constexpr int kRounds = 12;
  std::vector<std::pair<int, ops::ExpertsArgs>> launches;
  for (int round = 0; round < kRounds; ++round)
    for (const int rows : {1, 4, 70, 8})
      for (const ops::Role role : kRoles) {
        const int first = (round * 13 + rows) % (kMostRows - rows);
        launches.emplace_back(first, args(first, rows, role));
      }
  for (const auto& [first, launch] : launches) cuda::launch_experts(context(), launch);
  for (const auto& [first, launch] : launches)
    ASSERT_NO_FATAL_FAILURE(expect_same_rows(launch.role == ops::Role::kDecode ? decode : prompt,
                                             first, results(launch), launch.rows));
}

TEST_F(ExpertsCudaTest, WaitsForItsInputs) {
  for (const ExpertSize& size : {kFastSizes[0], kFastSizes[1], kFastSizes[5]})
    for (const ops::Role role : kRoles)
      for (const int rows : {1, 20}) {
        prepare(size, rows);
        SCOPED_TRACE(describe(role, rows));
        const auto count = static_cast<size_t>(rows);
        const ops::ExpertsArgs launch = args(0, rows, role);
        cuda::launch_experts(context(), launch);
        const std::vector<float> want = results(launch);
        DelayedProducer producer(context());
        producer.late(x_, count * hidden_ * kBf16);
        producer.late(ids_, count * top_k_ * sizeof(int32_t));
        producer.late(weights_, count * top_k_ * sizeof(float));
        producer.late(shared_logit_, count * sizeof(float));
        producer.untouched(launch.out, count * hidden_ * kBf16);
        EXPECT_TRUE(producer.run([&] { cuda::launch_experts(context(), launch); }));
        ASSERT_NO_FATAL_FAILURE(expect_same_rows(want, 0, results(launch), rows));
      }
}

}  // namespace
}  // namespace tessera::test
