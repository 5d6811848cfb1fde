// SPDX-License-Identifier: Apache-2.0
// What an op must move and compute at the least: the denominator of every "percent of ceiling".
#pragma once

namespace tessera::ops {

struct Cost {
  double bytes_read = 0;  // weights, activations and state, each once
  double bytes_written = 0;
  double flops = 0;  // a multiply-add counts two

  Cost& operator+=(const Cost& other) {
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    flops += other.flops;
    return *this;
  }
};

}  // namespace tessera::ops
