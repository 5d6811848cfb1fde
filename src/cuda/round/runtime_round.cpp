// SPDX-License-Identifier: Apache-2.0
// Where rounds live: a block of their own on the device, which no other launch uses, and pinned
// copies of what the host reads of them.
#include <algorithm>

#include "cuda/runtime_context.h"

namespace tessera::cuda {
namespace {

constexpr size_t kFirstRoundBytes = size_t{1} << 20;

}  // namespace

/// One copy brings the whole state; kernels keep it from then on.
ops::RoundState RuntimeContext::begin_round(const ops::RoundInputs& inputs) {
  check(cudaSetDevice(options_.device));  // the calling thread may be a new one
  const auto num_spans = static_cast<int>(inputs.batch.spans.size());
  round_.layout = {num_spans, inputs.batch.num_rows};
  const size_t row_span_at = round_.layout.bytes();
  const size_t bytes = row_span_at + static_cast<size_t>(inputs.batch.num_rows) * sizeof(int32_t);
  if (bytes > round_.block.bytes()) {
    check(cudaStreamSynchronize(stream_));
    forget_steps();
    round_.block = MemoryBlock(*memory_, std::max(2 * bytes, kFirstRoundBytes));
  }
  std::byte* host = stage(bytes);
  std::fill_n(host, bytes, std::byte{});
  const ops::RoundState filled = round_.layout.at(host);
  ops::start_round(inputs, filled);
  round_.spans.assign(inputs.batch.spans.begin(), inputs.batch.spans.end());
  round_.draft_spans = round_.spans;
  auto* row_span = reinterpret_cast<int32_t*>(host + row_span_at);
  for (int index = 0; index < num_spans; ++index) {
    ops::RowSpan& live = round_.draft_spans[static_cast<size_t>(index)];
    std::fill_n(row_span + live.row_begin, live.num_rows, index);
    live.row_begin = index;
    live.num_rows = 1;
  }
  upload(round_.block.data(), bytes);
  round_.row_span = reinterpret_cast<const int32_t*>(round_.block.data() + row_span_at);
  round_.state = round_.layout.at(round_.block.data());
  return round_.state;
}

/// Live row r belongs to span r: row numbers are its spans too.
ops::RoundRows RuntimeContext::use_rows(ops::RoundPart part, int spans, int rows) {
  const ops::RoundState& state = round_.state;
  const ops::LaunchBuffers buffers = ops::buffers_of(state, part, spans, rows);
  const bool live = part == ops::RoundPart::kLive;
  batch_ = {.spans = live ? state.draft_spans : state.spans,
            .row_span = live ? state.row_numbers : round_.row_span,
            .num_spans = spans,
            .num_rows = rows};
  const std::span<const ops::RowSpan> host_spans(live ? round_.draft_spans : round_.spans);
  return {.batch = {.spans = host_spans.first(static_cast<size_t>(spans)),
                    .num_rows = rows,
                    .role = ops::Role::kDecode},
          .buffers = buffers};
}

void RuntimeContext::end_round() {
  RoundReport& report = round_.reports[round_.queue.push()];
  const size_t bytes = round_.layout.report_bytes();
  if (report.bytes < bytes) {
    const size_t grown = std::max(2 * bytes, kFirstRoundBytes);
    check(cudaFreeHost(report.host));
    report.host = nullptr;
    report.bytes = 0;
    void* host = nullptr;
    check(cudaMallocHost(&host, grown));
    report.host = static_cast<std::byte*>(host);
    report.bytes = grown;
  }
  report.layout = round_.layout;
  check(cudaMemcpyAsync(report.host, round_.block.data() + round_.layout.report_offset(), bytes,
                        cudaMemcpyDeviceToHost, stream_));
  check(cudaEventRecord(report.arrived, stream_));
}

ops::RoundReport RuntimeContext::read_round() {
  const RoundReport& report = round_.reports[round_.queue.pop()];
  check(cudaEventSynchronize(report.arrived));
  return report.layout.report(report.host);
}

}  // namespace tessera::cuda
