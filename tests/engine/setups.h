// SPDX-License-Identifier: Apache-2.0
// Which models on which backends the tests of drafting run: each test binary has its own list.
#pragma once

#include <gtest/gtest.h>
#include <tessera/engine.h>

#include <filesystem>
#include <span>
#include <string>

namespace tessera::test {

struct Setup {
  const char* name;
  const char* model;
  const char* device = "cpu";
  OpsKind ops = OpsKind::kFast;
  RoundDriver rounds = RoundDriver::kHost;
  /// Why it cannot run on this machine, empty when it can; nullptr: it always can.
  std::string (*unusable)() = nullptr;
};

/// Defined by each test binary: for texts, and for launches and the state they leave.
std::span<const Setup> draft_setups();
std::span<const Setup> state_setups();

inline void PrintTo(const Setup& setup, std::ostream* out) { *out << setup.name; }

inline std::string setup_name(const testing::TestParamInfo<Setup>& info) { return info.param.name; }

inline EngineOptions options_of(const Setup& setup, int max_context = 0) {
  EngineOptions options;
  options.model_dir = setup.model;
  options.device = setup.device;
  options.ops = setup.ops;
  options.rounds = setup.rounds;
  options.max_context = max_context;
  return options;
}

/// Why a test of `setup` is skipped here.
inline std::string why_skipped(const Setup& setup) {
  if (setup.unusable != nullptr)
    if (std::string reason = setup.unusable(); !reason.empty()) return reason;
  const std::string dir = setup.model;
  return std::filesystem::exists(dir + "/config.json") ? "" : dir + " is not on this machine";
}

}  // namespace tessera::test
