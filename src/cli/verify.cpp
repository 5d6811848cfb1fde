// SPDX-License-Identifier: Apache-2.0
// `tessera verify`: the engine against reference outputs, as a table of values and bounds.
#include <tessera/json_writer.h>
#include <tessera/verify.h>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cli/command.h"
#include "cli/session.h"
#include "cli/terminal.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

/// The reference file that lies next to the weights.
Result<std::string> reference_beside(const std::string& model_dir) {
  std::error_code ignored;
  for (const char* const name : {"golden.safetensors", "reference.json"}) {
    const fs::path path = fs::path(model_dir) / name;
    if (fs::exists(path, ignored)) return path.string();
  }
  return fail({.code = Errc::kNotFound,
               .what = "no reference outputs",
               .where = model_dir,
               .expected = "golden.safetensors or reference.json",
               .hint = "name the file with --reference FILE"});
}

Result<VerifyReport> compare(const EngineOptions& options, const std::string& reference) {
  if (reference.ends_with(".safetensors")) return verify_golden(options, reference);
  if (reference.ends_with(".json")) return verify_reference(options, reference);
  return fail({.code = Errc::kInvalidArgument,
               .what = "unknown kind of reference",
               .where = reference,
               .expected = "a .safetensors or .json file"});
}

void print_row(const VerifyRow& row) {
  std::printf("  %-4s  %-28s ",
              !row.judged  ? "note"
              : row.passed ? "ok"
                           : "FAIL",
              row.name.c_str());
  if (row.is_count) {
    std::printf("%11.0f %11.0f", row.value, row.bound);
  } else {
    std::printf("%11.2e %11.2e", row.value, row.bound);
  }
  std::printf("%s%s\n", row.note.empty() ? "" : "  ", row.note.c_str());
}

void print_text(const VerifyReport& report) {
  std::printf("reference   %s\nbounds      %s\n\n", report.source.c_str(), report.bounds.c_str());
  std::printf("        %-28s %11s %11s\n", "what", "value", "bound");
  for (const VerifyRow& row : report.rows) print_row(row);
  for (const std::string& name : report.skipped) std::printf("  skip  %s\n", name.c_str());
  std::printf("\n%s\n", report.passed() ? "PASSED" : "FAILED");
}

void print_as_json(const VerifyReport& report) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().key("passed").boolean(report.passed());
  json.key("source").string(report.source).key("bounds").string(report.bounds);
  json.key("rows").begin_array();
  for (const VerifyRow& row : report.rows) {
    json.begin_object().key("name").string(row.name);
    json.key("value").real(row.value).key("bound").real(row.bound);
    json.key("is_count").boolean(row.is_count).key("passed").boolean(row.passed);
    json.key("judged").boolean(row.judged);
    json.key("note").string(row.note).end_object();
  }
  json.end_array().key("skipped").begin_array();
  for (const std::string& name : report.skipped) json.string(name);
  json.end_array().end_object();
  print_line(text);
}

}  // namespace

int verify_command(const VerifyArgs& args) {
  EngineOptions options = args.engine;
  if (auto chosen = choose_model(options); !chosen) return report_error(chosen.error());
  std::string reference = args.reference;
  if (reference.empty()) {
    auto found = reference_beside(options.model_dir);
    if (!found) return report_error(found.error());
    reference = *found;
  }
  const auto report = compare(options, reference);
  if (!report) return report_error(report.error());
  if (args.json) {
    print_as_json(*report);
  } else {
    print_text(*report);
  }
  return report->passed() ? kExitOk : kExitError;
}

}  // namespace tessera::cli
