// SPDX-License-Identifier: Apache-2.0
// Runs a screened split pattern with PCRE2: UTF, Unicode properties, JIT, bounded steps.
#include "text/tokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <tessera/log.h>
#include <algorithm>
#include <array>
#include "text/unicode.h"

namespace tessera::text {
namespace {

// Steps of one match. Real patterns walk a run of white space back once, so the limit grows with
// the text; a pattern that needs more is not linear.
constexpr uint64_t kMatchSteps = 1'000'000;
constexpr uint64_t kMatchStepsPerByte = 16;
constexpr uint32_t kHeapLimitKib = 256 * 1024;
constexpr size_t kMaxErrorText = 256;

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct DataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct CompileContextFree {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

PCRE2_SPTR as_units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

tl::unexpected<Error> compile_error(int code, size_t offset, const std::string& where) {
  std::array<PCRE2_UCHAR, kMaxErrorText> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return fail({.code = Errc::kCorruptFile,
               .what = "split pattern does not compile",
               .where = where + ", byte " + std::to_string(offset),
               .found = reinterpret_cast<const char*>(text.data())});
}

/// What one thread needs to run a pattern over one text.
struct MatchState {
  explicit MatchState(size_t text_bytes);
  std::unique_ptr<pcre2_match_data, DataFree> data;
  std::unique_ptr<pcre2_match_context, MatchContextFree> limits;
};

MatchState::MatchState(size_t text_bytes)
    : data(pcre2_match_data_create(1, nullptr)), limits(pcre2_match_context_create(nullptr)) {
  const uint64_t steps = kMatchSteps + kMatchStepsPerByte * text_bytes;
  pcre2_set_match_limit(limits.get(), static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
  pcre2_set_heap_limit(limits.get(), kHeapLimitKib);
}

}  // namespace

struct SplitRegex::Compiled {
  std::unique_ptr<pcre2_code, CodeFree> code;

  /// End and start of the first match at or after `from`; false when there is none.
  bool find(std::string_view subject, size_t from, MatchState& state, bool& over_limit) const;
};

bool SplitRegex::Compiled::find(std::string_view subject, size_t from, MatchState& state,
                                bool& over_limit) const {
  const auto run = [&](uint32_t options) {
    return pcre2_match(code.get(), as_units(subject), subject.size(), from,
                       options | PCRE2_NO_UTF_CHECK, state.data.get(), state.limits.get());
  };
  int status = run(0);
  if (status == PCRE2_ERROR_JIT_STACKLIMIT) status = run(PCRE2_NO_JIT);
  over_limit = status < 0 && status != PCRE2_ERROR_NOMATCH;
  return status > 0;
}

SplitRegex::SplitRegex(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;
SplitRegex::~SplitRegex() = default;

Result<SplitRegex> SplitRegex::compile(std::string_view pattern, const std::string& where) {
  const auto screened = screen_pattern(pattern, where);
  if (!screened) return fail(screened.error());

  const std::unique_ptr<pcre2_compile_context, CompileContextFree> context(
      pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code.reset(pcre2_compile(as_units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                     &error, &offset, context.get()));
  if (!compiled->code) return compile_error(error, offset, where);
  uint32_t may_match_nothing = 0;
  pcre2_pattern_info(compiled->code.get(), PCRE2_INFO_MATCHEMPTY, &may_match_nothing);
  if (may_match_nothing != 0)
    return fail({.code = Errc::kUnsupported,
                 .what = "not implemented",
                 .where = where,
                 .found = "a split pattern that matches the empty text"});
  pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);  // without it: slower, same result
  return SplitRegex(std::move(compiled));
}

void SplitRegex::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const std::string replaced = needs_stand_ins(text) ? with_stand_ins(text) : std::string();
  const std::string_view subject = replaced.empty() ? text : std::string_view(replaced);
  MatchState state(subject.size());
  const auto emit = [&](size_t from, size_t to) {
    if (from < to) pieces.push_back(text.substr(from, to - from));
  };
  size_t at = 0;
  while (at < subject.size()) {
    bool over_limit = false;
    if (!compiled_->find(subject, at, state, over_limit)) {
      if (over_limit) log_message(LogLevel::kWarning, "split pattern gave up, text kept whole");
      break;
    }
    const size_t* span = pcre2_get_ovector_pointer(state.data.get());
    if (span[1] <= at) break;  // a look-around can move the start; never go backwards
    emit(at, span[0]);
    emit(span[0], span[1]);
    at = span[1];
  }
  emit(at, text.size());
}

}  // namespace tessera::text
