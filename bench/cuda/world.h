// SPDX-License-Identifier: Apache-2.0
// What a CUDA bench works on: the backend and device buffers of random data in the shapes of the
// model. Everything lives until the World ends or `clear` is called.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/context.h"
#include "ops/ops.h"

namespace tessera::bench {

/// Sizes of the released model.
inline constexpr int kHidden = 2560;
inline constexpr int kBranches = 4;
inline constexpr int kRank = 320;
inline constexpr int kExperts = 512;
inline constexpr int kTopK = 10;
inline constexpr int kExpertWidth = 640;
inline constexpr int kBudgetBlocks = 512;
inline constexpr ops::GdnShape kGdn{
    .key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128, .conv_kernel = 4};
inline constexpr ops::QsaShape kQsa{.heads = 24,
                                    .kv_heads = 2,
                                    .head_dim = 256,
                                    .index_heads = 4,
                                    .index_dim = 128,
                                    .block = 4,
                                    .rotary_dim = 64};
inline constexpr float kEps = 1e-6F;

/// Random data keeps a kernel's power draw and its NaN checks honest: never bench on zeros.
class World {
 public:
  /// Throws std::runtime_error with the reason when there is no usable device.
  explicit World(bool pdl = true);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  ops::Ops& ops() { return *ops_; }
  cudaStream_t stream() const { return stream_; }
  /// For kernels that no op reaches: launchers of cuda_kernels.h and baselines run on this.
  cuda::Context& context() { return *context_; }
  const cuda::GpuSpec& gpu() const { return context_->gpu(); }
  const std::string& device_name() const { return device_name_; }

  /// 256-byte aligned, contents arbitrary.
  std::byte* bytes(size_t count);
  /// Device copy of host values.
  template <class T>
  T* copy(std::span<const T> values) {
    std::byte* data = bytes(values.size_bytes());
    copy_in(data, values.data(), values.size_bytes());
    return reinterpret_cast<T*>(data);
  }
  template <class T>
  T* copy(const std::vector<T>& values) {
    return copy(std::span<const T>(values));
  }
  void copy_in(void* to, const void* host_from, size_t count);
  void copy_out(void* host_to, const void* from, size_t count);

  /// Uniform in mean -+ scale * sqrt(3), so `scale` is the standard deviation.
  void* bf16(size_t count, double scale = 1);
  float* floats(size_t count, double scale = 1, double mean = 0);
  /// Any element type that weights and caches have; E4M3 holds the values rounded.
  void fill(DType dtype, void* data, size_t count, double scale);

  /// Rows of W have unit norm times `gain`, so a product of unit-variance inputs has variance
  /// gain^2. kF8E4M3: full-range codes with one scale per block.
  ops::LinearWeight weight(DType dtype, int out_features, int in_features, double gain = 1);
  /// Equally spaced, as the binder lays the experts of a layer out.
  std::vector<ops::ExpertWeight> experts(DType dtype, int count, int hidden, int width);

  /// Buffer sets that a bench must rotate through so that none is found in the L2 again.
  int sets_for(double bytes_per_set) const;
  void clear();

 private:
  std::unique_ptr<ops::Ops> ops_{};
  cudaStream_t stream_ = nullptr;
  cuda::Context* context_ = nullptr;
  std::string device_name_{};
  std::vector<void*> buffers_{};
  uint64_t seed_ = 1;
};

/// Equal rows of some sequences.
struct RowsSpec {
  int sequences = 1;
  int rows_each = 1;
  int64_t position = 0;  // of the first row of each sequence
  ops::Role role = ops::Role::kDecode;
  size_t slot_bytes = 0;  // of each sequence, zeroed; rotate sets by offsets inside the slot
};

/// A launch: spans whose slots and page tables lie in device memory. Page ids are shuffled over one
/// pool of num_pages() pages; rotate sets by different pools.
class Rows {
 public:
  Rows(World& world, const RowsSpec& spec);

  /// Hands the launch to the backend: before each measure that uses it.
  void begin();
  ops::RowBatch batch() const { return {spans_, num_rows_, role_}; }
  int num_rows() const { return num_rows_; }
  int64_t num_pages() const { return num_pages_; }
  int64_t end_position() const { return end_position_; }

 private:
  World& world_;
  std::vector<ops::RowSpan> spans_{};
  ops::Role role_;
  int num_rows_ = 0;
  int64_t num_pages_ = 0;
  int64_t end_position_ = 0;
};

/// Pages of one layer, filled: K, V (of `dtype`) and index keys (BF16). The rings start at
/// `ring_offset` of every slot; slots need qsa_ring_bytes() from there.
ops::QsaCache qsa_cache(World& world, const ops::QsaShape& shape, DType dtype, int64_t num_pages,
                        size_t ring_offset = 0);
size_t qsa_ring_bytes(const ops::QsaShape& shape);

/// Ring sized as the state table sizes it.
ops::RingRef make_ring(size_t offset, size_t entry_bytes, int reach);

/// Ascending random block lists on the device: `budget` of `visible` blocks for each row; a row
/// shares `overlap` (0..1) of its list with the row before it. Rows of a span are neighbours,
/// `rows_each` of them; the first row of each span is drawn anew.
struct BlockLists {
  int32_t* blocks = nullptr;  // [rows, budget]
  int32_t* counts = nullptr;  // [rows]
  double distinct = 0;        // different blocks summed over the spans
};
BlockLists block_lists(World& world, int spans, int rows_each, int budget, int64_t visible,
                       double overlap);

}  // namespace tessera::bench
