// SPDX-License-Identifier: Apache-2.0
// A backend is one implementation of every op. The model calls this and sees no thread, stream or
// graph.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ops/embed.h"
#include "ops/gdn.h"
#include "ops/linear.h"
#include "ops/mixer.h"
#include "ops/moe.h"
#include "ops/ple.h"
#include "ops/qsa.h"

namespace tessera::ops {

/// Which version of an op runs here, and why; printed at start and by `tessera info`.
struct KernelNote {
  std::string op{};
  std::string kernel{};
  std::string reason{};
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual std::string_view name() const = 0;
  virtual std::vector<KernelNote> kernels() const = 0;

  virtual void embed(const EmbedArgs& args) = 0;
  virtual void linear(const LinearArgs& args) = 0;
  virtual void mixer(const MixerArgs& args) = 0;
  virtual void combine(const CombineArgs& args) = 0;
  virtual void gdn(const GdnArgs& args) = 0;
  virtual void ngram_gather(const NgramGatherArgs& args) = 0;
  virtual void ple_mix(const PleMixArgs& args) = 0;
  virtual void qsa_front(const QsaFrontArgs& args) = 0;
  virtual void qsa_select(const QsaSelectArgs& args) = 0;
  virtual void qsa_attend(const QsaAttendArgs& args) = 0;
  virtual void router(const RouterArgs& args) = 0;
  virtual void experts(const ExpertsArgs& args) = 0;
};

}  // namespace tessera::ops
