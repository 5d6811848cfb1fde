// SPDX-License-Identifier: Apache-2.0
// The op suite against the fast CPU backend.
#include "cpu/cpu_ops.h"
#include "cpu/op_fixture.h"

namespace tessera::test {

std::span<const Backend> backends() {
  static constexpr Backend kBackends[] = {{"fast", cpu::make_fast_ops}};
  return kBackends;
}

}  // namespace tessera::test
