// SPDX-License-Identifier: Apache-2.0
// The kernel behind launch_qsa_attend that takes every shape: tests and benches compare with it.
#pragma once

#include "cuda/context.h"
#include "ops/qsa.h"

namespace tessera::cuda {

void launch_qsa_attend_any(Context& context, const ops::QsaAttendArgs& args);

}  // namespace tessera::cuda
