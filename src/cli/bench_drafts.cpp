// SPDX-License-Identifier: Apache-2.0
// Speeds of all depths side by side, then what the rounds of each are made of.
#include "cli/bench_drafts.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "cli/answer_json.h"

namespace tessera::cli {
namespace {

constexpr double kMega = 1e6;
constexpr double kMillisecond = 1e-3;
constexpr double kPercent = 100.0;

std::string depth_name(int depth) {
  return depth == kDraftAuto ? "auto" : "K=" + std::to_string(depth);
}

/// Number, or a dash where there is none.
std::string number(double value, int decimals) {
  if (value <= 0) return "-";
  constexpr size_t kRoom = 32;
  char text[kRoom];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

/// Shares of the drafts at each place of a round that were accepted.
std::string accepted_by_place(const DraftUsage& drafts) {
  std::string text;
  for (size_t place = 0; place < drafts.proposed.size(); ++place)
    text +=
        drafts.accepted[place] == 0
            ? " 0"
            : " " + number(static_cast<double>(drafts.accepted[place]) / drafts.proposed[place], 2);
  return text;
}

void print_text(const DraftCase& each) {
  std::printf("%-9s %7d %5d", each.text.c_str(), each.context, each.batch);
}

/// Tokens per second of every depth, and what the adaptive one makes of it.
void print_speeds(const std::vector<DraftCase>& cases) {
  std::printf("\n%-9s %7s %5s", "tokens/s", "context", "batch");
  for (const DraftRow& row : cases.front().rows) std::printf(" %8s", depth_name(row.depth).c_str());
  std::printf("  best  auto/best (wanted %.2f)\n", kAdaptiveGoal);
  for (const DraftCase& each : cases) {
    print_text(each);
    for (const DraftRow& row : each.rows) std::printf(" %8.1f", row.tokens_per_second);
    const double ratio = each.adaptive_ratio();
    std::printf("  %4s  %s", depth_name(each.best_fixed()->depth).c_str(),
                number(ratio, 3).c_str());
    std::printf("%s%s\n", ratio > 0 && ratio < kAdaptiveGoal ? "  missed" : "",
                each.same_text() ? "" : "  TEXTS DIFFER");
  }
}

void print_rounds(const BenchReport& report) {
  std::printf("\n%-9s %7s %5s %5s %9s %6s %9s %9s %7s %6s  %6s %5s %6s  %s\n", "rounds", "context",
              "batch", "depth", "tokens/s", "ratio", "ms/round", "MB/round", "x bytes", "x goal",
              "verify", "draft", "commit",
              report.synthetic ? "(synthetic weights: acceptance means nothing)"
                               : "tokens/round, accepted by place");
  for (const DraftCase& each : report.drafts) {
    const DraftRow& plain = each.rows.front();
    for (const DraftRow& row : each.rows) {
      print_text(each);
      std::printf(
          " %5s %9.1f %6.2f %9.3f %9s %7s %6s  %5.1f%% %4.1f%% %5.1f%%",
          depth_name(row.depth).c_str(), row.tokens_per_second,
          row.tokens_per_second / plain.tokens_per_second, row.seconds_per_round / kMillisecond,
          number(row.bytes_per_round / kMega, 2).c_str(),
          number(plain.bytes_per_round > 0 ? row.bytes_per_round / plain.bytes_per_round : 0, 2)
              .c_str(),
          number(each.times_goal(row), 2).c_str(), kPercent * row.verify_share,
          kPercent * row.draft_share, kPercent * row.commit_share());
      if (row.drafts.rounds > 0 && !report.synthetic)
        std::printf("  %.2f,%s", row.drafts.mean_length(), accepted_by_place(row.drafts).c_str());
      std::printf("%s\n", row.same_text ? "" : "  TEXTS DIFFER");
    }
  }
}

void write_row(JsonWriter& json, const DraftCase& each, const DraftRow& row) {
  json.begin_object().key("depth");
  if (row.depth == kDraftAuto) {
    json.null();
  } else {
    json.integer(row.depth);
  }
  json.key("tokens_per_second").real(row.tokens_per_second);
  json.key("seconds_per_round").real(row.seconds_per_round);
  json.key("bytes_per_round").real(row.bytes_per_round);
  json.key("times_goal").real(each.times_goal(row));
  json.key("verify_share").real(row.verify_share);
  json.key("draft_share").real(row.draft_share);
  json.key("commit_share").real(row.commit_share());
  json.key("same_text").boolean(row.same_text);
  write_drafts(json, row.drafts);
  json.end_object();
}

}  // namespace

void print_drafts(const BenchReport& report) {
  if (report.drafts.empty()) return;
  print_speeds(report.drafts);
  print_rounds(report);
}

void write_draft_cases(JsonWriter& json, const std::vector<DraftCase>& cases) {
  json.key("drafting").begin_array();
  for (const DraftCase& each : cases) {
    json.begin_object().key("text").string(each.text);
    json.key("context").integer(each.context);
    json.key("batch").integer(each.batch);
    json.key("tokens").integer(each.tokens);
    json.key("same_text").boolean(each.same_text());
    json.key("best_fixed").integer(each.best_fixed()->depth);
    json.key("adaptive_ratio").real(each.adaptive_ratio());
    json.key("rows").begin_array();
    for (const DraftRow& row : each.rows) write_row(json, each, row);
    json.end_array().end_object();
  }
  json.end_array();
}

}  // namespace tessera::cli
