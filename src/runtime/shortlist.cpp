// SPDX-License-Identifier: Apache-2.0
// Choosing frequent ids, and the file that keeps them.
#include <tessera/shortlist.h>
#include <xxhash.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>

#include "io/mapped_file.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little, "shortlists are little endian");

constexpr std::array<char, 8> kMagic = {'T', 'S', 'R', 'S', 'L', 'I', 'S', 'T'};
constexpr uint32_t kFormatVersion = 1;
using Checksum = uint64_t;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t format = kFormatVersion;
  uint32_t vocab_size = 0;
  uint64_t vocabulary = 0;
  uint64_t num_ids = 0;
};
static_assert(std::has_unique_object_representations_v<Header>);

constexpr size_t kLeastBytes = sizeof(Header) + sizeof(int32_t) + sizeof(Checksum);

Error damaged(std::string what, const std::string& where, std::string expected, std::string found) {
  return {.code = Errc::kCorruptFile,
          .what = std::move(what),
          .where = where,
          .expected = std::move(expected),
          .found = std::move(found),
          .hint = "make it again with tessera shortlist"};
}

Checksum checksum_of(std::span<const std::byte> file) {
  return XXH3_64bits(file.data(), file.size() - sizeof(Checksum));
}

Result<void> check_frame(std::span<const std::byte> file, const Header& header,
                         const std::string& where) {
  if (header.magic != kMagic)
    return fail(
        damaged("not a shortlist", where, "a file that begins with TSRSLIST", "other bytes"));
  if (header.format != kFormatVersion)
    return fail(damaged("unknown shortlist format", where, std::to_string(kFormatVersion),
                        std::to_string(header.format)));
  const size_t payload = file.size() - sizeof(Header) - sizeof(Checksum);
  if (payload % sizeof(int32_t) != 0 || header.num_ids != payload / sizeof(int32_t))
    return fail(damaged("shortlist of another size than it says", where,
                        std::to_string(header.num_ids) + " ids",
                        std::to_string(payload) + " bytes of ids"));
  Checksum stored = 0;
  std::memcpy(&stored, file.data() + file.size() - sizeof stored, sizeof stored);
  if (stored != checksum_of(file))
    return fail(damaged("damaged shortlist", where, "the checksum of its bytes", "another one"));
  return {};
}

Result<void> check_ids(const Shortlist& list, const std::string& where) {
  int64_t last = -1;
  for (size_t at = 0; at < list.ids.size(); ++at) {
    const int64_t id = list.ids[at];
    if (id <= last || id >= int64_t{list.vocab_size})
      return fail(damaged(
          "shortlist out of order", where,
          "ids ascending, each once, from 0 to " + std::to_string(int64_t{list.vocab_size} - 1),
          std::to_string(id) + " at index " + std::to_string(at)));
    last = id;
  }
  return {};
}

}  // namespace

std::vector<int32_t> most_frequent_ids(std::span<const uint64_t> counts, size_t size) {
  std::vector<int32_t> ids(counts.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto count_of = [&](int32_t id) { return counts[static_cast<size_t>(id)]; };
  std::erase_if(ids, [&](int32_t id) { return count_of(id) == 0; });
  std::ranges::stable_sort(ids, std::greater<>(), count_of);
  ids.resize(std::min(ids.size(), size));
  std::ranges::sort(ids);
  return ids;
}

std::vector<std::byte> encode_shortlist(const Shortlist& list) {
  const Header header{
      .vocab_size = list.vocab_size, .vocabulary = list.vocabulary, .num_ids = list.ids.size()};
  const std::span<const std::byte> ids = std::as_bytes(std::span(list.ids));
  std::vector<std::byte> file(sizeof header + ids.size() + sizeof(Checksum));
  std::memcpy(file.data(), &header, sizeof header);
  std::ranges::copy(ids, file.begin() + sizeof header);
  reseal_shortlist(file);
  return file;
}

void reseal_shortlist(std::span<std::byte> file) {
  if (file.size() < sizeof(Checksum)) return;
  const Checksum right = checksum_of(file);
  std::memcpy(file.data() + file.size() - sizeof right, &right, sizeof right);
}

Result<Shortlist> decode_shortlist(std::span<const std::byte> file, const std::string& where) {
  if (file.size() < kLeastBytes)
    return fail(damaged("shortlist too short", where,
                        "at least " + std::to_string(kLeastBytes) + " bytes",
                        std::to_string(file.size())));
  Header header;
  std::memcpy(&header, file.data(), sizeof header);
  if (auto status = check_frame(file, header, where); !status) return fail(status.error());
  Shortlist list{.vocab_size = header.vocab_size, .vocabulary = header.vocabulary};
  list.ids.resize(header.num_ids);
  std::memcpy(list.ids.data(), file.data() + sizeof header, list.ids.size() * sizeof(int32_t));
  if (auto status = check_ids(list, where); !status) return fail(status.error());
  return list;
}

Result<void> save_shortlist(const Shortlist& list, const std::string& path) {
  const auto io_error = [&] {
    return fail({.code = Errc::kNotFound,
                 .what = "cannot write shortlist",
                 .where = path,
                 .found = std::strerror(errno)});
  };
  const std::vector<std::byte> bytes = encode_shortlist(list);
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "wb"));
  if (!file) return io_error();
  if (std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) return io_error();
  if (std::fclose(file.release()) != 0) return io_error();
  return {};
}

Result<Shortlist> load_shortlist(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (!file) return fail(file.error());
  return decode_shortlist(std::as_bytes(std::span((*file)->bytes())), path);
}

}  // namespace tessera
