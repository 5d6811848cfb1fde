// SPDX-License-Identifier: Apache-2.0
// The CUDA backend as the runtime sees it: no CUDA header is needed to include this.
#pragma once

#include <memory>
#include <string>

#include "ops/ops.h"

struct CUstream_st;

namespace tessera::cuda {

struct Options {
  int device = 0;
  bool pdl = true;     // programmatic dependent launch on every edge
  bool graphs = true;  // repeated steps are recorded and replayed as one CUDA graph
};

/// Empty when `device` can run the backend, else the reason: no driver, no device, too old, no code
/// for it in this program.
std::string why_unusable(int device);
/// Empty when this program holds machine code for `device`, which exists.
std::string why_no_code(int device);

/// Throws CudaError when the device cannot be opened: ask why_unusable first.
std::unique_ptr<ops::Ops> make_ops(const Options& options);

class Context;
/// The context of a backend made here, for launching single kernels (tests and benches).
Context& context_of(ops::Ops& ops);

/// The stream on which the ops of a backend made here run (tests and benches).
CUstream_st* stream_of(ops::Ops& ops);

/// Unified name, compute capability and memory of a device, for logs and tables.
std::string describe_device(int device);

}  // namespace tessera::cuda
