// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet: plans windows and chunks, and spreads (sequence, value head) pairs over threads.
#include <algorithm>
#include <cassert>
#include <vector>

#include "core/parallel.h"
#include "cpu/fast/fast_kernels.h"
#include "cpu/fast/gdn_parts.h"
#include "cpu/fast/ring.h"

namespace tessera::cpu {
namespace {

// Bound scratch memory however long the launch is, and however short its spans are.
constexpr int kWindowRows = 512;
constexpr size_t kWindowChunks = 16;  // chunked form only: its products take whole squares

std::vector<GdnChunk> plan_chunks(const ops::GdnArgs& args) {
  std::vector<GdnChunk> chunks;
  for (const ops::RowSpan& span : args.batch.spans) {
    if (args.verify) {  // few rows, and what is pending must be replayed once
      assert(span.num_rows <= kWindowRows);
      chunks.push_back({&span, 0, span.num_rows});
      continue;
    }
    for (int first = 0; first < span.num_rows;) {
      const auto past_line = static_cast<int>((span.position + first) % ops::kGdnChunk);
      const int rows = std::min(span.num_rows - first, ops::kGdnChunk - past_line);
      chunks.push_back({&span, first, rows});
      first += rows;
    }
  }
  return chunks;
}

class GdnLaunch {
 public:
  GdnLaunch(const ops::GdnArgs& args, Arena& scratch) : args_(args), chunks_(plan_chunks(args)) {
    const auto rows = static_cast<size_t>(std::min(args.batch.num_rows, kWindowRows));
    const auto channels = static_cast<size_t>(args.shape.channels());
    const auto value_heads = static_cast<size_t>(args.shape.value_heads);
    prepared_.mixed = scratch.take<float>(rows * channels);
    prepared_.log_decay = scratch.take<float>(rows * value_heads);
    prepared_.beta = scratch.take<float>(rows * value_heads);
    prepared_.key_query = scratch.take<float>(rows * static_cast<size_t>(args.shape.key_heads));
    auto* zeros = scratch.take<float>(channels);
    std::fill_n(zeros, channels, 0.0F);
    prepared_.zeros = zeros;
    if (args.batch.role == ops::Role::kPrefill) take_chunked(scratch);
  }

  void run() {
    for (size_t first = 0; first < chunks_.size();) {
      GdnWindow window;
      window.first_row = chunks_[first].launch_row();
      size_t last = first;
      while (last < chunks_.size() && last - first < most_chunks() &&
             window.rows + chunks_[last].rows <= kWindowRows)
        window.rows += chunks_[last++].rows;
      window.chunks = std::span(chunks_).subspan(first, last - first);
      run_window(window);
      first = last;
    }
    store_ring_rows(args_.batch, args_.conv_ring, floats(args_.qkv), args_.shape.channels());
  }

 private:
  static constexpr size_t kChunkSquare = size_t{ops::kGdnChunk} * ops::kGdnChunk;

  size_t most_chunks() const {
    return args_.batch.role == ops::Role::kPrefill ? std::min(chunks_.size(), kWindowChunks)
                                                   : chunks_.size();
  }

  void take_chunked(Arena& scratch) {
    const size_t squares = 2 * kChunkSquare * static_cast<size_t>(args_.shape.key_heads);
    products_ = scratch.take<float>(most_chunks() * squares);
    for (int thread = 0; thread < num_threads(); ++thread)
      work_.push_back(take_gdn_chunk_workspace(args_.shape, scratch));
  }

  GdnProducts products_of(size_t chunk, int key_head) const {
    const size_t at =
        chunk * static_cast<size_t>(args_.shape.key_heads) + static_cast<size_t>(key_head);
    float* first = products_ + at * 2 * kChunkSquare;
    return {first, first + kChunkSquare};
  }

  void run_window(const GdnWindow& window) {
    gdn_prepare(args_, window, prepared_);
    if (args_.batch.role == ops::Role::kPrefill) set_products(window);
    // Chunks of one span depend on each other; `parts` holds where each span's chunks begin.
    std::vector<size_t> parts;
    for (size_t at = 0; at < window.chunks.size(); ++at)
      if (at == 0 || window.chunks[at].span != window.chunks[at - 1].span) parts.push_back(at);
    parts.push_back(window.chunks.size());
    const int64_t heads = args_.shape.value_heads;
    const auto count = static_cast<int64_t>(parts.size() - 1) * heads;
    parallel_for_dynamic(count, 1, [&](int64_t piece, int64_t, int thread) {
      const auto part = static_cast<size_t>(piece / heads);
      run_head(window, parts[part], parts[part + 1], static_cast<int>(piece % heads), thread);
    });
  }

  void set_products(const GdnWindow& window) {
    const int64_t heads = args_.shape.key_heads;
    const auto count = static_cast<int64_t>(window.chunks.size()) * heads;
    parallel_for(count, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t piece = begin; piece < end; ++piece) {
        const auto chunk = static_cast<size_t>(piece / heads);
        const auto head = static_cast<int>(piece % heads);
        gdn_chunk_products(args_, window, window.chunks[chunk], head, prepared_,
                           products_of(chunk, head));
      }
    });
  }

  void run_head(const GdnWindow& window, size_t first, size_t last, int head, int thread) {
    if (args_.batch.role == ops::Role::kDecode) {
      gdn_run_recurrence(args_, window, window.chunks.subspan(first, last - first), head,
                         prepared_);
      return;
    }
    const int key_head = gdn_head(args_.shape, head).key_head;
    for (size_t chunk = first; chunk < last; ++chunk) {
      gdn_run_chunk(args_, window, window.chunks[chunk], head, prepared_,
                    products_of(chunk, key_head), work_[static_cast<size_t>(thread)]);
    }
  }

  const ops::GdnArgs& args_;
  std::vector<GdnChunk> chunks_;
  GdnPrepared prepared_{};
  float* products_ = nullptr;  // [chunks of a window, Hk, 2, kGdnChunk, kGdnChunk]
  std::vector<GdnChunkWorkspace> work_{};
};

}  // namespace

void fast_gdn(const ops::GdnArgs& args, Arena& scratch) {
  if (args.batch.num_rows > 0 || args.verify) GdnLaunch(args, scratch).run();
}

}  // namespace tessera::cpu
