// SPDX-License-Identifier: Apache-2.0
// From the device option to a backend.
#pragma once

#include <tessera/engine.h>
#include <tessera/error.h>
#include <memory>

#include "ops/ops.h"

namespace tessera {

/// Errors: kUnsupported with the reason (unknown name, not built in, no usable device).
Result<std::unique_ptr<ops::Ops>> make_backend(const EngineOptions& options);

/// Storage of K and V that kAuto means on this backend. Errors: kUnsupported.
Result<DType> cache_dtype(CacheType type, const ops::Ops& ops);

}  // namespace tessera
