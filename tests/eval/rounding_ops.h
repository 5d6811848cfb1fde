// SPDX-License-Identifier: Apache-2.0
// BF16 activations on a host backend: what every op writes is rounded, as a device would store it.
#pragma once

#include "eval/forwarding_ops.h"

namespace tessera::test {

class RoundingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  void embed(const ops::EmbedArgs& args) override {
    inner_.embed(args);
    round(args.wide, args.rows, args.branches * args.table.in_features);
  }
  void draft_input(const ops::DraftInputArgs& args) override {
    inner_.draft_input(args);
    round(args.embedded, args.rows, args.table.in_features);
    round(args.normed, args.rows, args.branches * args.table.in_features);
  }
  void linear(const ops::LinearArgs& args) override {
    inner_.linear(args);
    for (const ops::LinearPart& part : args.parts)
      if (part.output == ops::Output::kActivation)
        round(part.y, args.rows, part.weight.out_features);
  }
  void mixer(const ops::MixerArgs& args) override {
    inner_.mixer(args);
    round(args.mixed, args.rows, args.hidden);
  }
  void combine(const ops::CombineArgs& args) override {
    inner_.combine(args);
    round(args.wide, args.rows, args.branches * args.hidden);
    if (args.normed != nullptr) round(args.normed, args.rows, args.branches * args.hidden);
  }
  void gdn(const ops::GdnArgs& args) override {
    inner_.gdn(args);
    round(args.out, args.batch.num_rows, args.shape.value_heads * args.shape.value_dim);
  }
  void ple_mix(const ops::PleMixArgs& args) override {
    inner_.ple_mix(args);
    round(args.wide, args.batch.num_rows, args.branches * args.hidden);
  }
  void qsa_front(const ops::QsaFrontArgs& args) override {
    inner_.qsa_front(args);
    const ops::QsaShape& shape = args.shape;
    round(args.q, args.batch.num_rows, shape.heads * shape.head_dim);
    round(args.index_q, args.batch.num_rows, shape.index_heads * shape.index_dim);
    for (const ops::RowSpan& span : args.batch.spans) {
      const int64_t end = span.position + span.num_rows;
      for (int64_t block = span.position / shape.block; block < end / shape.block; ++block) {
        const auto in_page = static_cast<size_t>(block % shape.blocks_per_page());
        std::byte* page = args.cache.index_keys.page(span.pages[block / shape.blocks_per_page()]);
        round(page + in_page * static_cast<size_t>(shape.index_dim) * sizeof(float), 1,
              shape.index_dim);
      }
    }
  }
  void qsa_attend(const ops::QsaAttendArgs& args) override {
    inner_.qsa_attend(args);
    round(args.out, args.batch.num_rows, args.shape.heads * args.shape.head_dim);
  }
  void experts(const ops::ExpertsArgs& args) override {
    ops::ExpertsArgs alone = args;
    alone.combine = nullptr;
    inner_.experts(alone);
    round(args.out, args.rows, args.shared.down.out_features);
    if (args.combine != nullptr) combine(*args.combine);
  }

 private:
  static void round(void* data, int rows, int cols) {
    auto* values = static_cast<float*>(data);
    const auto count = static_cast<size_t>(rows) * static_cast<size_t>(cols);
    for (size_t at = 0; at < count; ++at) values[at] = bf16_to_float(float_to_bf16(values[at]));
  }
};

}  // namespace tessera::test
