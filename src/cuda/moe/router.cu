// SPDX-License-Identifier: Apache-2.0
// Router: logits of all experts and the shared gate, then exact top-k with weights.
#include <array>
#include <stdexcept>
#include <utility>

#include "cuda/cuda_kernels.h"
#include "cuda/linear/gemm.h"
#include "cuda/moe/router_kernel.cuh"

namespace tessera::cuda {
namespace {

constexpr char kMailbox = 0;  // its address names the mailbox

struct SelectTile {
  static constexpr int kWarps = 4;
};
template <class Type>
struct ProductTile {
  using Weight = Type;
  static constexpr int kWarps = 8;
};

template <size_t kIndex>
struct FusedTile {
  static constexpr int kHidden = moe::kRouterHiddens[kIndex];
  static constexpr int kChunks = kHidden / 32;
  static constexpr int kWarps = kChunks < 8 ? kChunks : 8;
};

struct FusedKernel {
  void (*kernel)(ops::RouterArgs, device::RouterMailbox*);
  int threads;
};
template <size_t... kIndices>
constexpr auto fused_table(std::index_sequence<kIndices...>) {
  return std::array{FusedKernel{device::router_fused<FusedTile<kIndices>>,
                                FusedTile<kIndices>::kWarps * device::kWarp}...};
}

void select(Context& context, const ops::RouterArgs& args) {
  const auto blocks = static_cast<unsigned>(moe::ceil_div(args.rows, SelectTile::kWarps));
  launch(context, {.grid = {blocks}, .block = {SelectTile::kWarps * device::kWarp}},
         device::router_select<SelectTile>, args);
}

template <class Type>
void products_of(Context& context, const void* x, const ops::LinearWeight& weight, float* y,
                 int rows) {
  using Tile = ProductTile<Type>;
  const size_t items = static_cast<size_t>(rows) * static_cast<size_t>(weight.out_features);
  const auto blocks = static_cast<unsigned>((items + Tile::kWarps - 1) / Tile::kWarps);
  launch(context, {.grid = {blocks}, .block = {Tile::kWarps * device::kWarp}},
         device::router_products<Tile>, static_cast<const device::Bf16*>(x), weight, y, rows);
}

void products(Context& context, const void* x, const ops::LinearWeight& weight, float* y,
              int rows) {
  switch (weight.dtype) {
    case DType::kF32: return products_of<float>(context, x, weight, y, rows);
    case DType::kBF16: return products_of<device::Bf16>(context, x, weight, y, rows);
    case DType::kF8E4M3: return products_of<device::F8>(context, x, weight, y, rows);
    default: throw std::logic_error("router weights must be F32, BF16 or FP8");
  }
}

/// Generated rows: the fused kernel where the gate has the released form.
void fused(Context& context, const ops::RouterArgs& args) {
  static const auto kKernels = fused_table(std::make_index_sequence<moe::kRouterHiddens.size()>());
  size_t index = 0;
  while (moe::kRouterHiddens[index] != args.gate.in_features) ++index;
  const bool with_selection =
      args.rows <= moe::kFusedSelectRows && args.num_experts <= moe::kRegisterExperts;
  auto* mailbox = static_cast<device::RouterMailbox*>(
      context.persistent(&kMailbox, sizeof(device::RouterMailbox)));
  const auto tiles =
      static_cast<unsigned>(moe::ceil_div(args.num_experts + 1, moe::kRouterTileRows));
  const auto passes = static_cast<unsigned>(moe::ceil_div(args.rows, moe::kRouterPassRows));
  launch(context,
         {.grid = {tiles, passes}, .block = {static_cast<unsigned>(kKernels[index].threads)}},
         kKernels[index].kernel, args, with_selection ? mailbox : nullptr);
  if (!with_selection) select(context, args);
}

}  // namespace

void launch_router(Context& context, const ops::RouterArgs& args) {
  if (args.rows == 0) return;
  const bool fast =
      moe::why_not_fused_router(args.gate.in_features, args.gate.dtype, args.shared_gate.dtype)
          .empty();
  if (args.role == ops::Role::kDecode && fast) return fused(context, args);
  // A matrix product pays for prompts; F32 gates stay exact, which only small models have.
  if (args.role == ops::Role::kPrefill && args.gate.dtype != DType::kF32)
    gemm_prefill(context, args.x, args.rows, args.gate, args.logits, ops::Output::kFloat);
  else
    products(context, args.x, args.gate, args.logits, args.rows);
  products(context, args.x, args.shared_gate, args.shared_logit, args.rows);
  select(context, args);
}

ops::KernelNote note_router(const GpuSpec&) {
  return {.op = "router",
          .kernel = "logits and selection in one launch",
          .reason = "BF16 gates of the released and small sizes; prompts and others in several"};
}

}  // namespace tessera::cuda
