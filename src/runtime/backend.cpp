// SPDX-License-Identifier: Apache-2.0
// The only file that knows which backends are built in.
#include "runtime/backend.h"

#include <charconv>
#include <optional>
#include <string>
#include <string_view>

#include "cpu/cpu_ops.h"
#if TESSERA_HAS_CUDA
#include "cuda/cuda_backend.h"
#endif

namespace tessera {
namespace {

constexpr std::string_view kCuda = "cuda";

#if TESSERA_HAS_CUDA
constexpr const char* kDevices = "cpu, cuda or cuda:N";
#else
constexpr const char* kDevices = "cpu";
#endif

tl::unexpected<Error> unsupported(std::string what, std::string found, std::string hint) {
  return fail({.code = Errc::kUnsupported,
               .what = std::move(what),
               .where = "device",
               .expected = kDevices,
               .found = std::move(found),
               .hint = std::move(hint)});
}

/// N of "cuda:N", 0 of "cuda".
std::optional<int> cuda_index(std::string_view device) {
  if (device == kCuda) return 0;
  if (!device.starts_with(kCuda) || device.substr(kCuda.size(), 1) != ":") return std::nullopt;
  const std::string_view digits = device.substr(kCuda.size() + 1);
  int index = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), index);
  if (error != std::errc() || end != digits.end() || index < 0) return std::nullopt;
  return index;
}

}  // namespace

Result<std::unique_ptr<ops::Ops>> make_backend(const EngineOptions& options) {
  if (options.device == "cpu")
    return options.ops == OpsKind::kFast ? cpu::make_fast_ops() : cpu::make_reference_ops();
  const std::optional<int> index = cuda_index(options.device);
  if (!index) return unsupported("unknown device", options.device, "");
#if TESSERA_HAS_CUDA
  if (options.ops == OpsKind::kReference)
    return unsupported("reference ops run on the CPU only", options.device,
                       "leave out --ops, or use --device cpu");
  if (const std::string reason = cuda::why_unusable(*index); !reason.empty())
    return fail({.code = Errc::kUnsupported,
                 .what = "the CUDA device cannot be used",
                 .where = "--device " + options.device,
                 .expected = "an NVIDIA GPU of compute capability 8.0 or newer and its driver",
                 .found = reason,
                 .hint = "--device cpu works everywhere"});
  return cuda::make_ops(
      {.device = *index, .pdl = options.overlap_kernels, .graphs = options.record_steps});
#else
  return unsupported("this program was built without CUDA", options.device,
                     "build it where nvcc is installed, or use --device cpu");
#endif
}

Result<DType> cache_dtype(CacheType type, const ops::Ops& ops) {
  const bool on_device = ops.traits().activation == DType::kBF16;
  switch (type) {
    case CacheType::kAuto: return on_device ? DType::kBF16 : DType::kF32;
    case CacheType::kBF16: return DType::kBF16;
    case CacheType::kF32:
      if (!on_device) return DType::kF32;
      break;
    case CacheType::kF8:
      if (on_device) return DType::kF8E4M3;
      break;
  }
  return fail({.code = Errc::kUnsupported,
               .what = "unsupported storage of keys and values",
               .where = "kv-cache-dtype",
               .expected = on_device ? "bf16 or fp8" : "f32 or bf16",
               .found = type == CacheType::kF32 ? "f32" : "fp8",
               .hint = on_device ? "devices keep BF16 activations" : "fp8 needs a device"});
}

}  // namespace tessera
