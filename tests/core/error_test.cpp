// SPDX-License-Identifier: Apache-2.0
// The text of errors: every field in its place, empty ones left out.
#include <gtest/gtest.h>
#include <tessera/error.h>
#include <set>
#include <string>

namespace tessera {
namespace {

TEST(ErrorMessage, HoldsEveryField) {
  const Error error{.code = Errc::kMismatch,
                    .what = "wrong shape",
                    .where = "a.b",
                    .expected = "[2]",
                    .found = "[3]",
                    .hint = "convert it"};
  EXPECT_EQ(error.message(), "wrong shape: a.b: expected [2], found [3] (convert it)");
}

TEST(ErrorMessage, LeavesEmptyFieldsOut) {
  EXPECT_EQ((Error{.what = "bad"}.message()), "bad");
  EXPECT_EQ((Error{.what = "bad", .found = "x"}.message()), "bad: found x");
  EXPECT_EQ((Error{.what = "bad", .expected = "y"}.message()), "bad: expected y");
  EXPECT_EQ((Error{.what = "bad", .where = "here", .hint = "why"}.message()), "bad: here (why)");
}

TEST(ErrorCode, NamesAreDistinct) {
  std::set<std::string> names;
  const int last = static_cast<int>(Errc::kInternal);
  for (int code = 0; code <= last; ++code) names.insert(errc_name(static_cast<Errc>(code)));
  EXPECT_EQ(names.size(), static_cast<size_t>(last) + 1);
  EXPECT_EQ(names.count("unknown"), 0U);
  EXPECT_EQ(std::string(errc_name(Errc::kCorruptFile)), "corrupt_file");
}

TEST(ResultValue, CarriesTheError) {
  const Result<int> result = fail({.code = Errc::kNotFound, .what = "gone"});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, Errc::kNotFound);
}

}  // namespace
}  // namespace tessera
