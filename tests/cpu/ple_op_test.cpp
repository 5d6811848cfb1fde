// SPDX-License-Identifier: Apache-2.0
// N-gram gather and PLE mix by definition: table types, shards, dilated taps, splits, decode bits.
#include "cpu/state_fixture.h"

namespace tessera::test {
namespace {

struct Shape {
  int branches;
  int hidden;
  int kernel;
  int dilation;
};
constexpr Shape kShapes[] = {{4, 16, 4, 3}, {2, 13, 3, 2}, {1, 1, 2, 1}, {4, 65, 4, 3}};

constexpr double kRoundings = 4;  // gated value, conv input, delta, branches

struct Result {
  std::vector<Rows> wide, delta;
  std::vector<Sequence> sequences;
};

class PleCase {
 public:
  PleCase(const Shape& shape, std::vector<int> lengths, uint64_t seed)
      : shape_(shape),
        lengths_(std::move(lengths)),
        random_(seed),
        hidden_(static_cast<size_t>(shape.hidden)),
        width_(static_cast<size_t>(shape.branches) * hidden_),
        norm_key_(random_.normals(width_, 0.3)),
        norm_query_(random_.normals(width_, 0.3)),
        norm_conv_(random_.normals(width_, 0.3)),
        conv_(random_.normals(width_ * static_cast<size_t>(shape.kernel), 0.5)),
        ring_(make_ring(kGapBytes, width_ * sizeof(float), (shape.kernel - 1) * shape.dilation)) {
    for (const int length : lengths_) {
      const auto tokens = static_cast<size_t>(length);
      key_.push_back(random_.normals(tokens * width_, 3));
      wide_.push_back(random_.normals(tokens * width_));
      value_.push_back(random_.normals(tokens * hidden_));
      if (tokens > 1) std::fill_n(key_.back().begin(), hidden_, 0.0F);  // score exactly 0
    }
  }

  Result run(ops::Ops& backend, const Schedule& schedule, ops::Role role, bool want_delta = true) {
    Result result{std::vector<Rows>(lengths_.size()), std::vector<Rows>(lengths_.size()),
                  std::vector<Sequence>(lengths_.size())};
    for (Sequence& sequence : result.sequences)
      sequence.slot.resize(2 * kGapBytes + ring_.entry_bytes * static_cast<size_t>(ring_.slots));
    for (const Launch& launch : schedule) run_launch(backend, launch, role, want_delta, result);
    return result;
  }

  Result by_definition() const;
  const std::vector<int>& lengths() const { return lengths_; }
  double tolerance() const { return 8 * sum_tolerance(static_cast<double>(width_)); }

 private:
  void run_launch(ops::Ops& backend, const Launch& launch, ops::Role role, bool want_delta,
                  Result& result) const;
  std::vector<double> gated_value(size_t sequence, size_t token) const;
  std::vector<double> grouped(std::span<const double> x, std::span<const float> weight) const {
    std::vector<double> out;
    for (size_t start = 0; start < width_; start += hidden_) {
      const auto part = rms_by_definition(x.subspan(start, hidden_), weight.subspan(start, hidden_),
                                          double{kEps});
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }
  std::vector<double> row_of(const Rows& rows, size_t token) const {
    return to_double(std::span(rows).subspan(token * width_, width_));
  }

  Shape shape_;
  std::vector<int> lengths_;
  Random random_;
  size_t hidden_, width_;
  Values norm_key_, norm_query_, norm_conv_, conv_;
  ops::RingRef ring_;
  std::vector<Rows> key_{}, wide_{}, value_{};
};

void PleCase::run_launch(ops::Ops& backend, const Launch& launch, ops::Role role, bool want_delta,
                         Result& result) const {
  Batch batch(result.sequences, launch, role);
  const Values key(batch.gather(key_, width_)), value(batch.gather(value_, hidden_));
  Values wide(batch.gather(wide_, width_)), delta(batch.rows() * width_);
  backend.ple_mix({.key = key.data(),
                   .value = value.data(),
                   .norm_key = norm_key_.data(),
                   .norm_query = norm_query_.data(),
                   .norm_conv = norm_conv_.data(),
                   .conv_weight = conv_.data(),
                   .wide = wide.data(),
                   .delta = want_delta ? delta.data() : nullptr,
                   .batch = batch.view(),
                   .conv_ring = ring_,
                   .branches = shape_.branches,
                   .hidden = shape_.hidden,
                   .conv_kernel = shape_.kernel,
                   .dilation = shape_.dilation,
                   .eps = kEps});
  EXPECT_TRUE(wide.guards_intact());
  EXPECT_TRUE(delta.guards_intact());
  batch.scatter(wide.all(), width_, result.wide);
  batch.scatter(delta.all(), width_, result.delta);
  batch.advance();
}

std::vector<double> PleCase::gated_value(size_t sequence, size_t token) const {
  const auto key = grouped(row_of(key_[sequence], token), norm_key_.all());
  const auto query = grouped(row_of(wide_[sequence], token), norm_query_.all());
  std::vector<double> out(width_);
  for (size_t start = 0; start < width_; start += hidden_) {
    double score = 0;
    for (size_t col = start; col < start + hidden_; ++col) score += key[col] * query[col];
    score /= std::sqrt(static_cast<double>(hidden_));
    const double sign = score > 0 ? 1 : score < 0 ? -1 : 0;
    const double gate = sigmoid(sign * std::sqrt(std::max(std::abs(score), 1e-6)));
    for (size_t col = 0; col < hidden_; ++col)
      out[start + col] = gate * double{value_[sequence][token * hidden_ + col]};
  }
  return out;
}

Result PleCase::by_definition() const {
  Result result{std::vector<Rows>(lengths_.size()), std::vector<Rows>(lengths_.size()), {}};
  for (size_t sequence = 0; sequence < lengths_.size(); ++sequence) {
    std::vector<std::vector<double>> inputs;
    for (size_t token = 0; token < static_cast<size_t>(lengths_[sequence]); ++token) {
      const auto value = gated_value(sequence, token);
      inputs.push_back(grouped(value, norm_conv_.all()));
      const auto kernel = static_cast<size_t>(shape_.kernel);
      for (size_t col = 0; col < width_; ++col) {
        double sum = 0;
        for (size_t back = 0; back < kernel; ++back) {
          const size_t lag = back * static_cast<size_t>(shape_.dilation);
          if (lag <= token)
            sum += inputs[token - lag][col] * double{conv_.all()[col * kernel + kernel - 1 - back]};
        }
        const double delta = value[col] + silu(sum);
        result.delta[sequence].push_back(static_cast<float>(delta));
        result.wide[sequence].push_back(
            static_cast<float>(double{wide_[sequence][token * width_ + col]} + delta));
      }
    }
  }
  return result;
}

class PleOpTest : public OpTest {};

TEST_P(PleOpTest, MatchesTheDefinitionForAnySplit) {
  for (const Shape& shape : kShapes)
    for (const ops::Role role : kRoles) {
      PleCase data(shape, {1, 2, 65, 0, 17, 40}, 31);
      const Result want = data.by_definition();
      for (const int chunk :
           sized<std::vector<int>>({1, 2, 3, 4, 5, 9, 10, 63, 64, 100}, {4, 10, 64})) {
        SCOPED_TRACE(testing::Message()
                     << "hidden " << shape.hidden << " chunk " << chunk << " " << role_name(role));
        const Result got = data.run(*ops_, in_chunks(data.lengths(), chunk), role);
        for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence) {
          const double limit = tolerance(data.tolerance(), kRoundings);
          ASSERT_TRUE(close(got.delta[sequence], want.delta[sequence], limit, 1));
          ASSERT_TRUE(close(got.wide[sequence], want.wide[sequence], limit, 1));
        }
      }
    }
}

TEST_P(PleOpTest, DeltaIsOptional) {
  PleCase data(kShapes[0], {5}, 32);
  const Result with = data.run(*ops_, at_once(data.lengths()), ops::Role::kDecode);
  const Result without = data.run(*ops_, at_once(data.lengths()), ops::Role::kDecode, false);
  EXPECT_TRUE(same_bits(with.wide[0], without.wide[0]));
}

TEST_P(PleOpTest, DecodeRowHasTheSameBitsInEveryLaunch) {
  if (reduced()) GTEST_SKIP() << kSameKernels;
  for (const Shape& shape : kShapes) {
    PleCase data(shape, {25, 6, 14}, 33);
    const Result alone = data.run(*ops_, one_by_one(data.lengths(), 1), ops::Role::kDecode);
    for (int rows = 1; rows <= kMaxDecodeRows; ++rows)
      for (const Schedule& schedule :
           {one_by_one(data.lengths(), rows), in_chunks(data.lengths(), rows)}) {
        const Result got = data.run(*ops_, schedule, ops::Role::kDecode);
        for (size_t sequence = 0; sequence < data.lengths().size(); ++sequence)
          ASSERT_TRUE(same_bits(got.wide[sequence], alone.wide[sequence])) << rows;
      }
  }
}

/// Rows written by a rejected draft must not be seen when their positions come again.
TEST_P(PleOpTest, RejectedRowsLeaveNoTrace) {
  PleCase data(kShapes[0], {30}, 34);
  const Result plain = data.run(*ops_, one_by_one(data.lengths(), 1), ops::Role::kDecode);
  for (int rejected = 1; rejected <= kMaxDraft; ++rejected) {
    Schedule schedule{{{0, 12}}};
    for (int round = 0; round < 3; ++round) schedule.push_back({{0, kMaxDraft + 1, rejected}});
    const Result got = data.run(*ops_, schedule, ops::Role::kDecode);
    ASSERT_TRUE(same_bits(got.wide[0], std::span(plain.wide[0]).first(got.wide[0].size())))
        << rejected;
  }
}

TEST_P(PleOpTest, GathersRowsOfEveryTableType) {
  Random random(35);
  constexpr int kTableRows = 50, kRowsPerShard = 16, kHeads = 6;
  for (const DType dtype : kWeightTypes)
    for (const int width : {1, 5, 16, 160})
      for (const int rows : sized<std::vector<int>>({0, 1, 3, 65}, {0, 65})) {
        const Weight storage(random, dtype, kTableRows, width);
        ops::NgramTable table{.dtype = dtype,
                              .scale = 0.37F,
                              .rows_per_shard = kRowsPerShard,
                              .num_rows = kTableRows,
                              .row_dim = width};
        const auto* base = static_cast<const std::byte*>(storage.view().data);
        for (int row = 0; row < kTableRows; row += kRowsPerShard)
          table.shards.push_back(base + static_cast<size_t>(row) * storage.view().row_bytes());
        std::vector<int64_t> ids;
        for (int entry = 0; entry < rows * kHeads; ++entry) ids.push_back(random.below(kTableRows));
        if (rows > 0) ids[0] = kTableRows - 1, ids[1] = 0, ids[2] = kRowsPerShard;
        Values out(ids.size() * static_cast<size_t>(width));
        ops_->ngram_gather({.table_rows = ids.data(),
                            .table = &table,
                            .out = out.data(),
                            .rows = rows,
                            .heads = kHeads});
        ASSERT_TRUE(out.guards_intact());
        const bool fp8 = dtype == DType::kF8E4M3;
        for (size_t at = 0; at < out.size(); ++at) {
          const auto cols = static_cast<size_t>(width);
          const auto id = static_cast<size_t>(ids[at / cols]);
          const auto code = std::to_integer<int>(base[id * cols + at % cols]);
          const float want =
              fp8 ? static_cast<float>(f8e4m3_by_definition(code) * double{table.scale})
                  : static_cast<float>(storage.at(id, at % cols));
          ASSERT_EQ(double{out.all()[at]}, stored(double{want}))
              << dtype_name(dtype) << " width " << width;
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Cpu, PleOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
