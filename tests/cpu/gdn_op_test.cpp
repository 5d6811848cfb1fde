// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet against the recurrence in double; splits, batches, extreme gates, decode bits.
#include "cpu/state_fixture.h"

namespace tessera::test {
namespace {

using ops::GdnShape;

constexpr GdnShape kSmall{
    .key_heads = 2, .value_heads = 6, .key_dim = 16, .value_dim = 16, .conv_kernel = 4};
constexpr GdnShape kOdd{
    .key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 5, .conv_kernel = 3};
constexpr GdnShape kReleased{
    .key_heads = 1, .value_heads = 3, .key_dim = 128, .value_dim = 128, .conv_kernel = 4};
constexpr GdnShape kScalar{
    .key_heads = 1, .value_heads = 2, .key_dim = 7, .value_dim = 3, .conv_kernel = 2};
constexpr double kTolerance = 1e-5;  // what the chunked form may differ from the recurrence
constexpr double kRoundings = 4;     // convolved rows, normed output, output; chunk products

/// How the gate inputs a and b are drawn.
enum class Gates { kUsual, kNoDecay, kFullDecay, kMixedExtremes };

struct Inputs {
  std::vector<Rows> qkv, z, a, b;
};

struct Result {
  std::vector<Rows> out;
  std::vector<Sequence> sequences;
};

class GdnCase {
 public:
  GdnCase(const GdnShape& shape, std::vector<int> lengths, Gates gates, uint64_t seed)
      : shape_(shape),
        lengths_(std::move(lengths)),
        random_(seed),
        channels_(static_cast<size_t>(shape.channels())),
        heads_(static_cast<size_t>(shape.value_heads)),
        dk_(static_cast<size_t>(shape.key_dim)),
        dv_(static_cast<size_t>(shape.value_dim)),
        conv_(random_.normals(channels_ * static_cast<size_t>(shape.conv_kernel), 0.5)),
        a_log_(random_.normals(heads_)),
        dt_bias_(random_.normals(heads_)),
        norm_(random_.normals(dv_)),
        ring_(make_ring(kGapBytes, channels_ * sizeof(float), shape.conv_kernel - 1)),
        matrix_at_(kGapBytes + ring_.entry_bytes * static_cast<size_t>(ring_.slots) + kGapBytes),
        accepted_at_(matrix_at_ + heads_ * dk_ * dv_ * sizeof(float) + kGapBytes),
        pending_at_(accepted_at_ + sizeof(int32_t) + kGapBytes) {
    for (const int length : lengths_) draw(static_cast<size_t>(length), gates);
  }

  Result run(ops::Ops& backend, const Schedule& schedule, ops::Role role,
             ops::GateActivation gate = ops::GateActivation::kSigmoid) {
    Result result{std::vector<Rows>(lengths_.size()), fresh()};
    for (const Launch& launch : schedule) run_launch(backend, launch, role, gate, result);
    return result;
  }

  /// Decode by verify launches; what each accepts is applied by the next, and by a last one without
  /// rows.
  Result run_verified(ops::Ops& backend, const Schedule& schedule) {
    Result result{std::vector<Rows>(lengths_.size()), fresh()};
    Launch flush;
    for (size_t sequence = 0; sequence < lengths_.size(); ++sequence)
      flush.push_back({sequence, 0});
    for (const Launch& launch : schedule) {
      run_launch(backend, launch, ops::Role::kDecode, ops::GateActivation::kSigmoid, result, true);
      for (const Piece& piece : launch)
        set_accepted(result, piece.sequence, piece.tokens - piece.rejected);
    }
    run_launch(backend, flush, ops::Role::kDecode, ops::GateActivation::kSigmoid, result, true);
    return result;
  }
  void set_accepted(Result& result, size_t sequence, int32_t count) const {
    std::memcpy(result.sequences[sequence].slot.data() + accepted_at_, &count, sizeof count);
  }

  /// The specification's recurrence over whole sequences, state in double.
  Result by_definition(ops::GateActivation gate = ops::GateActivation::kSigmoid) const;

  std::span<const float> matrix(Result& result, size_t sequence) const {
    return {slot_floats(result.sequences[sequence], matrix_at_), heads_ * dk_ * dv_};
  }
  std::span<const float> conv_entry(Result& result, size_t sequence, int64_t token) const {
    auto* entry = ring_.entry(result.sequences[sequence].slot.data(), token);
    return {reinterpret_cast<const float*>(entry), channels_};
  }
  std::span<const float> conv_input(size_t sequence, int64_t token) const {
    return std::span(inputs_.qkv[sequence])
        .subspan(static_cast<size_t>(token) * channels_, channels_);
  }
  const std::vector<int>& lengths() const { return lengths_; }
  Result start() const { return {std::vector<Rows>(lengths_.size()), fresh()}; }
  void run_launch(ops::Ops& backend, const Launch& launch, ops::Role role, ops::GateActivation gate,
                  Result& result, bool verify = false) const;
  const ops::RingRef& ring() const { return ring_; }

 private:
  void draw(size_t tokens, Gates gates) {
    inputs_.qkv.push_back(random_.normals(tokens * channels_));
    inputs_.z.push_back(random_.normals(tokens * heads_ * dv_));
    inputs_.a.push_back(random_.normals(tokens * heads_));
    inputs_.b.push_back(random_.normals(tokens * heads_));
    if (gates == Gates::kUsual) return;
    for (size_t index = 0; index < tokens * heads_; ++index) {
      float &a = inputs_.a.back()[index], &b = inputs_.b.back()[index];
      if (gates == Gates::kNoDecay) a = -200, b = 50;
      if (gates == Gates::kFullDecay) a = 200, b = -50;
      if (gates == Gates::kMixedExtremes) {
        a = random_.below(3) == 0 ? 90.0F : -90.0F;
        b = random_.below(2) == 0 ? 80.0F : -80.0F;
      }
    }
  }
  std::vector<Sequence> fresh() const {
    const size_t pending = ops::GdnPending{shape_}.bytes(kMaxDecodeRows);
    std::vector<Sequence> sequences(lengths_.size());
    for (Sequence& sequence : sequences) {
      sequence.slot.resize(accepted_at_ + sizeof(int32_t), std::byte{0});
      sequence.slot.resize(pending_at_ + pending + kGapBytes, kPoison);
    }
    return sequences;
  }
  void head_by_definition(size_t sequence, size_t head, ops::GateActivation gate,
                          const std::vector<double>& convolved, Result& result) const;
  std::vector<double> convolved(size_t sequence) const;

  GdnShape shape_;
  std::vector<int> lengths_;
  Random random_;
  size_t channels_, heads_, dk_, dv_;
  Values conv_, a_log_, dt_bias_, norm_;
  ops::RingRef ring_;
  size_t matrix_at_, accepted_at_, pending_at_;
  Inputs inputs_{};
};

void GdnCase::run_launch(ops::Ops& backend, const Launch& launch, ops::Role role,
                         ops::GateActivation gate, Result& result, bool verify) const {
  Batch batch(result.sequences, launch, role);
  const Values qkv(batch.gather(inputs_.qkv, channels_));
  const Values z(batch.gather(inputs_.z, heads_ * dv_));
  const Values a(batch.gather(inputs_.a, heads_)), b(batch.gather(inputs_.b, heads_));
  Values out(batch.rows() * heads_ * dv_);
  backend.gdn({.shape = shape_,
               .qkv = qkv.data(),
               .z = z.data(),
               .a = a.data(),
               .b = b.data(),
               .conv_weight = conv_.data(),
               .a_log = a_log_.data(),
               .dt_bias = dt_bias_.data(),
               .norm = norm_.data(),
               .gate = gate,
               .eps = kEps,
               .batch = batch.view(),
               .conv_ring = ring_,
               .matrix_offset = matrix_at_,
               .out = out.data(),
               .verify = verify,
               .pending_offset = pending_at_,
               .pending_rows = kMaxDecodeRows,
               .accepted_offset = accepted_at_});
  EXPECT_TRUE(out.guards_intact());
  batch.scatter(out.all(), heads_ * dv_, result.out);
  batch.advance();
}

std::vector<double> GdnCase::convolved(size_t sequence) const {
  const auto tokens = static_cast<size_t>(lengths_[sequence]);
  const auto taps = static_cast<size_t>(shape_.conv_kernel);
  std::vector<double> out(tokens * channels_);
  for (size_t token = 0; token < tokens; ++token)
    for (size_t channel = 0; channel < channels_; ++channel) {
      double sum = 0;
      for (size_t lag = 0; lag < taps && lag <= token; ++lag)
        sum += double{inputs_.qkv[sequence][(token - lag) * channels_ + channel]} *
               double{conv_.all()[channel * taps + taps - 1 - lag]};
      out[token * channels_ + channel] = silu(sum);
    }
  return out;
}

/// x / sqrt(sum x^2 + 1e-6).
std::vector<double> unit(const double* x, size_t count) {
  double squares = 1e-6;
  for (size_t index = 0; index < count; ++index) squares += x[index] * x[index];
  std::vector<double> out(x, x + count);
  for (double& value : out) value /= std::sqrt(squares);
  return out;
}

void GdnCase::head_by_definition(size_t sequence, size_t head, ops::GateActivation gate,
                                 const std::vector<double>& mixed, Result& result) const {
  const auto key_heads = static_cast<size_t>(shape_.key_heads);
  const size_t key_head = head / (heads_ / key_heads);
  std::vector<double> matrix(dk_ * dv_, 0.0);
  for (size_t token = 0; token < static_cast<size_t>(lengths_[sequence]); ++token) {
    const double* row = &mixed[token * channels_];
    const auto q = unit(row + key_head * dk_, dk_);
    const auto k = unit(row + (key_heads + key_head) * dk_, dk_);
    const double* v = row + 2 * key_heads * dk_ + head * dv_;
    const double a =
        double{inputs_.a[sequence][token * heads_ + head]} + double{dt_bias_.all()[head]};
    const double log_decay =
        -std::exp(double{a_log_.all()[head]}) * (a > 30 ? a : std::log1p(std::exp(a)));
    const double beta = sigmoid(double{inputs_.b[sequence][token * heads_ + head]});
    std::vector<double> o(dv_, 0.0);
    double squares = 0;
    for (size_t value = 0; value < dv_; ++value) {
      double known = 0;
      for (size_t key = 0; key < dk_; ++key) {
        matrix[key * dv_ + value] *= std::exp(log_decay);
        known += matrix[key * dv_ + value] * k[key];
      }
      for (size_t key = 0; key < dk_; ++key) {
        matrix[key * dv_ + value] += k[key] * beta * (v[value] - known);
        o[value] += matrix[key * dv_ + value] * q[key] / std::sqrt(static_cast<double>(dk_));
      }
      squares += o[value] * o[value];
    }
    const double factor = 1 / std::sqrt(squares / static_cast<double>(dv_) + double{kEps});
    for (size_t value = 0; value < dv_; ++value) {
      const size_t at = (token * heads_ + head) * dv_ + value;
      const double z = double{inputs_.z[sequence][at]};
      const double act = gate == ops::GateActivation::kSigmoid ? sigmoid(z) : silu(z);
      result.out[sequence][at] =
          static_cast<float>(o[value] * factor * double{norm_.all()[value]} * act);
    }
  }
  float* stored = slot_floats(result.sequences[sequence], matrix_at_) + head * dk_ * dv_;
  for (size_t cell = 0; cell < matrix.size(); ++cell)
    stored[cell] = static_cast<float>(matrix[cell]);
}

Result GdnCase::by_definition(ops::GateActivation gate) const {
  Result result{std::vector<Rows>(lengths_.size()), fresh()};
  for (size_t sequence = 0; sequence < lengths_.size(); ++sequence) {
    result.out[sequence].resize(static_cast<size_t>(lengths_[sequence]) * heads_ * dv_);
    const auto mixed = convolved(sequence);
    for (size_t head = 0; head < heads_; ++head)
      head_by_definition(sequence, head, gate, mixed, result);
  }
  return result;
}

void expect_same_state(const GdnCase& data, Result& got, Result& want, double tolerance) {
  for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence) {
    ASSERT_TRUE(close(got.out[sequence], want.out[sequence], tolerance)) << sequence;
    ASSERT_TRUE(close(data.matrix(got, sequence), data.matrix(want, sequence), tolerance))
        << "matrix of sequence " << sequence;
    const int64_t end = data.lengths()[sequence];
    for (int64_t token = std::max<int64_t>(0, end - data.ring().reach); token < end; ++token)
      ASSERT_TRUE(
          same_bits(data.conv_entry(got, sequence, token), data.conv_input(sequence, token)))
          << "ring of sequence " << sequence << " token " << token;
  }
}

class GdnOpTest : public OpTest {};

TEST_P(GdnOpTest, MatchesTheRecurrence) {
  for (const GdnShape& shape : {kSmall, kOdd, kScalar})
    for (const auto gate : {ops::GateActivation::kSigmoid, ops::GateActivation::kSilu})
      for (const ops::Role role : kRoles) {
        SCOPED_TRACE(testing::Message() << "key dim " << shape.key_dim << " " << role_name(role));
        GdnCase data(shape, {1, 2, 3, 5, 17, 64, 65, 0, 130}, Gates::kUsual, 21);
        Result want = data.by_definition(gate);
        Result got = data.run(*ops_, at_once(data.lengths()), role, gate);
        ASSERT_NO_FATAL_FAILURE(
            expect_same_state(data, got, want, tolerance(kTolerance, kRoundings)));
      }
}

TEST_P(GdnOpTest, MatchesTheRecurrenceAtTheReleasedHeadSize) {
  for (const ops::Role role : kRoles) {
    GdnCase data(kReleased, {70, 129}, Gates::kUsual, 22);
    Result want = data.by_definition();
    Result got = data.run(*ops_, at_once(data.lengths()), role);
    ASSERT_NO_FATAL_FAILURE(expect_same_state(data, got, want, tolerance(kTolerance, kRoundings)));
  }
}

TEST_P(GdnOpTest, AnySplitGivesTheSameState) {
  for (const GdnShape& shape : {kSmall, kOdd})
    for (const ops::Role role : kRoles) {
      GdnCase data(shape, {131, 64, 7, 1}, Gates::kUsual, 23);
      Result want = data.by_definition();
      for (const int chunk : sized<std::vector<int>>({1, 2, 3, 4, 5, 63, 64, 100}, {5, 64})) {
        SCOPED_TRACE(testing::Message() << "chunk " << chunk << " " << role_name(role));
        Result got = data.run(*ops_, in_chunks(data.lengths(), chunk), role);
        ASSERT_NO_FATAL_FAILURE(
            expect_same_state(data, got, want, tolerance(kTolerance, kRoundings)));
      }
    }
}

TEST_P(GdnOpTest, ExtremeGatesStayExact) {
  for (const Gates gates : {Gates::kNoDecay, Gates::kFullDecay, Gates::kMixedExtremes})
    for (const ops::Role role : kRoles) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(gates) << " " << role_name(role));
      GdnCase data(kSmall, {130, 9}, gates, 24);
      Result want = data.by_definition();
      Result got = data.run(*ops_, in_chunks(data.lengths(), 70), role);
      ASSERT_NO_FATAL_FAILURE(
          expect_same_state(data, got, want, tolerance(kTolerance, kRoundings)));
    }
}

TEST_P(GdnOpTest, PrefillCutOnTheGridHasTheSameBits) {
  GdnCase data(kSmall, {200, 70}, Gates::kUsual, 25);
  Result whole = data.run(*ops_, at_once(data.lengths()), ops::Role::kPrefill);
  for (const int chunk : {ops::kGdnChunk, 2 * ops::kGdnChunk}) {
    Result cut = data.run(*ops_, in_chunks(data.lengths(), chunk), ops::Role::kPrefill);
    for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence) {
      EXPECT_TRUE(same_bits(cut.out[sequence], whole.out[sequence]));
      EXPECT_TRUE(same_bits(data.matrix(cut, sequence), data.matrix(whole, sequence)));
    }
  }
}

TEST_P(GdnOpTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  for (const GdnShape& shape : {kSmall, kOdd, kReleased}) {
    GdnCase data(shape, {13, 6, 9}, Gates::kUsual, 26);
    Result alone = data.run(*ops_, one_by_one(data.lengths(), 1), ops::Role::kDecode);
    for (int rows = 1; rows <= kMaxDecodeRows; ++rows)
      for (const bool batched : {false, true}) {
        const Schedule schedule =
            batched ? in_chunks(data.lengths(), rows) : one_by_one(data.lengths(), rows);
        Result got = data.run(*ops_, schedule, ops::Role::kDecode);
        for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence) {
          ASSERT_TRUE(same_bits(got.out[sequence], alone.out[sequence])) << rows << batched;
          ASSERT_TRUE(same_bits(data.matrix(got, sequence), data.matrix(alone, sequence)));
        }
      }
  }
}

/// A rejected draft is free only when every row of a decode launch stays in the ring.
TEST_P(GdnOpTest, DecodeLaunchKeepsAllItsRowsInTheRing) {
  GdnCase data(kSmall, {20}, Gates::kUsual, 27);
  Result got = data.run(*ops_, in_chunks(data.lengths(), kMaxDraft + 1), ops::Role::kDecode);
  const int64_t end = 20, last_launch = end % (kMaxDraft + 1);
  for (int64_t token = end - last_launch - data.ring().reach; token < end; ++token)
    EXPECT_TRUE(same_bits(data.conv_entry(got, 0, token), data.conv_input(0, token))) << token;
}

TEST_P(GdnOpTest, EmptySpansLeaveTheStateAlone) {
  for (const ops::Role role : kRoles) {
    GdnCase data(kOdd, {6, 4}, Gates::kUsual, 28);
    Result want = data.run(*ops_, {{{0, 6}}, {{1, 4}}}, role);
    Result got = data.run(*ops_, {{}, {{1, 0}, {0, 6}, {1, 0}}, {{0, 0}}, {{0, 0}, {1, 4}}}, role);
    for (size_t sequence = 0; sequence < 2; ++sequence) {
      EXPECT_TRUE(same_bits(got.out[sequence], want.out[sequence]));
      EXPECT_EQ(got.sequences[sequence].slot, want.sequences[sequence].slot);
    }
  }
}

/// Random numbers of drafted and of rejected rows, until every sequence is whole.
Schedule drafting(const std::vector<int>& lengths, uint64_t seed) {
  Random random(seed);
  Schedule schedule;
  std::vector<int> left = lengths;
  while (*std::max_element(left.begin(), left.end()) > 0) {
    Launch launch;
    for (size_t sequence = 0; sequence < left.size(); ++sequence) {
      if (left[sequence] == 0) continue;
      const int tokens = std::min(left[sequence], 1 + random.below(kMaxDecodeRows));
      const int rejected = random.below(tokens);
      launch.push_back({sequence, tokens, rejected});
      left[sequence] -= tokens - rejected;
    }
    schedule.push_back(launch);
  }
  return schedule;
}

TEST_P(GdnOpTest, ReplayedRowsHaveTheBitsOfPlainDecoding) {
  for (const GdnShape& shape : {kSmall, kOdd, kReleased, kScalar})
    for (const uint64_t seed : sized<std::vector<uint64_t>>({1, 2, 3}, {1})) {
      SCOPED_TRACE(testing::Message() << "key dim " << shape.key_dim << " seed " << seed);
      GdnCase data(shape, {23, 6, 1, 17}, Gates::kUsual, 29);
      Result want = data.run(*ops_, one_by_one(data.lengths(), 1), ops::Role::kDecode);
      Result got = data.run_verified(*ops_, drafting(data.lengths(), seed));
      for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence) {
        ASSERT_TRUE(same_bits(got.out[sequence], want.out[sequence])) << sequence;
        ASSERT_TRUE(same_bits(data.matrix(got, sequence), data.matrix(want, sequence))) << sequence;
      }
    }
}

TEST_P(GdnOpTest, VerifyAppliesNothingBeforeItIsAccepted) {
  for (const int32_t accepted : {0, -1}) {
    GdnCase data(kSmall, {11}, Gates::kUsual, 30);
    const auto decode = [&](int tokens, int rejected, bool verify, Result& result) {
      data.run_launch(*ops_, {{0, tokens, rejected}}, ops::Role::kDecode,
                      ops::GateActivation::kSigmoid, result, verify);
    };
    Result want = data.start(), got = data.start();
    decode(5, 0, false, want);
    decode(5, 0, false, got);
    for (int launch = 0; launch < 2; ++launch) {
      decode(6, 6, true, got);
      data.set_accepted(got, 0, accepted);
    }
    EXPECT_TRUE(same_bits(data.matrix(got, 0), data.matrix(want, 0)));
  }
}

/// A corrupt count must not send the replay beyond the rows that the slot holds.
TEST_P(GdnOpTest, AcceptedCountsAreCut) {
  GdnCase data(kOdd, {kMaxDecodeRows}, Gates::kUsual, 31);
  Result want = data.run(*ops_, one_by_one(data.lengths(), 1), ops::Role::kDecode);
  Result got = data.start();
  const auto verify = [&](int tokens) {
    data.run_launch(*ops_, {{0, tokens}}, ops::Role::kDecode, ops::GateActivation::kSigmoid, got,
                    true);
  };
  verify(kMaxDecodeRows);
  data.set_accepted(got, 0, std::numeric_limits<int32_t>::max());
  verify(0);
  EXPECT_TRUE(same_bits(data.matrix(got, 0), data.matrix(want, 0)));
}

INSTANTIATE_TEST_SUITE_P(Cpu, GdnOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
