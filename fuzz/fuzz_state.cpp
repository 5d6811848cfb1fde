// SPDX-License-Identifier: Apache-2.0
// State files are untrusted: raw bytes, bytes behind a right checksum, and edits of a valid file.
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "../tests/runtime/state_fixture.h"
#include "runtime/state_file.h"

namespace tessera {
namespace {

using namespace state_fixture;

constexpr int32_t kPages = 4;
constexpr int kTokens = 70;
constexpr size_t kEditHeader = 3;  // offset (2 bytes), count

enum class Mode : uint8_t { kRaw, kResealed, kEdited, kCount };

struct Target {
  StateLayout layout = tiny_layout();
  std::shared_ptr<PagePool> pool = make_pool(layout, kPages);
  StateIdentity identity = identity_of(layout);
  std::vector<std::byte> valid{};

  Target() {
    SequenceStore store(layout, pool, 1);
    const SequenceId id = store.create().value();
    if (!store.reserve(id, kTokens)) std::abort();
    store.commit(id, std::vector<int32_t>(kTokens, 1));
    valid = encode(*store.snapshot(id), identity);
  }
};

/// Overwrites pieces of a valid file; the last edit may also cut it or make it longer.
std::vector<std::byte> edit(std::vector<std::byte> file, std::span<const std::byte> edits) {
  while (edits.size() >= kEditHeader) {
    uint16_t offset = 0;
    std::memcpy(&offset, edits.data(), sizeof(offset));
    const auto count = std::min(static_cast<size_t>(edits[2]), edits.size() - kEditHeader);
    edits = edits.subspan(kEditHeader);
    const size_t place = offset % file.size();
    if (place + count > file.size()) file.resize(place + count);
    std::memcpy(file.data() + place, edits.data(), count);
    edits = edits.subspan(count);
  }
  if (!edits.empty() && static_cast<size_t>(edits[0]) < file.size())
    file.resize(file.size() - static_cast<size_t>(edits[0]));
  return file;
}

void check(const Target& target, std::span<const std::byte> file) {
  const auto loaded = decode_state(file, target.identity, target.pool, "fuzz");
  if (!loaded) {
    if (loaded.error().what.empty() || target.pool->used() != 0) std::abort();
    return;
  }
  // What is accepted must describe exactly the bytes that were read.
  const std::vector<std::byte> again = encode(**loaded, target.identity);
  if (again.size() != file.size() || std::memcmp(again.data(), file.data(), file.size()) != 0)
    std::abort();
  SequenceStore store(target.layout, target.pool, 1);
  const SequenceId id = store.restore(**loaded).value();
  if (store.length(id) != static_cast<int64_t>((*loaded)->tokens().size())) std::abort();
  store.destroy(id);
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  static const Target target;
  if (size == 0) return 0;
  const auto mode = static_cast<Mode>(data[0] % static_cast<uint8_t>(Mode::kCount));
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  std::vector<std::byte> file(input.begin(), input.end());
  if (mode == Mode::kEdited) file = edit(target.valid, input);
  if (mode != Mode::kRaw) reseal_state(file);
  check(target, file);
  return 0;
}
