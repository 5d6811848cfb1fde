// SPDX-License-Identifier: Apache-2.0
// Entry points of the reference ops, one file per family.
#pragma once

#include "cpu/floats.h"
#include "ops/ops.h"

namespace tessera::cpu::reference {

void embed(const ops::EmbedArgs& args);
void draft_input(const ops::DraftInputArgs& args);
void linear(const ops::LinearArgs& args);
void mixer(const ops::MixerArgs& args);
void combine(const ops::CombineArgs& args);
void gdn(const ops::GdnArgs& args);
void ngram_gather(const ops::NgramGatherArgs& args);
void ple_mix(const ops::PleMixArgs& args);
void qsa_front(const ops::QsaFrontArgs& args);
void qsa_select(const ops::QsaSelectArgs& args);
void qsa_attend(const ops::QsaAttendArgs& args);
void router(const ops::RouterArgs& args);
void experts(const ops::ExpertsArgs& args);

}  // namespace tessera::cpu::reference
