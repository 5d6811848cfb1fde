// SPDX-License-Identifier: Apache-2.0
// A draw of one request, through the CPU's sample op.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "cpu/cpu_ops.h"
#include "runtime/sampler.h"

namespace tessera::test {

inline Result<Draw> sample(const Sampler& sampler, std::span<const float> logits,
                           int64_t position) {
  static const std::unique_ptr<ops::Ops> ops = cpu::make_reference_ops();
  std::vector<ops::LogitEdit> edits;
  const ops::SampleRow row = sampler.row(position, edits);
  ops::SampledToken outcome;
  ops->sample({.logits = logits.data(),
               .vocab = static_cast<int>(logits.size()),
               .rows = {&row, 1},
               .edits = edits,
               .results = {&outcome, 1}});
  return Sampler::draw(outcome, position);
}

}  // namespace tessera::test
