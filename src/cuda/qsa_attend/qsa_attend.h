// SPDX-License-Identifier: Apache-2.0
// Which attention kernel runs for a model's shapes.
#pragma once

#include "cuda/gpu_spec.h"
#include "ops/ops.h"

namespace tessera::cuda {

ops::KernelNote note_qsa_attend(const ops::QsaShape& shape, const ops::QsaCache& cache,
                                const GpuSpec& gpu);

}  // namespace tessera::cuda
