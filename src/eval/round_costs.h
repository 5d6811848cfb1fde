// SPDX-License-Identifier: Apache-2.0
// Bytes of whole engine rounds, told apart by their launches of the trunk.
#pragma once

#include <map>

#include "eval/profiling_ops.h"

namespace tessera {

/// A round begins with the embedding of its trunk launch and lasts until the next one: the draft
/// layer embeds its tokens by another op. NOTE: for one that runs at a time, read when it is done.
class RoundCosts final : public ProfilingOps {
 public:
  explicit RoundCosts(ops::Ops& inner) : ProfilingOps(inner) {}

  void embed(const ops::EmbedArgs& args) override;

  /// Mean bytes, read and written, of the rounds since `restart` whose trunk launch had so many
  /// rows; 0 when there was none. The last round is not among them: nothing says that it is whole.
  double bytes_per_round(int rows) const;
  void restart();

 private:
  struct Rounds {
    int count = 0;
    double bytes = 0;
  };
  std::map<int, Rounds> rounds_{};  // by the rows of the trunk launch
  int current_rows_ = 0;            // 0: no round has begun
};

}  // namespace tessera
