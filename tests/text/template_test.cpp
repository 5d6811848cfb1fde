// SPDX-License-Identifier: Apache-2.0
// The template engine where jinja2 is no oracle: limits, refusals, positions of errors.
#include "text/jinja/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace tessera::jinja {
namespace {

using testing::HasSubstr;

Result<std::string> render(const std::string& source, const Limits& limits = {},
                           const Surroundings& surroundings = {}) {
  const auto program = Template::parse(source, "t", limits);
  if (!program) return fail(program.error());
  Run run(limits);
  return program->render(run, Dict{}, surroundings);
}

Error error_of(const std::string& source, const Limits& limits = {}) {
  const auto result = render(source, limits);
  EXPECT_FALSE(result) << source;
  return result ? Error{} : result.error();
}

TEST(Template, ErrorsNameLineAndColumn) {
  EXPECT_EQ(error_of("a\nb {{ x.y }}").where, "t:2:7");
  EXPECT_EQ(error_of("{% if x %}\n\n").where, "t:2:1");
  EXPECT_EQ(error_of("é{{ 1 + }}").where, "t:1:9");
  EXPECT_EQ(error_of("\r\n\r\n{{ nope() }}").where, "t:3:8");
  EXPECT_EQ(error_of("{% for i in [1] %}\n  {{ i | abs }}{{ i / 0 }}\n{% endfor %}").where,
            "t:2:21");
}

TEST(Template, RaisedTextIsTheWholeMessage) {
  const Error error = error_of("\n{{ raise_exception('unknown role: ' ~ 5) }}");
  EXPECT_EQ(error.code, Errc::kInvalidArgument);
  EXPECT_EQ(error.what, "unknown role: 5");
  EXPECT_EQ(error.where, "t:2:19");
}

TEST(Template, SyntaxErrorsAreCorruptFiles) {
  for (const char* source :
       {"{{", "{{ a", "{% if %}", "{% endif %}", "{# open", "{{ 'a }}", "{#", "{% nope %}",
        "{{ 1 2 }}", "{% raw %}", "{{ a ? b }}", "{{ '\\xZZ' }}"})
    EXPECT_EQ(error_of(source).code, Errc::kCorruptFile) << source;
  EXPECT_EQ(error_of("a\xFF").code, Errc::kCorruptFile);
}

TEST(Template, RefusesByName) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"{% include 'x' %}", "include"},
      {"{% call f() %}{% endcall %}", "call"},
      {"{% for i in [1] recursive %}{% endfor %}", "recursive loops"},
      {"{{ 1 | groupby('a') }}", "groupby"},
      {"{{ 1 is escaped }}", "escaped"},
      {"{{ '%s' % 1 }}", "'%'"},
      {"{{ 'x'.format(1) }}", "str.format()"},
      {"{{ joiner(',') }}", "joiner"},
      {"{{ 9223372036854775807 + 1 }}", "64 bits"},
      {"{{ 9223372036854775808 }}", "64 bits"},
      {"{{ (-9223372036854775807 - 1) // -1 }}", "64 bits"},
      {"{{ -(-9223372036854775807 - 1) }}", "64 bits"},
      {"{{ '\\N{BULLET}' }}", "\\N"},
      {"{{ range }}", "function"},
      {"{% for i in [1] %}{{ loop.cycle(1) }}{% endfor %}", "loop.cycle"},
      {"{{ strftime_now('%c') }}", "%c"},
  };
  for (const auto& [source, name] : cases) {
    const Error error = error_of(source);
    EXPECT_EQ(error.code, Errc::kUnsupported) << source;
    EXPECT_THAT(error.what, HasSubstr(name)) << source;
  }
}

TEST(Template, SmallestIntegerHasNoTraps) {
  EXPECT_EQ(render("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
  EXPECT_EQ(render("{{ -9223372036854775807 - 1 }}"), "-9223372036854775808");
}

// A remainder that overflows on the way may wrap to the right value: `./dev san asan` sees it.
TEST(Template, ExtremeIntegersStayWithin64Bits) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"{{ -9223372036854775807 % 4611686018427387905 }}", "3"},
      {"{{ 9223372036854775807 % -4611686018427387905 }}", "-3"},
      {"{{ (-9223372036854775807 - 1) % 9223372036854775807 }}", "9223372036854775806"},
      {"{{ 9223372036854775807 % (-9223372036854775807 - 1) }}", "-1"},
      {"{{ 'ab'.ljust(-9223372036854775807 - 1) }}", "ab"},
      {"{{ 'ab'.rjust(-9223372036854775807 - 1) }}", "ab"},
      {"{{ '-ab'.zfill(-9223372036854775807 - 1) }}", "-ab"},
      {"{{ 'abc'[-9223372036854775807 - 1:9223372036854775807] }}", "abc"},
      {"{{ 'abc'[::-9223372036854775807 - 1] }}", "c"},
  };
  for (const auto& [source, text] : cases) EXPECT_EQ(render(source), text) << source;
}

TEST(Template, EndlessWorkEndsInAnError) {
  const std::vector<std::string> sources = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{{ 'x' * 99999999999 }}",
      "{{ [1] * 99999999999 }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set n = namespace(s='xx') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor "
      "%}",
      "{% set n = namespace(s=[]) %}{% for i in range(999) %}{% set n.s = [n.s] %}{% endfor %}",
      "{% set n = namespace(s=[]) %}{% for i in range(90) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
      "{{ n.s }}",
      "{% set n = namespace(a=[], b=[]) %}{% for i in range(90) %}{% set n.a = [n.a, n.a] %}"
      "{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
      "{% set n = namespace(s=()) %}{% for i in range(90) %}{% set n.s = (n.s, n.s) %}{% endfor %}"
      "{{ n.s in {} }}",
      "{% set n = namespace(s=[]) %}{% for i in range(90) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
      "{{ n.s | tojson }}",
      "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
      "{{ 'a' | indent(99999999999, true) }}",
      "{{ 'a' | replace('', 'x' * 10000000) | replace('x', 'y' * 10000000) }}",
      "{{ 'a'.ljust(99999999999) }}",
      "{% set s = ' ' * 9000000 %}{% for i in range(9999) %}{{ s.strip() }}{% endfor %}",
      "{% set s = 'a' * 9000000 %}{% for i in range(9999) %}{{ s.strip(s) }}{% endfor %}",
      "{% set s = 'a' * 9000000 %}{% for i in range(9999) %}{{ s is upper }}{% endfor %}",
      "{% set s = 'a' * 9000000 %}{% for i in range(9999) %}{{ s | length }}{% endfor %}",
      "{% set s = 'a' * 9000000 %}{% for i in range(9999) %}{{ 'b' in s }}{% endfor %}",
      "{% set s = 'a' * 9000000 %}{% for i in range(9999) %}{{ s == 'a' * 9000000 }}{% endfor %}",
      "{{ ('a,' * 9000000).split(',') }}",
      "{{ (' a' * 9000000).split() }}",
      "{{ ('\\n' * 9000000).splitlines() }}",
      "{{ ('a' * 60000000)[0] }}",
      "{{ ('a' * 60000000)[::-1] }}",
      "{{ range(1000) | list | tojson(indent='x' * 10000000) }}",
      "{{ range(1000) | list | tojson(separators=('x' * 10000000, '')) }}",
      "{{ range(1000) | join('x' * 10000000) }}",
      "{{ [1] | tojson(indent=99999999999) }}",
      "{% for i in range(9999) %}{% for j in range(9999) %}{{ 'x' * 100 }}{% endfor %}{% endfor %}",
  };
  Limits limits;
  limits.steps = 1'000'000;
  limits.created_bytes = uint64_t{1} << 26;
  for (const std::string& source : sources) {
    const Error error = error_of(source, limits);
    EXPECT_EQ(error.code, Errc::kUnsupported) << source << "\n" << error.message();
  }
}

TEST(Template, DeepNestingEndsInAnError) {
  constexpr int kDeep = 20000;
  const auto repeated = [](const std::string& text) {
    std::string out;
    for (int copy = 0; copy < kDeep; ++copy) out += text;
    return out;
  };
  for (const std::string& source :
       {"{{ " + repeated("("), "{{ " + repeated("[") + "1" + repeated("]") + " }}",
        "{{ " + repeated("not ") + "1 }}", "{{ " + repeated("-") + "1 }}",
        "{{ 1" + repeated(" + 1") + " }}", "{{ a" + repeated(".b") + " }}",
        "{{ a" + repeated("|trim") + " }}", "{{ a" + repeated("()") + " }}",
        "{{ a" + repeated("[1:]") + " }}", "{{ 1" + repeated(" if 1 else 1") + " }}",
        repeated("{% if 1 %}"), repeated("{% for i in [1] %}"),
        "{{ a" + repeated(" is b is c") + " }}", "{{ 1" + repeated(" or 1") + " }}",
        "{{ f(a=" + repeated("f(a=") + "1" + repeated(")") + ") }}",
        "{% set " + repeated("(") + "a" + repeated(")") + " = 1 %}"})
    EXPECT_FALSE(render(source)) << source.substr(0, 40);
}

TEST(Template, LimitsOfSizeHold) {
  Limits limits;
  limits.source_bytes = 10;
  EXPECT_EQ(error_of(std::string(11, 'x'), limits).code, Errc::kUnsupported);
  EXPECT_EQ(render(std::string(10, 'x'), limits), std::string(10, 'x'));
  limits = {};
  limits.output_bytes = 5;
  EXPECT_EQ(render("12345", limits), "12345");
  EXPECT_EQ(error_of("123456", limits).code, Errc::kUnsupported);
}

TEST(Template, ClockIsInjected) {
  const Surroundings noon{.clock = [] { return std::time_t{1'000'000'000}; }};
  const auto year = render("{{ strftime_now('%Y') }}{{ strftime_now('') }}", {}, noon);
  EXPECT_EQ(year, "2001");
}

TEST(Template, RandomBytesNeverCrash) {
  const auto pieces = rc::gen::elementOf(std::vector<std::string>{
      "{{", "}}",  "{%", "%}",   "{#",  "#}",   "-",      "+",      " ",     "\n",
      "if", "for", "i",  "in",   "set", "else", "endif",  "endfor", "macro", "(",
      ")",  "[",   "]",  "'",    "\"",  "|",    "trim",   ".",      ",",     "=",
      "1",  "x",   "é",  "\xFF", "\\",  "raw",  "endraw", "not",    "is",    "defined",
      ":",  "~",   "*",  "**",   "%",   "loop"});
  rc::check([&] {
    const auto parts = *rc::gen::container<std::vector<std::string>>(pieces);
    std::string source;
    for (const std::string& part : parts) source += part;
    const auto result = render(source);
    RC_ASSERT(result || !result.error().what.empty());
  });
}

}  // namespace
}  // namespace tessera::jinja
