// SPDX-License-Identifier: Apache-2.0
// The op suite against the reference backend: the oracle itself is tested.
#include "cpu/cpu_ops.h"
#include "cpu/op_fixture.h"

namespace tessera::test {

std::span<const Backend> backends() {
  static constexpr Backend kBackends[] = {{"reference", cpu::make_reference_ops}};
  return kBackends;
}

}  // namespace tessera::test
