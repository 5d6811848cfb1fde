// SPDX-License-Identifier: Apache-2.0
// Addresses of the n-gram table: published vectors of the real constants, and the reference run.
#include "model/ngram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <filesystem>

#include "io/mapped_file.h"
#include "io/safetensors.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

constexpr int32_t kEos = 248044;
constexpr int kVocab = 248320;

PleConfig released() {
  PleConfig ple;
  ple.layers = {1};
  ple.embed_dim = 2560;
  ple.ngram_size = 3;
  ple.heads_per_ngram = 8;
  ple.vocab_base = 20000000;
  ple.vocab_multiple = 128;
  ple.split_parts = 128;
  ple.hash_eos = kEos;
  return ple;
}

std::vector<int64_t> rows_of(const NgramHash& hash, const std::vector<int32_t>& history) {
  std::vector<int64_t> rows(static_cast<size_t>(hash.heads()));
  ngram_rows(hash, history, rows.data());
  return rows;
}

/// Rows of the last token with as much history as the window holds.
std::vector<int64_t> rows_at(const NgramHash& hash, const std::vector<int32_t>& ids, size_t index) {
  const size_t first =
      index + 1 - std::min<size_t>(index + 1, static_cast<size_t>(hash.ngram_size));
  return rows_of(hash, {ids.begin() + static_cast<ptrdiff_t>(first),
                        ids.begin() + static_cast<ptrdiff_t>(index) + 1});
}

TEST(Ngram, ReleasedConstants) {
  const NgramHash hash = make_ngram_hash(released(), kVocab, 0);
  EXPECT_THAT(hash.multipliers, ElementsAre(23703573157769, 20109073645365, 8052911324071));
  EXPECT_THAT(hash.primes, ElementsAre(20000003, 20000023, 20000033, 20000047, 20000059, 20000063,
                                       20000069, 20000077, 20000081, 20000093, 20000107, 20000147,
                                       20000153, 20000159, 20000161, 20000171));
  EXPECT_EQ(hash.offsets.front(), 0);
  EXPECT_EQ(hash.offsets.back() + hash.primes.back(), 320001446);
  EXPECT_EQ(hash.num_rows, 320001536);
}

TEST(Ngram, ReleasedVectors) {
  const NgramHash hash = make_ngram_hash(released(), kVocab, 0);
  const std::vector<int64_t> first = {
      4064167,   21428206,  43851727,  63435096,  89826284,  106088217, 121229381, 156147803,
      175176707, 188463481, 216828809, 228933352, 248448227, 269188956, 283041664, 314347972};
  EXPECT_THAT(rows_of(hash, {kEos, kEos, 42}), ElementsAreArray(first));
  EXPECT_THAT(rows_of(hash, {42}), ElementsAreArray(first));  // start of a sequence
  EXPECT_THAT(rows_of(hash, {2, 3, 4}),
              ElementsAre(11040574, 24501192, 51231614, 76654297, 92730965, 111423247, 139461694,
                          156846261, 165574070, 192841407, 207986682, 225545153, 249179168,
                          272813213, 280691234, 300081218));
  EXPECT_THAT(rows_of(hash, {17, kEos, 23}),
              ElementsAre(4861206, 32865727, 40609066, 71639785, 96413981, 118803519, 133135981,
                          140309215, 172111016, 183212116, 209026945, 233841255, 252262165,
                          271908821, 285396814, 314879367));
}

/// A public engine paired the multipliers with the lags the wrong way round; its own oracle agreed.
TEST(Ngram, MultiplierZeroBelongsToTheCurrentToken) {
  NgramHash hash{.multipliers = {3, 5, 7},
                 .primes = {101, 103},
                 .offsets = {0, 101},
                 .num_rows = 204,
                 .ngram_size = 3,
                 .heads_per_ngram = 1,
                 .eos = 99};
  const std::vector<int32_t> ids = {7, 9, 11};
  EXPECT_THAT(rows_at(hash, ids, 0), ElementsAre(1, 124));
  EXPECT_THAT(rows_at(hash, ids, 1), ElementsAre(56, 136));
  EXPECT_THAT(rows_at(hash, ids, 2), ElementsAre(12, 162));
}

TEST(Ngram, AnEndOfTextHidesWhatStandsBeforeIt) {
  const NgramHash hash = make_ngram_hash(released(), kVocab, 0);
  EXPECT_EQ(rows_of(hash, {17, kEos, 23}), rows_of(hash, {18, kEos, 23}));
  EXPECT_EQ(rows_of(hash, {17, kEos, 23}), rows_of(hash, {kEos, 23}));
  EXPECT_EQ(rows_of(hash, {kEos, 5, 23}), rows_of(hash, {5, 23}));
  EXPECT_NE(rows_of(hash, {17, 5, kEos}), rows_of(hash, {18, 5, kEos}));  // it sees its own past
}

TEST(Ngram, ImagePlaceholdersCountAsTheirIds) {
  const NgramHash hash = make_ngram_hash(released(), kVocab, 0);
  constexpr int32_t kPad = 248056;
  const std::vector<int32_t> ids = {5, kPad, kPad, kPad, kPad, 6};
  EXPECT_EQ(rows_at(hash, ids, 3), rows_at(hash, ids, 4));  // constant inside the image
  EXPECT_NE(rows_at(hash, ids, 2), rows_at(hash, ids, 3));
  EXPECT_EQ(rows_at(hash, ids, 5), rows_of(hash, {kPad, kPad, 6}));
}

TEST(Ngram, LaterPleLayersContinueThePrimesAndDrawOtherMultipliers) {
  PleConfig ple = released();
  ple.vocab_base = 97;
  ple.heads_per_ngram = 2;
  const NgramHash first = make_ngram_hash(ple, 512, 0);
  const NgramHash second = make_ngram_hash(ple, 512, 1);
  EXPECT_THAT(first.primes, ElementsAre(97, 101, 103, 107));
  EXPECT_THAT(second.primes, ElementsAre(109, 113, 127, 131));
  EXPECT_NE(first.multipliers, second.multipliers);
}

TEST(Ngram, RowsStayInTheTableAndWrapLikeInt64) {
  EXPECT_TRUE(rc::check([] {
    PleConfig ple = released();
    ple.vocab_base = *rc::gen::inRange<int64_t>(2, 5000);
    ple.heads_per_ngram = *rc::gen::inRange(1, 5);
    ple.ngram_size = *rc::gen::inRange(2, 6);
    NgramHash hash = make_ngram_hash(ple, kVocab, *rc::gen::inRange(0, 3));
    for (int64_t& multiplier : hash.multipliers) multiplier = *rc::gen::arbitrary<int64_t>();
    const auto history = *rc::gen::container<std::vector<int32_t>>(
        static_cast<size_t>(*rc::gen::inRange(1, hash.ngram_size + 1)),
        rc::gen::inRange<int32_t>(0, kVocab));
    const std::vector<int64_t> rows = rows_of(hash, history);
    for (size_t head = 0; head < rows.size(); ++head) {
      RC_ASSERT(rows[head] >= hash.offsets[head]);
      RC_ASSERT(rows[head] < hash.offsets[head] + hash.primes[head]);
    }
  }));
}

std::vector<int64_t> integers(const TensorMap& tensors, const std::string& name) {
  const TensorRef& tensor = tensors.at(name);
  const auto* values = reinterpret_cast<const int64_t*>(tensor.data);
  return {values, values + tensor.elements()};
}

class NgramGolden : public testing::TestWithParam<const char*> {};

TEST_P(NgramGolden, EqualsTheReferenceRun) {
  const std::string dir = GetParam();
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is not here";
  const ModelConfig config = load_model_config(dir).value();
  const auto file = MappedFile::open(dir + "/golden.safetensors").value();
  const TensorMap golden = parse_safetensors(file->bytes(), dir).value();
  const TensorRef& input = golden.at("text.input_ids");
  const auto* first = reinterpret_cast<const int32_t*>(input.data);
  const std::vector<int32_t> ids(first, first + input.elements());
  ASSERT_FALSE(config.ple.layers.empty());
  for (const int layer : config.ple.layers) {
    const std::string suffix = std::to_string(layer);
    const NgramHash hash = make_ngram_hash(config.ple, config.vocab_size, config.ple_index(layer));
    EXPECT_EQ(hash.multipliers, integers(golden, "ngram_multipliers" + suffix));
    EXPECT_EQ(hash.primes, integers(golden, "ngram_head_sizes" + suffix));
    std::vector<int64_t> rows;
    for (size_t index = 0; index < ids.size(); ++index) {
      const std::vector<int64_t> here = rows_at(hash, ids, index);
      rows.insert(rows.end(), here.begin(), here.end());
    }
    EXPECT_EQ(rows, integers(golden, "ngram_ids" + suffix));
  }
}

INSTANTIATE_TEST_SUITE_P(Ngram, NgramGolden,
                         testing::Values("models/nano", "../shared/golden/nano",
                                         "../shared/golden/micro"));

}  // namespace
}  // namespace tessera
