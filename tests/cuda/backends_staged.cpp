// SPDX-License-Identifier: Apache-2.0
// The op suite against the fast CPU backend behind the staging of a device backend: what is copied
// must be complete, and nothing else may be needed.
#include "cpu/cpu_ops.h"
#include "cpu/op_fixture.h"
#include "cuda/staged_ops.h"

namespace tessera::test {
namespace {

std::unique_ptr<ops::Ops> make_staged() { return make_staged_ops(cpu::make_fast_ops()); }

}  // namespace

std::span<const Backend> backends() {
  static constexpr Backend kBackends[] = {{.name = "staged", .make = make_staged}};
  return kBackends;
}

}  // namespace tessera::test
