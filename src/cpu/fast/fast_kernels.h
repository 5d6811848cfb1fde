// SPDX-License-Identifier: Apache-2.0
// Entry points of the fast CPU kernels. `scratch` is reset by the caller before each op.
#pragma once

#include "core/arena.h"
#include "cpu/floats.h"
#include "ops/ops.h"

namespace tessera::cpu {

void fast_embed(const ops::EmbedArgs& args);
void fast_draft_input(const ops::DraftInputArgs& args);
void fast_linear(const ops::LinearArgs& args, Arena& scratch);
void fast_mixer(const ops::MixerArgs& args, Arena& scratch);
void fast_combine(const ops::CombineArgs& args);
void fast_gdn(const ops::GdnArgs& args, Arena& scratch);
void fast_ngram_gather(const ops::NgramGatherArgs& args);
void fast_ple_mix(const ops::PleMixArgs& args, Arena& scratch);
void fast_qsa_front(const ops::QsaFrontArgs& args, Arena& scratch);
void fast_qsa_select(const ops::QsaSelectArgs& args, Arena& scratch);
void fast_qsa_attend(const ops::QsaAttendArgs& args, Arena& scratch);
void fast_router(const ops::RouterArgs& args, Arena& scratch);
void fast_experts(const ops::ExpertsArgs& args, Arena& scratch);

/// "avx512+vbmi", "avx512", "avx2+fma" or "baseline": what the kernels use on this machine.
const char* simd_level();

}  // namespace tessera::cpu
