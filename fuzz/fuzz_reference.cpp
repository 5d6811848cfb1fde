// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as reference.json: an error, or cases that verify can compare.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "eval/reference_file.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

bool are_ids(const std::vector<int32_t>& ids) {
  return std::all_of(ids.begin(), ids.end(), [](int32_t id) { return id >= 0; });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto reference = tessera::parse_reference_file(text, "fuzz");
  if (!reference) return 0;
  for (const tessera::ReferenceCase& entry : reference->cases) {
    require(are_ids(entry.prompt) && are_ids(entry.output));
    require(entry.margin.empty() || entry.margin.size() == entry.output.size());
  }
  for (const tessera::ReferenceText& scored : reference->texts) require(scored.tokens >= 2);
  return 0;
}
