// SPDX-License-Identifier: Apache-2.0
// N-gram addresses and the end of a launch: any split of the same tokens gives the same addresses,
// because what a launch leaves behind is what the next one reads.
#include <algorithm>

#include "cpu/state_fixture.h"

namespace tessera::test {
namespace {

constexpr int kWidth = 37;  // of the branches together
constexpr int32_t kEos = 3;
constexpr int32_t kVocab = 9;  // small, so that texts end often
constexpr int kSizes[] = {2, 3, 5};

NgramHash make_hash(int ngram_size) {
  constexpr int64_t kPrimes[] = {1000003, 1000033, 1000037, 1000039,
                                 1000081, 1000099, 1000117, 1000121};
  NgramHash hash{.ngram_size = ngram_size, .heads_per_ngram = 2, .eos = kEos};
  for (int lag = 0; lag < ngram_size; ++lag)
    hash.multipliers.push_back(0x0123456789ABCDEF * (2 * lag + 1) + 2);
  int64_t offset = 0;
  for (int head = 0; head < (ngram_size - 1) * hash.heads_per_ngram; ++head) {
    hash.primes.push_back(kPrimes[head]);
    hash.offsets.push_back(offset);
    offset += kPrimes[head];
  }
  hash.num_rows = offset;
  return hash;
}

class BookkeepingCase {
 public:
  BookkeepingCase(int ngram_size, std::vector<int> lengths, uint64_t seed)
      : hash_(make_hash(ngram_size)),
        lengths_(std::move(lengths)),
        ring_(make_ring(kGapBytes + 4, sizeof(int64_t), ngram_size - 1)),
        wide_at_(ring_.offset + ring_.entry_bytes * static_cast<size_t>(ring_.slots) + kGapBytes) {
    Random random(seed);
    for (const int length : lengths_) {
      const auto tokens = static_cast<size_t>(length);
      ids_.emplace_back();
      for (size_t token = 0; token < tokens; ++token) ids_.back().push_back(random.below(kVocab));
      wide_.push_back(random.normals(tokens * kWidth));
    }
  }

  /// Runs the schedule and checks every launch.
  void check(ops::Ops& backend, const Schedule& schedule, ops::Role role) {
    sequences_.assign(lengths_.size(), {});
    for (Sequence& sequence : sequences_)
      sequence.slot.assign(wide_at_ + kWidth * sizeof(float) + kGapBytes, kPoison);
    for (const Launch& launch : schedule) {
      Batch batch(sequences_, launch, role);
      ASSERT_NO_FATAL_FAILURE(check_ids(backend, launch, batch));
      ASSERT_NO_FATAL_FAILURE(check_finish(backend, launch, batch));
      batch.advance();
    }
  }
  const std::vector<int>& lengths() const { return lengths_; }

 private:
  void check_ids(ops::Ops& backend, const Launch& launch, const Batch& batch) {
    const auto heads = static_cast<size_t>(hash_.heads());
    const std::vector<int32_t> ids = batch.gather(ids_, 1);
    std::vector<int64_t> rows(batch.rows() * heads, -1), want(heads);
    backend.ngram_ids({.ids = ids.data(),
                       .batch = batch.view(),
                       .token_ring = ring_,
                       .hash = &hash_,
                       .table_rows = rows.data()});
    const int64_t* got = rows.data();
    for (const Piece& piece : launch) {
      const std::vector<int32_t>& text = ids_[piece.sequence];
      const auto begin = sequences_[piece.sequence].absorbed;
      for (int token = 0; token < piece.tokens; ++token, got += heads) {
        if (token >= piece.tokens - piece.rejected) continue;  // other ids, nobody reads the rows
        const int64_t end = begin + token + 1;
        const int64_t first = std::max<int64_t>(0, end - hash_.ngram_size);
        ngram_rows(
            hash_,
            std::span(text).subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)),
            want.data());
        for (size_t head = 0; head < heads; ++head)
          ASSERT_EQ(got[head], want[head]) << "token " << end - 1 << " head " << head;
      }
    }
  }

  void check_finish(ops::Ops& backend, const Launch& launch, const Batch& batch) {
    const std::vector<int32_t> ids = batch.gather(ids_, 1);
    const Values wide(batch.gather(wide_, kWidth));
    std::vector<int32_t> logit_rows;
    for (size_t row = 0; row < batch.rows(); row += 2)
      logit_rows.push_back(static_cast<int32_t>(row));
    Values selected(logit_rows.size() * kWidth);
    backend.finish({.ids = ids.data(),
                    .wide = wide.data(),
                    .width = kWidth,
                    .batch = batch.view(),
                    .token_ring = ring_,
                    .wide_offset = wide_at_,
                    .logit_rows = logit_rows.data(),
                    .num_logit_rows = static_cast<int>(logit_rows.size()),
                    .selected = selected.data()});
    ASSERT_TRUE(selected.guards_intact());
    for (size_t entry = 0; entry < logit_rows.size(); ++entry)
      ASSERT_TRUE(same_bits(selected.row(entry, kWidth), wide.row(2 * entry, kWidth)));
    size_t row = 0;
    for (const Piece& piece : launch) {
      row += static_cast<size_t>(piece.tokens);
      if (piece.tokens == 0) continue;
      const float* stored = slot_floats(sequences_[piece.sequence], wide_at_);
      ASSERT_TRUE(same_bits({stored, kWidth}, wide.row(row - 1, kWidth)));
    }
  }

  NgramHash hash_;
  std::vector<int> lengths_;
  ops::RingRef ring_;
  size_t wide_at_;
  std::vector<std::vector<int32_t>> ids_{};
  std::vector<Rows> wide_{};
  std::vector<Sequence> sequences_{};
};

class BookkeepingOpTest : public OpTest {};

TEST_P(BookkeepingOpTest, AnySplitGivesTheAddressesOfTheDefinition) {
  for (const int size : kSizes)
    for (const ops::Role role : kRoles) {
      // Reduced: every launch costs time, and no kernel here has shared memory.
      BookkeepingCase data(size, sized<std::vector<int>>({1, 2, 65, 0, 17, 130}, {1, 2, 65, 0, 17}),
                           101);
      for (const int chunk : sized<std::vector<int>>({1, 2, 3, 4, 6, 7, 63, 64, 200}, {7, 64})) {
        SCOPED_TRACE(testing::Message()
                     << size << "-grams, chunk " << chunk << " " << role_name(role));
        ASSERT_NO_FATAL_FAILURE(data.check(*ops_, in_chunks(data.lengths(), chunk), role));
        ASSERT_NO_FATAL_FAILURE(data.check(*ops_, one_by_one(data.lengths(), chunk), role));
      }
    }
}

TEST_P(BookkeepingOpTest, RejectedRowsLeaveNoTrace) {
  for (const int size : kSizes)
    for (int rejected = 1; rejected <= kMaxDraft; ++rejected) {
      BookkeepingCase data(size, {40}, 102);
      Schedule schedule{{{0, 9}}};
      for (int round = 0; round < 4; ++round) schedule.push_back({{0, kMaxDraft + 1, rejected}});
      ASSERT_NO_FATAL_FAILURE(data.check(*ops_, schedule, ops::Role::kDecode)) << rejected;
    }
}

TEST_P(BookkeepingOpTest, EmptySpansLeaveTheStateAlone) {
  BookkeepingCase data(3, {6, 4}, 103);
  for (const ops::Role role : kRoles)
    ASSERT_NO_FATAL_FAILURE(data.check(
        *ops_, {{}, {{0, 4}, {1, 0}}, {{1, 0}, {0, 2}, {1, 0}}, {{0, 0}, {1, 4}}}, role));
}

INSTANTIATE_TEST_SUITE_P(Cpu, BookkeepingOpTest, testing::ValuesIn(backends()), backend_name);

}  // namespace
}  // namespace tessera::test
