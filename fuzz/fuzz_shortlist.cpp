// SPDX-License-Identifier: Apache-2.0
// Shortlists are untrusted: raw bytes, and bytes behind a right checksum.
#include <tessera/shortlist.h>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  std::vector<std::byte> file(input.begin(), input.end());
  if (data[0] % 2 == 1) reseal_shortlist(file);
  const auto list = decode_shortlist(file, "fuzz");
  if (!list) {
    if (list.error().what.empty()) std::abort();
    return 0;
  }
  // What is accepted must describe exactly the bytes that were read.
  if (list->ids.empty() || encode_shortlist(*list) != file) std::abort();
  return 0;
}
