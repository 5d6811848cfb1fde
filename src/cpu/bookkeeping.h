// SPDX-License-Identifier: Apache-2.0
// Ops that only move ids and rows: the same for every CPU backend.
#pragma once

#include "ops/ops.h"

namespace tessera::cpu {

void ngram_ids(const ops::NgramIdsArgs& args);
void qsa_extend(const ops::QsaExtendArgs& args);
void finish(const ops::FinishArgs& args);

}  // namespace tessera::cpu
