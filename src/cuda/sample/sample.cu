// SPDX-License-Identifier: Apache-2.0
// Sampling of a launch: settings go to pinned memory, one kernel draws all rows and writes the
// results there, and the host waits once.
#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/cuda_kernels.h"
#include "cuda/sample/sample_kernel.cuh"

namespace tessera::cuda {
namespace {

static_assert(sizeof(device::SampleShared) % sizeof(uint4) == 0, "the slice follows it, aligned");

struct BestOnly {
  static constexpr bool kBestOnly = true, kInShared = false;
};
struct SliceInShared {
  static constexpr bool kBestOnly = false, kInShared = true;
};
struct SliceInPlace {
  static constexpr bool kBestOnly = false, kInShared = false;
};

/// Arrays of a launch in pinned memory.
struct PinnedLayout {
  size_t rows = 0, bounds = 0, edits = 0, results = 0, bytes = 0;

  PinnedLayout(const ops::SampleArgs& args, int blocks) {
    constexpr size_t kAlign = 64;
    const auto take = [this](size_t size) {
      const size_t at = bytes;
      bytes += (size + kAlign - 1) / kAlign * kAlign;
      return at;
    };
    rows = take(args.rows.size_bytes());
    bounds = take(args.rows.size() * (static_cast<size_t>(blocks) + 1) * sizeof(int));
    edits = take(args.edits.size_bytes());
    results = take(args.results.size_bytes());
  }
};

/// Where the edits of each slice begin: tokens ascend within a row.
void bound_edits(const ops::SampleArgs& args, const SamplePlan& plan, int* bounds) {
  for (const ops::SampleRow& row : args.rows) {
    const auto edits = args.edits.subspan(static_cast<size_t>(row.edits_begin),
                                          static_cast<size_t>(row.num_edits));
    for (int block = 0; block <= plan.blocks; ++block) {
      const int limit = std::min(block * plan.slice, row.valid_vocab);
      const auto at = std::lower_bound(
          edits.begin(), edits.end(), limit,
          [](const ops::LogitEdit& edit, int token) { return edit.token < token; });
      *bounds++ = row.edits_begin + static_cast<int>(at - edits.begin());
    }
  }
}

const char kPinnedTag = 0;

void check_vocab(int vocab) {
  if (vocab > kSampleMaxVocab)
    throw std::invalid_argument("sampling on the device: a vocabulary of " + std::to_string(vocab) +
                                " ids, at most " + std::to_string(kSampleMaxVocab));
}

void launch_rows(Context& context, const SamplePlan& plan, int rows,
                 const device::SampleKernelArgs& args) {
  const LaunchShape shape{
      .grid = {static_cast<unsigned>(rows) * static_cast<unsigned>(plan.blocks)},
      .block = {kSampleThreads},
      .shared_bytes = plan.shared_bytes,
      .cluster = static_cast<unsigned>(plan.blocks)};
  const auto kernel = plan.best_only   ? device::sample<BestOnly>
                      : plan.in_shared ? device::sample<SliceInShared>
                                       : device::sample<SliceInPlace>;
  launch(context, shape, kernel, args);
}

}  // namespace

void launch_sample(Context& context, const ops::SampleArgs& args) {
  if (args.rows.empty()) return;
  check_vocab(args.vocab);
  const SamplePlan plan = plan_sample(args, context.gpu(), sizeof(device::SampleShared));
  const PinnedLayout layout(args, plan.blocks);
  auto* pinned = static_cast<std::byte*>(context.pinned(&kPinnedTag, layout.bytes));
  std::memcpy(pinned + layout.rows, args.rows.data(), args.rows.size_bytes());
  bound_edits(args, plan, reinterpret_cast<int*>(pinned + layout.bounds));
  if (!args.edits.empty())
    std::memcpy(pinned + layout.edits, args.edits.data(), args.edits.size_bytes());
  auto* results = reinterpret_cast<ops::SampledToken*>(pinned + layout.results);
  std::fill_n(results, args.rows.size(), ops::SampledToken{});

  const device::SampleKernelArgs kernel_args{
      .logits = args.logits,
      .vocab = args.vocab,
      .slice = plan.slice,
      .rows = reinterpret_cast<const ops::SampleRow*>(pinned + layout.rows),
      .edit_bounds = reinterpret_cast<const int*>(pinned + layout.bounds),
      .edits = reinterpret_cast<const ops::LogitEdit*>(pinned + layout.edits),
      .results = results,
      .copies = plan.copies
                    ? static_cast<float*>(context.scratch(
                          args.rows.size() * static_cast<size_t>(args.vocab) * sizeof(float)))
                    : nullptr};
  launch_rows(context, plan, static_cast<int>(args.rows.size()), kernel_args);
  check(cudaStreamSynchronize(context.stream()));
  std::copy_n(results, args.rows.size(), args.results.begin());
}

void launch_draw(Context& context, const ops::DrawArgs& args) {
  check_vocab(args.vocab);
  const SamplePlan plan =
      plan_draw(args.vocab, args.best_only, context.gpu(), sizeof(device::SampleShared));
  launch_rows(context, plan, args.rows,
              {.logits = args.logits,
               .vocab = args.vocab,
               .slice = plan.slice,
               .of_round = true,
               .rows = args.settings,
               .results = args.results});
}

ops::KernelNote note_sample(const GpuSpec& gpu) {
  return {.op = "sample",
          .kernel = gpu.is_hopper() ? "a cluster of 8 per row, logits in shared memory"
                                    : "a block per row",
          .reason = "exact cuts by histogram, integer weights, one pass for greedy rows"};
}

}  // namespace tessera::cuda
