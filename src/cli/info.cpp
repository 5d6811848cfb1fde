// SPDX-License-Identifier: Apache-2.0
// `tessera info`: what a model folder holds, what a sequence costs, which kernels would run.
#include <tessera/json_writer.h>
#include <cinttypes>
#include <cstdio>

#include "cli/command.h"
#include "cli/session.h"
#include "cli/terminal.h"

namespace tessera::cli {
namespace {

constexpr double kMebi = 1024.0 * 1024.0;

std::string size_text(uint64_t bytes) {
  char text[32];
  if (static_cast<double>(bytes) < kMebi) {
    std::snprintf(text, sizeof text, "%" PRIu64 " B", bytes);
  } else {
    std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / kMebi);
  }
  return text;
}

void print_sizes(const char* title, const std::vector<SizeEntry>& entries) {
  uint64_t bytes = 0;
  uint64_t parameters = 0;
  std::printf("\n%s\n", title);
  for (const SizeEntry& entry : entries) {
    bytes += entry.bytes;
    parameters += entry.parameters;
    std::printf("  %-24s %14s", entry.name.c_str(), size_text(entry.bytes).c_str());
    if (entry.parameters > 0) std::printf(" %14" PRIu64 " parameters", entry.parameters);
    std::printf("%s%s\n", entry.note.empty() ? "" : "  ", entry.note.c_str());
  }
  std::printf("  %-24s %14s", "sum", size_text(bytes).c_str());
  if (parameters > 0) std::printf(" %14" PRIu64 " parameters", parameters);
  std::printf("\n");
}

/// "GDN GDN GDN QSA ..." as runs: "3 gdn, 1 qsa, ...".
std::string layer_summary(const std::vector<std::string>& kinds) {
  std::string text;
  for (size_t first = 0; first < kinds.size();) {
    size_t last = first;
    while (last < kinds.size() && kinds[last] == kinds[first]) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(last - first) + " " + kinds[first];
    first = last;
  }
  return text;
}

void print_sampling(const GenerationDefaults& defaults) {
  const SamplingParams& sampling = defaults.sampling;
  std::printf("sampling    temperature %g, top-k %d, top-p %g, min-p %g\n",
              static_cast<double>(sampling.temperature), sampling.top_k,
              static_cast<double>(sampling.top_p), static_cast<double>(sampling.min_p));
  std::printf("stops on   ");
  for (const int32_t id : defaults.eos_token_ids) std::printf(" %d", id);
  std::printf("\n");
}

void print_text(const ModelInfo& info) {
  std::printf("model       %s\n", info.name.c_str());
  std::printf("layout      %s\n", info.layout.c_str());
  std::printf("layers      %d: %s\n", info.num_layers, layer_summary(info.layer_kinds).c_str());
  std::printf("hidden      %d\n", info.hidden_size);
  std::printf("vocabulary  %d\n", info.vocab_size);
  std::printf("context     %d tokens\n", info.max_context);
  if (info.max_draft > 0)
    std::printf("draft       one layer, up to %d tokens a round\n", info.max_draft);
  else
    std::printf("draft       off: %s\n", info.draft_note.c_str());
  print_sampling(info.defaults);
  print_sizes("weights", info.weights);
  print_sizes("state of a sequence, fixed", info.state_per_sequence);
  print_sizes("state of a sequence, per token", info.state_per_token);
  std::printf("\nkernels\n");
  for (const KernelChoice& choice : info.kernels)
    std::printf("  %-14s %s (%s)\n", choice.op.c_str(), choice.kernel.c_str(),
                choice.reason.c_str());
  if (!info.ignored_tensors.empty()) std::printf("\nnot used\n");
  for (const std::string& group : info.ignored_tensors) std::printf("  %s\n", group.c_str());
}

void write_strings(JsonWriter& json, const char* name, const std::vector<std::string>& texts) {
  json.key(name).begin_array();
  for (const std::string& text : texts) json.string(text);
  json.end_array();
}

void write_sizes(JsonWriter& json, const char* name, const std::vector<SizeEntry>& entries) {
  json.key(name).begin_array();
  for (const SizeEntry& entry : entries) {
    json.begin_object().key("name").string(entry.name);
    json.key("bytes").unsigned_integer(entry.bytes);
    if (entry.parameters > 0) json.key("parameters").unsigned_integer(entry.parameters);
    json.key("note").string(entry.note).end_object();
  }
  json.end_array();
}

void write_defaults(JsonWriter& json, const GenerationDefaults& defaults) {
  const SamplingParams& sampling = defaults.sampling;
  json.key("sampling").begin_object();
  json.key("temperature").real(static_cast<double>(sampling.temperature));
  json.key("top_k").integer(sampling.top_k);
  json.key("top_p").real(static_cast<double>(sampling.top_p));
  json.key("min_p").real(static_cast<double>(sampling.min_p));
  json.key("repetition_penalty").real(static_cast<double>(sampling.repetition_penalty));
  json.end_object();
  json.key("eos_token_ids").begin_array();
  for (const int32_t id : defaults.eos_token_ids) json.integer(id);
  json.end_array();
}

void write_kernels(JsonWriter& json, const std::vector<KernelChoice>& kernels) {
  json.key("kernels").begin_array();
  for (const KernelChoice& choice : kernels) {
    json.begin_object().key("op").string(choice.op);
    json.key("kernel").string(choice.kernel);
    json.key("reason").string(choice.reason).end_object();
  }
  json.end_array();
}

void print_as_json(const ModelInfo& info) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().key("name").string(info.name).key("layout").string(info.layout);
  json.key("vocab_size").integer(info.vocab_size);
  json.key("max_context").integer(info.max_context);
  json.key("max_draft").integer(info.max_draft);
  json.key("hidden_size").integer(info.hidden_size);
  json.key("num_layers").integer(info.num_layers);
  write_strings(json, "layer_kinds", info.layer_kinds);
  write_defaults(json, info.defaults);
  write_sizes(json, "weights", info.weights);
  write_sizes(json, "state_per_sequence", info.state_per_sequence);
  write_sizes(json, "state_per_token", info.state_per_token);
  write_kernels(json, info.kernels);
  write_strings(json, "ignored_tensors", info.ignored_tensors);
  json.end_object();
  print_line(text);
}

}  // namespace

int info_command(const InfoArgs& args) {
  const auto engine = load_engine(args.engine);
  if (!engine) return report_error(engine.error());
  if (args.json) {
    print_as_json((*engine)->info());
  } else {
    print_text((*engine)->info());
  }
  return kExitOk;
}

}  // namespace tessera::cli
