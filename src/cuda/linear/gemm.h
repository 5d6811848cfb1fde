// SPDX-License-Identifier: Apache-2.0
// Products with stored weights for the other ops of the backend.
#pragma once

#include <span>

#include "cuda/context.h"
#include "ops/linear.h"

namespace tessera::cuda {

/// y[rows, out] = x[rows, in] W^T on the prefill path: cuBLASLt with one algorithm per weight
/// shape, whatever the rows; the streaming or the generic kernel where it cannot be used. `x` is
/// BF16. Uses no scratch of the context.
void gemm_prefill(Context& context, const void* x, int rows, const ops::LinearWeight& weight,
                  void* y, ops::Output output);

/// All parts over the same BF16 rows on the decode path: a row has the same bits in every launch.
/// One launch for the parts that the streaming kernel can read, one for the others.
void gemv_decode(Context& context, const void* x, int rows, std::span<const ops::LinearPart> parts);

}  // namespace tessera::cuda
