// SPDX-License-Identifier: Apache-2.0
// Device buffers of the benches and the kernel tests.
#include "bench/cuda/world.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "bench/cuda/fill.h"
#include "cuda/check.h"
#include "cuda/cuda_backend.h"

namespace tessera::bench {
namespace {

constexpr float kMaxE4M3 = 448;
constexpr double kL2Multiple = 3;  // data of a bench against the size of the second-level cache
constexpr int kMaxSets = 512;

/// Half width of a uniform distribution with this standard deviation.
float half_width(double deviation) { return static_cast<float>(deviation * std::sqrt(3.0)); }

}  // namespace

World::World(bool pdl) {
  const cuda::Options options{.pdl = pdl};
  const std::string reason = cuda::why_unusable(options.device);
  if (!reason.empty()) throw std::runtime_error("CUDA device: " + reason);
  ops_ = cuda::make_ops(options);
  context_ = &cuda::context_of(*ops_);
  stream_ = context_->stream();
  device_name_ = cuda::describe_device(options.device);
}

World::~World() {
  cudaStreamSynchronize(stream_);
  for (void* buffer : buffers_) cudaFree(buffer);
}

std::byte* World::bytes(size_t count) {
  void* data = nullptr;
  cuda::check(cudaMalloc(&data, std::max<size_t>(count, 1)));
  buffers_.push_back(data);
  return static_cast<std::byte*>(data);
}

void World::copy_in(void* to, const void* host_from, size_t count) {
  ops_->memory().copy_in(to, host_from, count);
}

void World::copy_out(void* host_to, const void* from, size_t count) {
  ops_->memory().copy_out(host_to, from, count);
}

void World::fill(DType dtype, void* data, size_t count, double scale) {
  fill_uniform(stream_, dtype, data, count, 0, half_width(scale), seed_++);
}

void* World::bf16(size_t count, double scale) {
  void* data = bytes(count * sizeof(uint16_t));
  fill(DType::kBF16, data, count, scale);
  return data;
}

float* World::floats(size_t count, double scale, double mean) {
  auto* data = reinterpret_cast<float*>(bytes(count * sizeof(float)));
  fill_uniform(stream_, DType::kF32, data, count, static_cast<float>(mean), half_width(scale),
               seed_++);
  return data;
}

ops::LinearWeight World::weight(DType dtype, int out_features, int in_features, double gain) {
  ops::LinearWeight weight{
      .dtype = dtype, .out_features = out_features, .in_features = in_features};
  std::byte* data = bytes(weight.bytes());
  weight.data = data;
  const size_t count = static_cast<size_t>(out_features) * static_cast<size_t>(in_features);
  const double deviation = gain / std::sqrt(static_cast<double>(in_features));
  if (dtype != DType::kF8E4M3) {
    fill(dtype, data, count, deviation);
    return weight;
  }
  fill_uniform(stream_, dtype, data, count, 0, kMaxE4M3, seed_++);
  const size_t scales =
      static_cast<size_t>((out_features + ops::kScaleBlock - 1) / ops::kScaleBlock) *
      static_cast<size_t>(weight.scale_cols());
  const double scale = deviation / (double{kMaxE4M3} / std::sqrt(3.0));
  weight.scale = floats(scales, scale / 4, scale);
  return weight;
}

std::vector<ops::ExpertWeight> World::experts(DType dtype, int count, int hidden, int width) {
  // One tall matrix per role, cut into experts: [gate | up] of each, then down of each.
  const ops::LinearWeight gate_up = weight(dtype, count * 2 * width, hidden);
  const ops::LinearWeight down = weight(dtype, count * hidden, width);
  const auto cut = [](const ops::LinearWeight& whole, int first, int rows) {
    ops::LinearWeight part = whole;
    part.data =
        static_cast<const std::byte*>(whole.data) + static_cast<size_t>(first) * whole.row_bytes();
    if (whole.scale != nullptr)
      part.scale = whole.scale + static_cast<size_t>(first / ops::kScaleBlock) *
                                     static_cast<size_t>(whole.scale_cols());
    part.out_features = rows;
    return part;
  };
  if (dtype == DType::kF8E4M3 && (width % ops::kScaleBlock != 0 || hidden % ops::kScaleBlock != 0))
    throw std::logic_error("experts of these sizes do not start at a scale block");
  std::vector<ops::ExpertWeight> experts;
  for (int expert = 0; expert < count; ++expert)
    experts.push_back({.gate = cut(gate_up, 2 * expert * width, width),
                       .up = cut(gate_up, (2 * expert + 1) * width, width),
                       .down = cut(down, expert * hidden, hidden)});
  return experts;
}

int World::sets_for(double bytes_per_set) const {
  const double sets = kL2Multiple * static_cast<double>(gpu().l2_bytes) / bytes_per_set;
  return std::clamp(static_cast<int>(std::ceil(sets)) + 1, 2, kMaxSets);
}

void World::clear() {
  cuda::check(cudaStreamSynchronize(stream_));
  for (void* buffer : buffers_) cuda::check(cudaFree(buffer));
  buffers_.clear();
}

}  // namespace tessera::bench
