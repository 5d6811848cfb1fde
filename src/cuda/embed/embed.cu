// SPDX-License-Identifier: Apache-2.0
// Token embedding: one block per row of the launch copies a table row into every branch.
#include "cuda/cuda_kernels.h"
#include "cuda/device/bf16.cuh"
#include "cuda/device/pdl.cuh"
#include "cuda/embed/embed_plan.h"
#include "cuda/embed/table_row.cuh"

namespace tessera::cuda {
namespace {

struct EmbedKernelArgs {
  const int32_t* ids = nullptr;  // [rows]
  ops::LinearWeight table;
  device::Bf16* wide = nullptr;  // [rows, branches * hidden]
  int branches = 0;
};

/// BF16 table, rows of whole 16-byte vectors.
struct EmbedVectors {
  static constexpr int kThreads = kEmbedThreads;
  static __device__ void copy_row(const EmbedKernelArgs& args, int id, device::Bf16* to) {
    const int vectors = args.table.in_features / device::kVectorBf16;
    const auto* from =
        static_cast<const uint4*>(args.table.data) + static_cast<size_t>(id) * vectors;
    auto* out = reinterpret_cast<uint4*>(to);
    for (int vector = static_cast<int>(threadIdx.x); vector < vectors; vector += kThreads) {
      const uint4 value = __ldg(from + vector);
      for (int branch = 0; branch < args.branches; ++branch)
        out[static_cast<size_t>(branch) * vectors + vector] = value;
    }
  }
};

struct EmbedElements {
  static constexpr int kThreads = kEmbedThreads;
  static __device__ void copy_row(const EmbedKernelArgs& args, int id, device::Bf16* to) {
    const int hidden = args.table.in_features;
    const device::TableRow row(args.table, id);
    for (int col = static_cast<int>(threadIdx.x); col < hidden; col += kThreads) {
      const float value = row.at(col);
      for (int branch = 0; branch < args.branches; ++branch)
        to[static_cast<size_t>(branch) * hidden + col] = device::from_float<device::Bf16>(value);
    }
  }
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads)
    embed_rows(const __grid_constant__ EmbedKernelArgs args) {
  device::wait_for_inputs();
  device::allow_next_kernel();
  const size_t row = blockIdx.x;
  const size_t width = static_cast<size_t>(args.branches) * args.table.in_features;
  Config::copy_row(args, args.ids[row], args.wide + row * width);
}

template <class Config>
void launch_config(Context& context, int rows, const EmbedKernelArgs& args) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(rows)),
                          .block = dim3(Config::kThreads)};
  launch(context, shape, embed_rows<Config>, args);
}

}  // namespace

void launch_embed(Context& context, const ops::EmbedArgs& args) {
  const EmbedKernelArgs kernel_args{.ids = args.ids,
                                    .table = args.table,
                                    .wide = static_cast<device::Bf16*>(args.wide),
                                    .branches = args.branches};
  if (supports_embed_vectors(args).empty())
    launch_config<EmbedVectors>(context, args.rows, kernel_args);
  else
    launch_config<EmbedElements>(context, args.rows, kernel_args);
}

ops::KernelNote note_embed(const GpuSpec&) {
  return {.op = "embed",
          .kernel = "16-byte copies",
          .reason = "BF16 table with rows of whole vectors; others: element by element"};
}

}  // namespace tessera::cuda
