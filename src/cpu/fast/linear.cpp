// SPDX-License-Identifier: Apache-2.0
// The linear op: cuts the work of both paths over threads; the arithmetic is in the level kernels.
#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/linear_kernels.h"
#include "cpu/fast/linear_level.h"

namespace tessera::cpu {
namespace {

/// Weight rows of a piece that stay in the L2 cache while further chunks of activation rows pass.
constexpr int kDotPiece = 64;
/// Activation rows whose pointers are gathered at once.
constexpr int kRowChunk = 64;
/// Weight rows of one thread share are a multiple of this: whole tiles of every level.
constexpr int kDotGrain = 8;
/// Pieces of work per thread that even out uneven ones.
constexpr int kItemsPerThread = 4;

static_assert(kScaleSide == ops::kScaleBlock);  // the level files see linear_level.h only

WeightView view_of(const ops::LinearWeight& weight) {
  WeightView view;
  view.data = static_cast<const unsigned char*>(weight.data);
  view.scale = weight.scale;
  view.row_bytes = static_cast<int64_t>(weight.row_bytes());
  view.scale_cols = weight.scale_cols();
  view.dtype = weight.dtype;
  view.out_features = weight.out_features;
  view.in_features = weight.in_features;
  return view;
}

void dot_share(const LinearJob& job, int first, int last, int rows) {
  const float* x[kRowChunk];
  float* y[kRowChunk];
  const int step = rows > kRowChunk ? kDotPiece : last - first;  // long streams of weights
  for (int piece = first; piece < last; piece += step) {
    for (int row = 0; row < rows; row += kRowChunk) {
      const int count = std::min(kRowChunk, rows - row);
      for (int index = 0; index < count; ++index) {
        x[index] = job.x + (row + index) * job.x_stride;
        y[index] = job.y + (row + index) * job.y_stride;
      }
      dot_rows({job.weight, piece, std::min(piece + step, last), x, y, count});
    }
  }
}

/// A rectangle of one job's output.
struct Item {
  int job = 0;
  int first_column = 0;
  int last_column = 0;
  int first_row = 0;
  int last_row = 0;
};

int64_t grains_of(const LinearJob& job, int grain) {
  return (job.weight.out_features + grain - 1) / grain;
}

/// Wide column groups decode the weights once and read the rows least often; they shrink only as
/// far as the threads need, and rows are cut when columns do not suffice.
std::vector<Item> cut_items(std::span<const LinearJob> jobs, int rows) {
  int64_t grains = 0;
  double work = 0;
  for (const LinearJob& job : jobs) {
    grains += grains_of(job, kColumnGrain);
    work += double{1} * rows * job.weight.out_features * job.weight.in_features;
  }
  std::vector<Item> items;
  if (grains == 0 || rows == 0) return items;
  const int64_t wanted = std::clamp<int64_t>(static_cast<int64_t>(work / kMinShareWork), 1,
                                             int64_t{num_threads()} * kItemsPerThread);
  const auto columns = static_cast<int>(
      std::clamp<int64_t>(grains / wanted, 1, kGroupColumns / kColumnGrain) * kColumnGrain);
  int row_cuts = 1;
  if (num_threads() > 1 && grains < wanted)
    row_cuts = static_cast<int>((wanted + grains - 1) / grains);
  constexpr int kLeastRows = 4 * kMaxTileRows;
  const int row_step = std::max((rows + row_cuts - 1) / row_cuts, kLeastRows);
  for (size_t job = 0; job < jobs.size(); ++job) {
    const int out_features = jobs[job].weight.out_features;
    for (int column = 0; column < out_features; column += columns)
      for (int row = 0; row < rows; row += row_step)
        items.push_back({static_cast<int>(job), column, std::min(column + columns, out_features),
                         row, std::min(row + row_step, rows)});
  }
  return items;
}

void run_item(const LinearJob& job, const Item& item, float* workspace) {
  ColumnsTask task;
  task.weight = view_of(job.weight);
  task.first = item.first_column;
  task.last = item.last_column;
  task.x = job.x + item.first_row * job.x_stride;
  task.x_stride = job.x_stride;
  task.y = job.y + item.first_row * job.y_stride;
  task.y_stride = job.y_stride;
  task.rows = item.last_row - item.first_row;
  task.workspace = workspace;
  level_kernels().columns(task);
}

}  // namespace

void dot_rows(const DotRows& args) {
  DotTask task;
  task.weight = view_of(args.weight);
  task.first = args.first;
  task.last = args.last;
  task.x = args.x;
  task.y = args.y;
  task.rows = args.rows;
  level_kernels().dot(task);
}

void linear_decode(std::span<const LinearJob> jobs, int rows) {
  int64_t grains = 0;
  int depth = 0;
  for (const LinearJob& job : jobs) {
    grains += grains_of(job, kDotGrain);
    depth = std::max(depth, job.weight.in_features);
  }
  const int64_t share = grain_for(double{kDotGrain} * depth * rows);
  parallel_for(grains, share, [&](int64_t begin, int64_t end, int) {
    int64_t before = 0;
    for (const LinearJob& job : jobs) {
      const int64_t own = grains_of(job, kDotGrain);
      const int64_t first = std::clamp<int64_t>(begin - before, 0, own) * kDotGrain;
      const int64_t last = std::clamp<int64_t>(end - before, 0, own) * kDotGrain;
      if (first < last)
        dot_share(job, static_cast<int>(first),
                  std::min(static_cast<int>(last), job.weight.out_features), rows);
      before += own;
    }
  });
}

size_t linear_workspace_floats() { return kWorkspaceFloats; }

void linear_prefill_one(const LinearJob& job, int rows, float* workspace) {
  run_item(job, {0, 0, job.weight.out_features, 0, rows}, workspace);
}

void linear_prefill(std::span<const LinearJob> jobs, int rows, Arena& scratch) {
  const std::vector<Item> items = cut_items(jobs, rows);
  const auto threads = static_cast<size_t>(num_threads());
  float* workspaces = scratch.take<float>(threads * kWorkspaceFloats);
  parallel_for_dynamic(static_cast<int64_t>(items.size()), 1,
                       [&](int64_t begin, int64_t end, int thread) {
                         for (int64_t index = begin; index < end; ++index) {
                           const Item& item = items[static_cast<size_t>(index)];
                           run_item(jobs[static_cast<size_t>(item.job)], item,
                                    workspaces + static_cast<size_t>(thread) * kWorkspaceFloats);
                         }
                       });
}

void linear_run(std::span<const LinearJob> jobs, int rows, ops::Role role, Arena& scratch) {
  if (role == ops::Role::kDecode)
    linear_decode(jobs, rows);
  else
    linear_prefill(jobs, rows, scratch);
}

void fast_linear(const ops::LinearArgs& args, Arena& scratch) {
  std::vector<LinearJob> jobs;
  for (const ops::LinearPart& part : args.parts)
    jobs.push_back({part.weight, floats(args.x), part.weight.in_features, floats(part.y),
                    part.weight.out_features});
  linear_run(jobs, args.rows, args.role, scratch);
}

}  // namespace tessera::cpu
