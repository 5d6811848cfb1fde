// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet at the released sizes: decode, verify and prompt kernels against the CPU backend,
// bits of rows in every launch, launches cut on the grid, late inputs, the generic kernels.
#include <algorithm>
#include <cstring>

#include "core/arena.h"
#include "cpu/cpu_ops.h"
#include "cpu/state_fixture.h"
#include "cuda/cuda_fixture.h"
#include "cuda/cuda_kernels.h"
#include "cuda/delayed_producer.h"
#include "cuda/gdn/gdn_plan.h"

namespace tessera::test {
namespace {

using ops::Role;

constexpr ops::GdnShape kShape = bench::kGdn;
constexpr size_t kChannels = kShape.channels(), kHeads = kShape.value_heads;
constexpr size_t kValues = kHeads * kShape.value_dim;
constexpr size_t kCells = kValues * kShape.key_dim;
constexpr double kBf16 = 0x1p-8;
constexpr double kDecodeOut = 2 * kBf16;   // normed and gated values are rounded
constexpr double kDecodeMatrix = 1e-5;     // nothing is rounded on the way
constexpr double kPrefillOut = 4 * kBf16;  // and q, k, v, the state and products of the chunk
constexpr double kPrefillMatrix = 3 * kBf16;

/// What sequences bring; tokens of all launches.
struct Inputs {
  std::vector<Rows> qkv{}, z{}, a{}, b{};
};

/// Where the parts of a slot lie.
struct Layout {
  ops::RingRef ring{};
  size_t matrix = 0;
  size_t accepted = 0;
  size_t pending = 0;
  size_t bytes = 0;

  /// `skew` breaks the alignment of the matrix, which only the generic kernel takes.
  explicit Layout(size_t activation_bytes, size_t skew = 0) {
    ring = make_ring(0, kChannels * activation_bytes, kShape.conv_kernel - 1);
    matrix = ring.entry_bytes * static_cast<size_t>(ring.slots) + skew;
    accepted = align_up(matrix + kCells * sizeof(float));
    pending = align_up(accepted + sizeof(int32_t));
    bytes = pending + ops::GdnPending{kShape}.bytes(kMaxDecodeRows);
  }
};

/// Sequences on the way: slots in device memory (or on the host) and what they have absorbed.
struct State {
  Layout layout;
  std::vector<Sequence> sequences{};  // host slots; on the device only `absorbed` counts
  std::vector<std::byte*> slots{};
};

struct Outcome {
  std::vector<Rows> out{};     // accepted rows of each sequence
  std::vector<Rows> matrix{};  // of each sequence
};

class GdnCudaTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    conv_ = random_.normals(kChannels * static_cast<size_t>(kShape.conv_kernel), 0.5);
    a_log_ = random_.normals(kHeads);
    dt_bias_ = random_.normals(kHeads);
    norm_ = random_.normals(static_cast<size_t>(kShape.value_dim));
    device_.conv_weight = world().copy(conv_);
    device_.a_log = world().copy(a_log_);
    device_.dt_bias = world().copy(dt_bias_);
    device_.norm = world().copy(norm_);
  }

  /// Tokens for every sequence. Extreme: decays of nothing and of everything, updates likewise.
  void draw(const std::vector<int>& lengths, bool extreme = false) {
    inputs_ = {};
    for (const int length : lengths) {
      const auto tokens = static_cast<size_t>(length);
      inputs_.qkv.push_back(random_.normals(tokens * kChannels));
      inputs_.z.push_back(random_.normals(tokens * kValues));
      inputs_.a.push_back(random_.normals(tokens * kHeads));
      inputs_.b.push_back(random_.normals(tokens * kHeads));
      if (!extreme) continue;
      for (size_t index = 0; index < tokens * kHeads; ++index) {
        inputs_.a.back()[index] = random_.below(3) == 0 ? 90.0F : -90.0F;
        inputs_.b.back()[index] = random_.below(2) == 0 ? 80.0F : -80.0F;
      }
    }
  }

  State start(size_t skew = 0) {
    State state{.layout = Layout(sizeof(uint16_t), skew)};
    state.sequences.resize(inputs_.qkv.size());
    for (size_t sequence = 0; sequence < inputs_.qkv.size(); ++sequence) {
      state.slots.push_back(world().bytes(state.layout.bytes));
      const std::vector<std::byte> zeros(state.layout.bytes);
      world().copy_in(state.slots.back(), zeros.data(), zeros.size());
    }
    return state;
  }

  /// Arguments with device copies of the launch's rows; `batch` must outlive them.
  ops::GdnArgs upload(const State& state, const Batch& batch) {
    ops::GdnArgs args = device_;
    args.shape = kShape;
    args.eps = kEps;
    args.qkv = upload_bf16(batch.gather(inputs_.qkv, kChannels));
    args.z = upload_bf16(batch.gather(inputs_.z, kValues));
    args.a = world().copy(batch.gather(inputs_.a, kHeads));
    args.b = world().copy(batch.gather(inputs_.b, kHeads));
    args.batch = batch.view();
    args.conv_ring = state.layout.ring;
    args.matrix_offset = state.layout.matrix;
    args.pending_offset = state.layout.pending;
    args.pending_rows = kMaxDecodeRows;
    args.accepted_offset = state.layout.accepted;
    args.out = world().bytes(batch.rows() * kValues * sizeof(uint16_t));
    return args;
  }
  /// Spans of the launch point to device slots.
  Batch batch_of(State& state, const Launch& launch, Role role) {
    Batch batch(state.sequences, launch, role);
    spans_.assign(batch.view().spans.begin(), batch.view().spans.end());
    for (size_t index = 0; index < launch.size(); ++index)
      spans_[index].slot = state.slots[launch[index].sequence];
    return batch;
  }
  ops::GdnArgs begin(State& state, const Batch& batch) {
    ops::GdnArgs args = upload(state, batch);
    args.batch.spans = spans_;
    world().ops().begin({.batch = args.batch});
    return args;
  }

  void run(State& state, const Launch& launch, Role role, bool verify, Outcome& outcome) {
    Batch batch = batch_of(state, launch, role);
    ops::GdnArgs args = begin(state, batch);
    args.verify = verify;
    cuda::launch_gdn(context(), args);
    synchronize();
    const std::vector<float> out = read_bf16(args.out, batch.rows() * kValues);
    batch.scatter(std::span(out), kValues, outcome.out);
    batch.advance();
    for (const Piece& piece : launch) {
      const int32_t accepted = piece.tokens - piece.rejected;
      if (verify)
        world().copy_in(state.slots[piece.sequence] + state.layout.accepted, &accepted,
                        sizeof accepted);
    }
  }

  Outcome run(const Schedule& schedule, Role role, bool verify = false, size_t skew = 0) {
    State state = start(skew);
    Outcome outcome{.out = std::vector<Rows>(inputs_.qkv.size())};
    for (const Launch& launch : schedule) run(state, launch, role, verify, outcome);
    Launch flush;
    for (size_t sequence = 0; sequence < inputs_.qkv.size(); ++sequence)
      flush.push_back({sequence});
    if (verify) run(state, flush, role, verify, outcome);
    for (const std::byte* slot : state.slots)
      outcome.matrix.push_back(
          read_floats(reinterpret_cast<const float*>(slot + state.layout.matrix), kCells));
    return outcome;
  }

  /// The fast CPU backend.
  Outcome on_cpu(const Schedule& schedule, Role role) {
    const Layout layout(sizeof(float));
    const auto cpu = cpu::make_fast_ops();
    std::vector<Sequence> sequences(inputs_.qkv.size());
    for (Sequence& sequence : sequences) sequence.slot.resize(layout.bytes);
    Outcome outcome{.out = std::vector<Rows>(sequences.size())};
    for (const Launch& launch : schedule) {
      Batch batch(sequences, launch, role);
      const auto qkv = batch.gather(inputs_.qkv, kChannels), z = batch.gather(inputs_.z, kValues);
      const auto a = batch.gather(inputs_.a, kHeads), b = batch.gather(inputs_.b, kHeads);
      std::vector<float> out(batch.rows() * kValues);
      ops::GdnArgs args;
      args.shape = kShape;
      args.qkv = qkv.data(), args.z = z.data(), args.a = a.data(), args.b = b.data();
      args.conv_weight = conv_.data(), args.a_log = a_log_.data();
      args.dt_bias = dt_bias_.data(), args.norm = norm_.data();
      args.eps = kEps;
      args.batch = batch.view();
      args.conv_ring = layout.ring;
      args.matrix_offset = layout.matrix;
      args.out = out.data();
      cpu->gdn(args);
      batch.scatter(std::span<const float>(out), kValues, outcome.out);
      batch.advance();
    }
    for (Sequence& sequence : sequences) {
      const float* matrix = slot_floats(sequence, layout.matrix);
      outcome.matrix.emplace_back(matrix, matrix + kCells);
    }
    return outcome;
  }

  ops::GdnArgs device_{};  // constants
  std::vector<float> conv_{}, a_log_{}, dt_bias_{}, norm_{};
  Inputs inputs_{};
  std::vector<ops::RowSpan> spans_{};
  Random random_{71};
};

void expect_close(const Outcome& got, const Outcome& want, double out, double matrix) {
  for (size_t sequence = 0; sequence < want.out.size(); ++sequence) {
    EXPECT_TRUE(close(got.out[sequence], want.out[sequence], out)) << "sequence " << sequence;
    EXPECT_TRUE(close(got.matrix[sequence], want.matrix[sequence], matrix))
        << "sequence " << sequence;
  }
}

void expect_same(const Outcome& got, const Outcome& want) {
  for (size_t sequence = 0; sequence < want.out.size(); ++sequence) {
    ASSERT_TRUE(same_bits(got.out[sequence], want.out[sequence])) << "sequence " << sequence;
    ASSERT_TRUE(same_bits(got.matrix[sequence], want.matrix[sequence])) << "sequence " << sequence;
  }
}

TEST_F(GdnCudaTest, DecodeMatchesTheCpu) {
  using Lengths = std::vector<int>;
  const std::vector<Lengths> full{{13}, {6, 1, 12, 30}}, few{{13}, {2, 4, 3}};
  for (const Lengths& lengths : sized(full, few)) {
    draw(lengths);
    for (const int rows : sized<std::vector<int>>({1, 4, 6, 30}, {1, 30})) {
      SCOPED_TRACE(testing::Message() << lengths.size() << " sequences, " << rows << " rows");
      const Schedule schedule = in_chunks(lengths, rows);
      expect_close(run(schedule, Role::kDecode), on_cpu(schedule, Role::kDecode), kDecodeOut,
                   kDecodeMatrix);
    }
  }
}

/// Sequences that end one after the other: launches of all of them take every plan, and the first
/// ones have more blocks than run at once.
const std::vector<int> kEveryPlan = sized<std::vector<int>>({17, 6, 9, 12, 3, 13}, {2, 4, 3});

TEST_F(GdnCudaTest, LaunchesOfAFewSequencesTakeEveryPlan) {
  const auto plan = [&](int sequences) {
    return cuda::plan_gdn_decode(sequences, kShape.value_heads, context().gpu());
  };
  EXPECT_EQ(plan(1).blocks_per_head, 2);
  EXPECT_EQ(plan(2).blocks_per_head, 1);
  EXPECT_TRUE(plan(2).alone);
  EXPECT_FALSE(plan(3).alone);
}

TEST_F(GdnCudaTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  draw(kEveryPlan);
  const Outcome alone = run(one_by_one(kEveryPlan, 1), Role::kDecode);
  for (int rows = 1; rows <= kMaxDecodeRows; ++rows) {
    SCOPED_TRACE(rows);
    ASSERT_NO_FATAL_FAILURE(expect_same(run(one_by_one(kEveryPlan, rows), Role::kDecode), alone));
    ASSERT_NO_FATAL_FAILURE(expect_same(run(in_chunks(kEveryPlan, rows), Role::kDecode), alone));
  }
}

TEST_F(GdnCudaTest, ReplayedRowsHaveTheBitsOfPlainDecoding) {
  const std::vector<int>& lengths = kEveryPlan;
  draw(lengths);
  const Outcome plain = run(one_by_one(lengths, 1), Role::kDecode);
  for (const bool batched : {false, true}) {
    Schedule schedule;
    std::vector<int> left = lengths;
    while (*std::max_element(left.begin(), left.end()) > 0) {
      Launch launch;
      for (size_t sequence = 0; sequence < left.size(); ++sequence) {
        if (left[sequence] == 0 || (!batched && !launch.empty())) continue;
        const int tokens = std::min(left[sequence], 1 + random_.below(kMaxDecodeRows));
        launch.push_back({sequence, tokens, random_.below(tokens)});
        left[sequence] -= launch.back().tokens - launch.back().rejected;
      }
      schedule.push_back(launch);
    }
    ASSERT_NO_FATAL_FAILURE(expect_same(run(schedule, Role::kDecode, true), plain)) << batched;
  }
}

/// The last launch takes several windows of scratch memory and starts off the grid. Reduced: one
/// window, but more than twice the chunks that the ring of the scan holds.
TEST_F(GdnCudaTest, PrefillMatchesTheCpu) {
  const auto lengths = sized<std::vector<int>>({101, 128, 63, 65, 2400}, {3, 460});
  draw(lengths);
  const Schedule schedule = sized<Schedule>(
      {{{0, 1}, {1, 64}, {2, 0}, {3, 65}, {4, 100}}, {{0, 100}, {1, 64}, {2, 63}}, {{4, 2300}}},
      {{{0, 1}, {1, 4}}, {{0, 2}, {1, 456}}});
  const Outcome got = run(schedule, Role::kPrefill);
  expect_close(got, on_cpu(schedule, Role::kPrefill), kPrefillOut, kPrefillMatrix);
  if (reduced()) return;
  ASSERT_NO_FATAL_FAILURE(expect_same(run(schedule, Role::kPrefill), got));
}

TEST_F(GdnCudaTest, PrefillKeepsExtremeGatesApart) {
  const auto lengths = sized<std::vector<int>>({200, 70}, {70});
  draw(lengths, true);
  const Schedule schedule = in_chunks(lengths, 130);
  expect_close(run(schedule, Role::kPrefill), on_cpu(schedule, Role::kPrefill), kPrefillOut,
               kPrefillMatrix);
}

TEST_F(GdnCudaTest, PrefillCutOnTheGridHasTheSameBits) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  const std::vector<int> lengths{500, 192};
  draw(lengths);
  const Outcome whole = run(at_once(lengths), Role::kPrefill);
  for (const int chunk : {ops::kGdnChunk, 3 * ops::kGdnChunk})
    ASSERT_NO_FATAL_FAILURE(expect_same(run(in_chunks(lengths, chunk), Role::kPrefill), whole));
}

TEST_F(GdnCudaTest, GenericAgreesWithFast) {
  constexpr size_t kSkew = sizeof(float);
  const auto lengths = sized<std::vector<int>>({20, 70}, {3, 9});
  draw(lengths);
  const Schedule decode = in_chunks(lengths, kMaxDecodeRows), prompt = at_once(lengths);
  expect_close(run(decode, Role::kDecode, false, kSkew), run(decode, Role::kDecode), 2 * kBf16,
               kDecodeMatrix);
  expect_close(run(prompt, Role::kPrefill, false, kSkew), run(prompt, Role::kPrefill), kPrefillOut,
               kPrefillMatrix);
  expect_same(run(one_by_one(lengths, 1), Role::kDecode, false, kSkew),
              run(decode, Role::kDecode, false, kSkew));
}

struct LateCase {
  const char* name;
  Role role;
  bool verify;
  std::vector<int> tokens;
};

TEST_F(GdnCudaTest, WaitsForItsInputs) {
  const std::vector<LateCase> cases{{"decode, one sequence", Role::kDecode, false, {4}},
                                    {"decode, three", Role::kDecode, false, {4, 1, 6}},
                                    {"verify, one", Role::kDecode, true, {4}},
                                    {"verify, three", Role::kDecode, true, {5, 6, 2}},
                                    {"prefill", Role::kPrefill, false, {100, 65}}};
  for (const LateCase& data : cases) {
    SCOPED_TRACE(data.name);
    std::vector<int> lengths;
    Launch first, second;
    for (size_t sequence = 0; sequence < data.tokens.size(); ++sequence) {
      lengths.push_back(6 + data.tokens[sequence]);
      first.push_back({sequence, 6});
      second.push_back({sequence, data.tokens[sequence]});
    }
    draw(lengths);
    State state = start();
    Outcome outcome{.out = std::vector<Rows>(lengths.size())};
    run(state, first, Role::kDecode, data.verify, outcome);
    std::vector<std::vector<std::byte>> before;
    for (const std::byte* slot : state.slots) before.push_back(read(slot, state.layout.bytes));
    Batch batch = batch_of(state, second, data.role);
    ops::GdnArgs args = begin(state, batch);
    args.verify = data.verify;
    const size_t out_count = batch.rows() * kValues;
    cuda::launch_gdn(context(), args);
    synchronize();
    const auto want = read_bf16(args.out, out_count);
    std::vector<std::vector<std::byte>> after;
    for (const std::byte* slot : state.slots) after.push_back(read(slot, state.layout.bytes));

    for (size_t sequence = 0; sequence < state.slots.size(); ++sequence)
      world().copy_in(state.slots[sequence], before[sequence].data(), state.layout.bytes);
    DelayedProducer producer(context());
    const auto late = [&](const void* data_late, size_t bytes) {
      producer.late(const_cast<void*>(data_late), bytes);
    };
    late(args.qkv, batch.rows() * kChannels * sizeof(uint16_t));
    late(args.z, out_count * sizeof(uint16_t));
    late(args.a, batch.rows() * kHeads * sizeof(float));
    late(args.b, batch.rows() * kHeads * sizeof(float));
    for (std::byte* slot : state.slots) producer.late(slot, state.layout.bytes);
    producer.untouched(args.out, out_count * sizeof(uint16_t));
    EXPECT_TRUE(producer.run([&] { cuda::launch_gdn(context(), args); }));
    EXPECT_TRUE(same_bits(read_bf16(args.out, out_count), want));
    for (size_t sequence = 0; sequence < state.slots.size(); ++sequence)
      EXPECT_EQ(read(state.slots[sequence], state.layout.bytes), after[sequence]) << sequence;
  }
}

}  // namespace
}  // namespace tessera::test
