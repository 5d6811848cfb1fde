// SPDX-License-Identifier: Apache-2.0
// Snapshots to bytes and back.
#include "runtime/state_codec.h"

#define XXH_STATIC_LINKING_ONLY  // the streaming state lives on the stack
#include <xxhash.h>
#include <algorithm>
#include <cassert>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {
namespace state_codec {

Header header_of(const StateIdentity& identity, uint64_t num_tokens) {
  Header header;
  header.weights = identity.weights;
  header.cache_dtype = static_cast<uint32_t>(identity.layout->cache_dtype());
  header.page_tokens = ops::kPageTokens;
  header.vocab_size = static_cast<uint32_t>(identity.vocab_size);
  header.num_parts = kNumStateParts;
  header.num_tokens = num_tokens;
  return header;
}

PartTable table_of(const StateLayout& layout) {
  PartTable table;
  for (size_t index = 0; index < table.size(); ++index) {
    const StateEntry& entry = layout.entries()[index];
    PartRecord& record = table[index];
    const std::string_view name = entry.name;
    assert(name.size() < kNameBytes);
    std::copy(name.begin(), name.end(), record.name.begin());
    record.rule = static_cast<uint32_t>(entry.rule);
    record.layers = static_cast<uint32_t>(entry.layers.size());
    record.slots = static_cast<uint32_t>(entry.slots);
    record.reach = static_cast<uint32_t>(entry.reach);
    record.entry_bytes = entry.entry_bytes;
  }
  return table;
}

size_t region_bytes(const StateLayout& layout, Storage storage) {
  size_t total = 0;
  for_each_region(layout, storage,
                  [&total](const StateEntry&, int, size_t, size_t bytes) { total += bytes; });
  return total;
}

size_t file_bytes(const StateLayout& layout, int64_t num_tokens) {
  return kFixedBytes + static_cast<size_t>(num_tokens) * sizeof(int32_t) +
         region_bytes(layout, Storage::kSlot) +
         pages_for(num_tokens) * region_bytes(layout, Storage::kPage) + sizeof(Checksum);
}

}  // namespace state_codec

namespace {

using namespace state_codec;

std::string hex(uint64_t value) {
  constexpr int kHexBase = 16;
  std::array<char, 2 * sizeof(value)> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, kHexBase).ptr;
  return "0x" + std::string(digits.data(), end);
}

tl::unexpected<Error> corrupt(std::string what, const std::string& where, uint64_t expected,
                              uint64_t found) {
  return fail({.code = Errc::kCorruptFile,
               .what = std::move(what),
               .where = where,
               .expected = std::to_string(expected),
               .found = std::to_string(found),
               .hint = "the file is damaged or not a state file"});
}

tl::unexpected<Error> mismatch(std::string what, const std::string& where, std::string expected,
                               std::string found) {
  return fail({.code = Errc::kMismatch,
               .what = std::move(what),
               .where = where,
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = "the state was saved by another model, build or configuration"});
}

/// Cursor over bytes whose total size has been checked.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  void read(void* to, size_t count) {
    assert(count <= bytes_.size());
    if (count == 0) return;
    std::memcpy(to, bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
  }
  template <class T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    read(&value, sizeof(T));
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
};

/// Passes bytes on and keeps the checksum of all of them.
class Writer {
 public:
  explicit Writer(const ByteSink& sink) : sink_(sink) { XXH64_reset(&hash_, 0); }

  void write(const void* from, size_t count) {
    if (!ok_ || count == 0) return;
    XXH64_update(&hash_, from, count);
    ok_ = sink_({static_cast<const std::byte*>(from), count});
  }
  bool finish() {
    const Checksum checksum = XXH64_digest(&hash_);
    write(&checksum, sizeof(checksum));
    return ok_;
  }

 private:
  const ByteSink& sink_;
  XXH64_state_t hash_;
  bool ok_ = true;
};

Checksum checksum_of(std::span<const std::byte> file) {
  return XXH64(file.data(), file.size() - sizeof(Checksum), 0);
}

std::string describe(const PartRecord& record) {
  const auto end = std::find(record.name.begin(), record.name.end(), '\0');
  return std::string(record.name.begin(), end) + " (" + std::to_string(record.layers) +
         " layers x " + std::to_string(record.slots) + " x " + std::to_string(record.entry_bytes) +
         " bytes, reach " + std::to_string(record.reach) + ")";
}

Result<void> check_header(const Header& found, const StateIdentity& identity,
                          const std::string& where) {
  const Header wanted = header_of(identity, found.num_tokens);
  if (found.numerics != wanted.numerics)
    return mismatch("other numerics version", where, std::to_string(wanted.numerics),
                    std::to_string(found.numerics));
  if (found.weights != wanted.weights)
    return mismatch("other weights or config", where, hex(wanted.weights), hex(found.weights));
  if (found.cache_dtype != wanted.cache_dtype)
    return mismatch("other cache type", where, dtype_name(identity.layout->cache_dtype()),
                    "type " + std::to_string(found.cache_dtype));
  if (found.page_tokens != wanted.page_tokens)
    return mismatch("other page size", where, std::to_string(wanted.page_tokens),
                    std::to_string(found.page_tokens));
  if (found.vocab_size != wanted.vocab_size)
    return mismatch("other vocabulary", where, std::to_string(wanted.vocab_size),
                    std::to_string(found.vocab_size));
  if (found.num_parts != wanted.num_parts)
    return mismatch("missing or extra state part", where, std::to_string(wanted.num_parts),
                    std::to_string(found.num_parts));
  return {};
}

Result<void> check_table(const PartTable& found, const StateLayout& layout,
                         const std::string& where) {
  const PartTable wanted = table_of(layout);
  for (size_t index = 0; index < wanted.size(); ++index)
    if (found[index] != wanted[index])
      return mismatch("state part differs", where, describe(wanted[index]), describe(found[index]));
  return {};
}

/// Everything that can be known without allocating, the cheap checks first.
Result<int64_t> check_file(std::span<const std::byte> file, const StateIdentity& identity,
                           int32_t pool_pages, const std::string& where) {
  if (file.size() < kFixedBytes + sizeof(Checksum))
    return corrupt("state file is too short", where, kFixedBytes + sizeof(Checksum), file.size());
  Reader reader(file);
  const Header header = reader.take<Header>();
  if (header.magic != kMagic)
    return fail({.code = Errc::kCorruptFile, .what = "not a state file", .where = where});
  if (header.format != kFormatVersion)
    return fail({.code = Errc::kUnsupported,
                 .what = "unknown state file version",
                 .where = where,
                 .expected = std::to_string(kFormatVersion),
                 .found = std::to_string(header.format)});
  if (Result<void> ok = check_header(header, identity, where); !ok)
    return fail(std::move(ok.error()));
  if (Result<void> ok = check_table(reader.take<PartTable>(), *identity.layout, where); !ok)
    return fail(std::move(ok.error()));
  const uint64_t most = static_cast<uint64_t>(pool_pages) * ops::kPageTokens;
  if (header.num_tokens > most)
    return fail({.code = Errc::kOutOfMemory,
                 .what = "state has more tokens than the cache can hold",
                 .where = where,
                 .expected = "at most " + std::to_string(most),
                 .found = std::to_string(header.num_tokens)});
  const auto num_tokens = static_cast<int64_t>(header.num_tokens);
  const size_t wanted = file_bytes(*identity.layout, num_tokens);
  if (file.size() != wanted)
    return corrupt("state file has the wrong size", where, wanted, file.size());
  // Last: the only check that reads the whole file.
  Checksum stored = 0;
  std::memcpy(&stored, file.data() + file.size() - sizeof(stored), sizeof(stored));
  if (const Checksum computed = checksum_of(file); computed != stored)
    return fail({.code = Errc::kCorruptFile,
                 .what = "checksum differs",
                 .where = where,
                 .expected = hex(stored),
                 .found = hex(computed),
                 .hint = "the file is damaged or was cut"});
  return num_tokens;
}

Result<std::vector<int32_t>> read_tokens(Reader& reader, int64_t count, int vocab_size,
                                         const std::string& where) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  reader.read(tokens.data(), tokens.size() * sizeof(int32_t));
  for (const int32_t token : tokens)
    if (token < 0 || token >= vocab_size)
      return fail({.code = Errc::kCorruptFile,
                   .what = "token id outside the vocabulary",
                   .where = where,
                   .expected = "0 to " + std::to_string(vocab_size - 1),
                   .found = std::to_string(token)});
  return tokens;
}

/// `host` is scratch as large as the slot or page: the state may lie in a device's memory.
void read_regions(Reader& reader, Memory& memory, const StateLayout& layout, Storage storage,
                  std::vector<std::byte>& host, std::byte* to) {
  for_each_piece(layout, storage, [&](size_t offset, size_t bytes) {
    reader.read(host.data(), bytes);
    memory.copy_in(to + offset, host.data(), bytes);
  });
}

void write_regions(Writer& writer, Memory& memory, const StateLayout& layout, Storage storage,
                   std::vector<std::byte>& host, const std::byte* from) {
  for_each_piece(layout, storage, [&](size_t offset, size_t bytes) {
    memory.copy_out(host.data(), from + offset, bytes);
    writer.write(host.data(), bytes);
  });
}

std::vector<std::byte> host_buffer(const StateLayout& layout) {
  return std::vector<std::byte>(std::max(layout.slot_bytes(), layout.page_bytes()));
}

}  // namespace

bool encode_state(const StateSnapshot& snapshot, const StateIdentity& identity,
                  const ByteSink& sink) {
  const StateLayout& layout = *identity.layout;
  const std::vector<int32_t>& tokens = snapshot.tokens();
  const Header header = header_of(identity, tokens.size());
  const PartTable table = table_of(layout);
  Writer writer(sink);
  writer.write(&header, sizeof(header));
  writer.write(&table, sizeof(table));
  writer.write(tokens.data(), tokens.size() * sizeof(int32_t));
  const PagePool& pool = *snapshot.pages().pool();
  std::vector<std::byte> host = host_buffer(layout);
  write_regions(writer, pool.memory(), layout, Storage::kSlot, host, snapshot.slot());
  for (const int32_t id : snapshot.pages().ids())
    write_regions(writer, pool.memory(), layout, Storage::kPage, host, pool.page(id));
  return writer.finish();
}

void reseal_state(std::span<std::byte> file) {
  if (file.size() < sizeof(Checksum)) return;
  const Checksum checksum = checksum_of(file);
  std::memcpy(file.data() + file.size() - sizeof(checksum), &checksum, sizeof(checksum));
}

Result<std::shared_ptr<const StateSnapshot>> decode_state(std::span<const std::byte> file,
                                                          const StateIdentity& identity,
                                                          const std::shared_ptr<PagePool>& pool,
                                                          const std::string& where) {
  const StateLayout& layout = *identity.layout;
  const Result<int64_t> num_tokens = check_file(file, identity, pool->capacity(), where);
  if (!num_tokens) return fail(num_tokens.error());
  Reader reader(file.subspan(kFixedBytes));
  Result<std::vector<int32_t>> tokens =
      read_tokens(reader, *num_tokens, identity.vocab_size, where);
  if (!tokens) return fail(std::move(tokens.error()));
  PageList pages(pool);
  if (Result<void> grown = pages.grow_to(pages_for(*num_tokens)); !grown)
    return fail(std::move(grown.error()));
  MemoryBlock slot(pool->memory(), layout.slot_bytes());
  std::vector<std::byte> host = host_buffer(layout);
  read_regions(reader, pool->memory(), layout, Storage::kSlot, host, slot.data());
  for (const int32_t id : pages.ids())
    read_regions(reader, pool->memory(), layout, Storage::kPage, host, pool->page(id));
  return std::make_shared<const StateSnapshot>(std::move(*tokens), std::move(slot),
                                               std::move(pages));
}

}  // namespace tessera
