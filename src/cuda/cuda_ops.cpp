// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: forwards every op to its launcher.
#include <string>

#include "cuda/cuda_backend.h"
#include "cuda/cuda_kernels.h"
#include "cuda/runtime_context.h"

namespace tessera::cuda {
namespace {

constexpr int kOldestMajor = 8;  // BF16 tensor cores and asynchronous copies

class CudaOps final : public ops::Ops {
 public:
  explicit CudaOps(const Options& options)
      : name_("cuda: " + describe_device(options.device)), context_(options) {}

  std::string_view name() const override { return name_; }
  std::vector<ops::KernelNote> kernels() const override {
    std::vector<ops::KernelNote> notes;
    for (const auto note :
         {note_embed, note_draft_input, note_linear, note_mixer, note_combine, note_gdn, note_ngram,
          note_ple_mix, note_qsa_front, note_qsa_select, note_qsa_attend, note_router, note_experts,
          note_finish, note_sample, note_round})
      notes.push_back(note(context_.gpu()));
    return notes;
  }
  ops::Traits traits() const override {
    return {.activation = DType::kBF16,
            .index_key = DType::kBF16,
            .combine_norms = true,
            .drafts = true,
            .rounds = true};
  }
  Memory& memory() override { return context_.memory(); }
  ops::LaunchBuffers begin(const ops::LaunchInputs& inputs) override {
    return context_.begin(inputs);
  }
  void repeat(const ops::StepKey& key, const std::function<void()>& ops) override {
    context_.repeat(key, ops);
  }
  void forget_repeats() override { context_.forget_steps(); }
  int repeated_kernels() const override { return context_.repeated_kernels(); }
  int64_t first_repeats() const override { return context_.first_repeats(); }

  void embed(const ops::EmbedArgs& args) override { launch_embed(context_, args); }
  void draft_input(const ops::DraftInputArgs& args) override { launch_draft_input(context_, args); }
  void linear(const ops::LinearArgs& args) override { launch_linear(context_, args); }
  void mixer(const ops::MixerArgs& args) override { launch_mixer(context_, args); }
  void combine(const ops::CombineArgs& args) override { launch_combine(context_, args); }
  void gdn(const ops::GdnArgs& args) override { launch_gdn(context_, args); }
  void ngram_ids(const ops::NgramIdsArgs& args) override { launch_ngram_ids(context_, args); }
  void ngram_gather(const ops::NgramGatherArgs& args) override {
    launch_ngram_gather(context_, args);
  }
  void ple_mix(const ops::PleMixArgs& args) override { launch_ple_mix(context_, args); }
  void qsa_front(const ops::QsaFrontArgs& args) override { launch_qsa_front(context_, args); }
  void qsa_select(const ops::QsaSelectArgs& args) override { launch_qsa_select(context_, args); }
  void qsa_attend(const ops::QsaAttendArgs& args) override { launch_qsa_attend(context_, args); }
  void router(const ops::RouterArgs& args) override { launch_router(context_, args); }
  void experts(const ops::ExpertsArgs& args) override { launch_experts(context_, args); }
  void finish(const ops::FinishArgs& args) override { launch_finish(context_, args); }
  void sample(const ops::SampleArgs& args) override { launch_sample(context_, args); }

  ops::RoundState begin_round(const ops::RoundInputs& inputs) override {
    return context_.begin_round(inputs);
  }
  ops::RoundRows use_rows(ops::RoundPart part, int spans, int rows) override {
    return context_.use_rows(part, spans, rows);
  }
  void draw(const ops::DrawArgs& args) override { launch_draw(context_, args); }
  void accept(const ops::AcceptArgs& args) override { launch_accept(context_, args); }
  void take_drafts(const ops::TakeDraftsArgs& args) override { launch_take_drafts(context_, args); }
  void advance(const ops::AdvanceArgs& args) override { launch_advance(context_, args); }
  void end_round() override { context_.end_round(); }
  ops::RoundReport read_round() override { return context_.read_round(); }

  Context& context() { return context_; }
  CUstream_st* stream() const { return context_.stream(); }

 private:
  std::string name_;
  RuntimeContext context_;
};

}  // namespace

std::string why_unusable(int device) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  if (count == 0) return "no CUDA device";
  if (device < 0 || device >= count)
    return "device " + std::to_string(device) + " of " + std::to_string(count);
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
    return "its compute capability cannot be read";
  if (major < kOldestMajor) return "compute capability below 8.0";
  return why_no_code(device);
}

std::unique_ptr<ops::Ops> make_ops(const Options& options) {
  return std::make_unique<CudaOps>(options);
}

Context& context_of(ops::Ops& ops) { return dynamic_cast<CudaOps&>(ops).context(); }

CUstream_st* stream_of(ops::Ops& ops) { return dynamic_cast<CudaOps&>(ops).stream(); }

std::string describe_device(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device));
  constexpr size_t kGib = size_t{1} << 30;
  return std::string(properties.name) + ", sm_" + std::to_string(properties.major) +
         std::to_string(properties.minor) + ", " +
         std::to_string(properties.totalGlobalMem / kGib) + " GiB";
}

}  // namespace tessera::cuda
