// SPDX-License-Identifier: Apache-2.0
// Entry points of the CUDA ops, one folder per op. They enqueue work on the context's stream and
// return; nothing here synchronises or allocates beyond Context::scratch.
#pragma once

#include "cuda/context.h"
#include "ops/ops.h"

namespace tessera::cuda {

void launch_embed(Context& context, const ops::EmbedArgs& args);
void launch_draft_input(Context& context, const ops::DraftInputArgs& args);
void launch_linear(Context& context, const ops::LinearArgs& args);
void launch_mixer(Context& context, const ops::MixerArgs& args);
void launch_combine(Context& context, const ops::CombineArgs& args);
void launch_gdn(Context& context, const ops::GdnArgs& args);
void launch_ngram_ids(Context& context, const ops::NgramIdsArgs& args);
void launch_ngram_gather(Context& context, const ops::NgramGatherArgs& args);
void launch_ple_mix(Context& context, const ops::PleMixArgs& args);
void launch_qsa_front(Context& context, const ops::QsaFrontArgs& args);
void launch_qsa_select(Context& context, const ops::QsaSelectArgs& args);
void launch_qsa_attend(Context& context, const ops::QsaAttendArgs& args);
void launch_router(Context& context, const ops::RouterArgs& args);
void launch_experts(Context& context, const ops::ExpertsArgs& args);
void launch_finish(Context& context, const ops::FinishArgs& args);
/// Waits for its results.
void launch_sample(Context& context, const ops::SampleArgs& args);
void launch_draw(Context& context, const ops::DrawArgs& args);
void launch_accept(Context& context, const ops::AcceptArgs& args);
void launch_take_drafts(Context& context, const ops::TakeDraftsArgs& args);
void launch_advance(Context& context, const ops::AdvanceArgs& args);

/// Which kernel an op uses for the model's shapes on this device, and why: printed at start. One
/// function per op folder.
ops::KernelNote note_embed(const GpuSpec& gpu);
ops::KernelNote note_draft_input(const GpuSpec& gpu);
ops::KernelNote note_linear(const GpuSpec& gpu);
ops::KernelNote note_mixer(const GpuSpec& gpu);
ops::KernelNote note_combine(const GpuSpec& gpu);
ops::KernelNote note_gdn(const GpuSpec& gpu);
ops::KernelNote note_finish(const GpuSpec& gpu);
ops::KernelNote note_ngram(const GpuSpec& gpu);
ops::KernelNote note_ple_mix(const GpuSpec& gpu);
ops::KernelNote note_qsa_front(const GpuSpec& gpu);
ops::KernelNote note_qsa_select(const GpuSpec& gpu);
ops::KernelNote note_qsa_attend(const GpuSpec& gpu);
ops::KernelNote note_router(const GpuSpec& gpu);
ops::KernelNote note_experts(const GpuSpec& gpu);
ops::KernelNote note_sample(const GpuSpec& gpu);
ops::KernelNote note_round(const GpuSpec& gpu);

}  // namespace tessera::cuda
