// SPDX-License-Identifier: Apache-2.0
// Mixture of experts: rows are grouped by expert so that each expert's weights are read once, and
// results are added per row in router order, so that the grouping never shows in a bit.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/linear_kernels.h"
#include "cpu/fast/simd.h"
#include "cpu/fast/vector_math.h"

namespace tessera::cpu {
namespace {

/// Bound on the expert outputs of one block of rows; longer launches go block by block.
constexpr size_t kOutputBytes = size_t{64} << 20;
/// Rows of a prefill item: enough to pay for decoding the weights, few enough to share out.
constexpr int kItemRows = 252;
/// Weight rows of a decode piece.
constexpr int kPieceRows = 32;

/// Consecutive entries of one expert. An entry is one (row, slot) pair; slot top_k is the shared
/// expert.
struct Group {
  const ops::ExpertWeight* expert = nullptr;
  int begin = 0;
  int end = 0;
};

/// One block of rows. Buffers are indexed by entry in group order.
struct Block {
  std::vector<Group> groups{};  // the shared expert first: it is the longest
  const float** x = nullptr;    // [entries] activation rows
  int* entry = nullptr;         // [rows, top_k + 1] where a row's slot went
  float* out = nullptr;         // [entries, hidden]
  int entries = 0;
  int rows = 0;
  int hidden = 0;
  int width = 0;  // of the widest expert: distance of rows in gate and up buffers
};

TESSERA_SIMD_CLONES void silu_times(float* gate, const float* up, int count) {
  for (int index = 0; index < count; ++index) gate[index] = vector_silu(gate[index]) * up[index];
}

TESSERA_SIMD_CLONES void scale_row(float* out, float weight, const float* row, int count) {
  for (int index = 0; index < count; ++index) out[index] = weight * row[index];
}

TESSERA_SIMD_CLONES void add_scaled_row(float* out, float weight, const float* row, int count) {
  for (int index = 0; index < count; ++index) out[index] += weight * row[index];
}

/// Counting sort of the entries by expert; rows stay ascending within one.
Block group_rows(const ops::ExpertsArgs& args, int first_row, int rows, Arena& scratch) {
  const int slots = args.top_k + 1;
  const auto num_experts = static_cast<int>(args.experts.size());
  Block block;
  block.rows = rows;
  block.hidden = args.shared.down.out_features;
  block.width = args.shared.gate.out_features;
  block.entries = rows * slots;
  block.x = scratch.take<const float*>(static_cast<size_t>(block.entries));
  block.entry = scratch.take<int>(static_cast<size_t>(block.entries));
  const int32_t* ids = args.ids + int64_t{first_row} * args.top_k;
  const float* x = floats(args.x) + int64_t{first_row} * block.hidden;

  std::vector<int> place(static_cast<size_t>(num_experts) + 1, 0);
  for (int pair = 0; pair < rows * args.top_k; ++pair) {
    assert(ids[pair] >= 0 && ids[pair] < num_experts);
    ++place[static_cast<size_t>(ids[pair]) + 1];
  }
  block.groups.push_back({&args.shared, 0, rows});
  for (int expert = 0, begin = rows; expert < num_experts; ++expert) {
    const auto index = static_cast<size_t>(expert);
    const int count = place[index + 1];
    if (count > 0) block.groups.push_back({&args.experts[index], begin, begin + count});
    if (count > 0) block.width = std::max(block.width, args.experts[index].gate.out_features);
    place[index] = begin;
    begin += count;
  }
  for (int row = 0; row < rows; ++row) {
    for (int slot = 0; slot < slots; ++slot) {
      const bool shared = slot == args.top_k;
      const int entry = shared ? row : place[static_cast<size_t>(ids[row * args.top_k + slot])]++;
      block.entry[row * slots + slot] = entry;
      block.x[entry] = x + int64_t{row} * block.hidden;
    }
  }
  return block;
}

/// Weight rows [first, last) of one group's gate and up, or down.
struct Piece {
  const Group* group = nullptr;
  int first = 0;
  int last = 0;
};

std::vector<Piece> cut_pieces(const Block& block, bool down) {
  std::vector<Piece> pieces;
  for (const Group& group : block.groups) {
    const int count = down ? block.hidden : group.expert->gate.out_features;
    for (int first = 0; first < count; first += kPieceRows)
      pieces.push_back({&group, first, std::min(first + kPieceRows, count)});
  }
  return pieces;
}

/// Two parallel regions: all gate and up rows of all experts, then all down rows.
void run_decode(const Block& block, Arena& scratch) {
  const auto entries = static_cast<size_t>(block.entries);
  const auto width = static_cast<size_t>(block.width);
  float* gate = scratch.take<float>(entries * width);
  float* up = scratch.take<float>(entries * width);
  float** gate_rows = scratch.take<float*>(entries);
  float** up_rows = scratch.take<float*>(entries);
  float** out_rows = scratch.take<float*>(entries);
  for (size_t entry = 0; entry < entries; ++entry) {
    gate_rows[entry] = gate + entry * width;
    up_rows[entry] = up + entry * width;
    out_rows[entry] = block.out + entry * static_cast<size_t>(block.hidden);
  }
  const double rows_per_group =
      double{1} * block.entries / static_cast<double>(block.groups.size());
  const auto each = [&](const std::vector<Piece>& pieces, auto&& run) {
    const double work = double{kPieceRows} * block.hidden * rows_per_group;
    parallel_for(
        static_cast<int64_t>(pieces.size()), grain_for(work), [&](int64_t begin, int64_t end, int) {
          // Neighbours of one expert are run as one: long streams of weights.
          for (int64_t index = begin; index < end;) {
            Piece piece = pieces[static_cast<size_t>(index)];
            for (; index < end && pieces[static_cast<size_t>(index)].group == piece.group; ++index)
              piece.last = pieces[static_cast<size_t>(index)].last;
            run(piece);
          }
        });
  };
  each(cut_pieces(block, false), [&](const Piece& piece) {
    const auto [expert, begin, end] = *piece.group;
    const int count = end - begin;
    dot_rows({expert->gate, piece.first, piece.last, block.x + begin, gate_rows + begin, count});
    dot_rows({expert->up, piece.first, piece.last, block.x + begin, up_rows + begin, count});
    for (int entry = begin; entry < end; ++entry)
      silu_times(gate_rows[entry] + piece.first, up_rows[entry] + piece.first,
                 piece.last - piece.first);
  });
  each(cut_pieces(block, true), [&](const Piece& piece) {
    const auto [expert, begin, end] = *piece.group;
    dot_rows(
        {expert->down, piece.first, piece.last, gate_rows + begin, out_rows + begin, end - begin});
  });
}

/// Buffers of one thread of the prefill path.
struct Workspace {
  float* product = nullptr;
  float* x = nullptr;
  float* gate = nullptr;
  float* up = nullptr;
};

/// Some rows of one expert, start to end on one thread.
void run_item(const Block& block, const Group& group, int begin, int end, const Workspace& space) {
  const int hidden = block.hidden, width = group.expert->gate.out_features, rows = end - begin;
  for (int row = 0; row < rows; ++row)
    std::copy_n(block.x[begin + row], hidden, space.x + int64_t{row} * hidden);
  linear_prefill_one({group.expert->gate, space.x, hidden, space.gate, width}, rows, space.product);
  linear_prefill_one({group.expert->up, space.x, hidden, space.up, width}, rows, space.product);
  silu_times(space.gate, space.up, rows * width);
  float* out = block.out + int64_t{begin} * hidden;
  linear_prefill_one({group.expert->down, space.gate, width, out, hidden}, rows, space.product);
}

void run_prefill(const Block& block, Arena& scratch) {
  std::vector<Piece> items;
  for (const Group& group : block.groups)
    for (int begin = group.begin; begin < group.end; begin += kItemRows)
      items.push_back({&group, begin, std::min(begin + kItemRows, group.end)});
  std::vector<Workspace> spaces(static_cast<size_t>(num_threads()));
  for (Workspace& space : spaces) {
    space.product = scratch.take<float>(linear_workspace_floats());
    space.x = scratch.take<float>(size_t{kItemRows} * static_cast<size_t>(block.hidden));
    space.gate = scratch.take<float>(size_t{kItemRows} * static_cast<size_t>(block.width));
    space.up = scratch.take<float>(size_t{kItemRows} * static_cast<size_t>(block.width));
  }
  parallel_for_dynamic(
      static_cast<int64_t>(items.size()), 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t index = begin; index < end; ++index) {
          const Piece& item = items[static_cast<size_t>(index)];
          run_item(block, *item.group, item.first, item.last, spaces[static_cast<size_t>(thread)]);
        }
      });
}

/// Router order first, then the shared expert.
void add_up(const ops::ExpertsArgs& args, const Block& block, int first_row) {
  const int slots = args.top_k + 1;
  parallel_for(block.rows, grain_for(double{1} * slots * block.hidden),
               [&](int64_t begin, int64_t end, int) {
                 for (int64_t row = begin; row < end; ++row) {
                   const int64_t global = first_row + row;
                   float* out = floats(args.out) + global * block.hidden;
                   for (int slot = 0; slot < slots; ++slot) {
                     const float weight =
                         slot < args.top_k ? args.weights[global * args.top_k + slot]
                                           : 1.0F / (1.0F + std::exp(-args.shared_logit[global]));
                     const float* from =
                         block.out + int64_t{block.entry[row * slots + slot]} * block.hidden;
                     (slot == 0 ? scale_row : add_scaled_row)(out, weight, from, block.hidden);
                   }
                 }
               });
}

}  // namespace

void fast_experts(const ops::ExpertsArgs& args, Arena& scratch) {
  const auto hidden = static_cast<size_t>(args.shared.down.out_features);
  const size_t row_bytes = hidden * sizeof(float) * static_cast<size_t>(args.top_k + 1);
  const auto block_rows =
      static_cast<int>(std::clamp<size_t>(kOutputBytes / row_bytes, 1, size_t{1} << 20));
  for (int first = 0; first < args.rows; first += block_rows) {
    const int rows = std::min(block_rows, args.rows - first);
    scratch.reset();
    Block block = group_rows(args, first, rows, scratch);
    block.out = scratch.take<float>(static_cast<size_t>(block.entries) * hidden);
    if (args.role == ops::Role::kDecode)
      run_decode(block, scratch);
    else
      run_prefill(block, scratch);
    add_up(args, block, first);
  }
}

}  // namespace tessera::cpu
