// SPDX-License-Identifier: Apache-2.0
// How CUDA benches measure and report. A bench file registers one function:
//
//   void bench_mixer(World& world, Report& report) {
//     const Case mixer{.name = "mixer 4 rows", .cost = cost(args[0]), .goal_us = 7.7};
//     report.measure(mixer, sets, [&](int set) { world.ops().mixer(args[set]); });
//   }
//   const Registration kMixer{"mixer", bench_mixer};
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/cuda/world.h"

namespace tessera::bench {

struct Case {
  std::string name{};
  /// Least traffic and arithmetic of one call, with activations of two bytes. NOTE: ops::cost reads
  /// ids and block lists on the host, so hand it host copies or count by hand.
  ops::Cost cost{};
  double floor_us = 0;    // 0: the larger of bytes and flops over the measured ceilings
  double goal_us = 0;     // 0: none
  double goal_ratio = 0;  // time over floor that is still good; 0: none
  bool graph = true;      // false: direct launches (prefill; ops that cannot be captured)
  double budget_ms = 60;  // device time spent on measuring
};

struct Timing {
  double us = 0;  // median over replays, per call
  double best_us = 0;
  double worst_us = 0;
  int calls = 0;  // per replay
};

/// Rates that this device reached in this process.
struct Ceilings {
  double copy_bytes_per_s = 0;  // device to device, bytes read plus bytes written
  double bf16_flops_per_s = 0;  // 0: cuBLASLt is not here
};

/// Takes a second; the buffers of `world` are gone afterwards.
Ceilings measure_ceilings(World& world);

/// Does the name hold one of the parts? No parts: every name does.
bool is_selected(std::string_view name, const std::vector<std::string>& parts);

class Report {
 public:
  /// `json` may be null. `cases`: parts of "heading name" of the cases
  /// to measure; empty: all.
  Report(World& world, const Ceilings& ceilings, std::FILE* json, std::vector<std::string> cases)
      : world_(world), ceilings_(ceilings), json_(json), cases_(std::move(cases)) {}

  const Ceilings& ceilings() const { return ceilings_; }
  double floor_us(const Case& data) const;

  /// Times run(set) for set = 0, 1, .. sets - 1, 0, .. : the calls of one CUDA graph, so that the
  /// gaps between launches are those of real decoding. `sets` must cover more than the L2
  /// (World::sets_for). Nothing is printed.
  Timing time(const Case& data, int sets, const std::function<void(int set)>& run);

  /// Times and prints one line, unless other cases were asked for; `baseline` is the time of the
  /// same work done in another way (naive kernel, cuBLASLt) in this process.
  Timing measure(const Case& data, int sets, const std::function<void(int set)>& run,
                 std::optional<Timing> baseline = {}, const char* baseline_name = "");

  void heading(const std::string& text);
  int missed() const { return missed_; }

 private:
  void print(const Case& data, const Timing& timing, std::optional<Timing> baseline,
             const char* baseline_name);

  World& world_;
  Ceilings ceilings_;
  std::FILE* json_;
  std::vector<std::string> cases_;
  std::string group_{};
  int missed_ = 0;
};

struct Registration {
  using Run = void (*)(World& world, Report& report);
  Registration(const char* bench_name, Run bench);

  const char* name;
  Run run;
};
const std::vector<Registration>& registrations();

}  // namespace tessera::bench
