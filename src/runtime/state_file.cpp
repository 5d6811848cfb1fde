// SPDX-License-Identifier: Apache-2.0
// State files on disk: atomic replacement on write, bounded size on read.
#include "runtime/state_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "io/mapped_file.h"
#include "runtime/guarded.h"
#include "runtime/state_codec.h"

namespace tessera {
namespace {

tl::unexpected<Error> io_error(std::string what, const std::string& path, int code) {
  return fail({.code = Errc::kNotFound,
               .what = std::move(what),
               .where = path,
               .found = std::strerror(code)});
}

/// A new file next to `path`; removed unless it was renamed over it.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path)
      : name_(path + ".XXXXXX"), descriptor_(mkstemp(name_.data())) {}
  ~TemporaryFile() {
    if (descriptor_ < 0) return;
    close(descriptor_);
    if (!renamed_) unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  bool is_open() const { return descriptor_ >= 0; }

  bool write_all(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return true;
  }
  /// The bytes reach the disk before the name does.
  bool rename_to(const std::string& path) {
    renamed_ = fsync(descriptor_) == 0 && std::rename(name_.c_str(), path.c_str()) == 0;
    return renamed_;
  }

 private:
  std::string name_;
  int descriptor_;
  bool renamed_ = false;
};

}  // namespace

Result<void> save_state_file(const StateSnapshot& snapshot, const StateIdentity& identity,
                             const std::string& path) {
  return with_memory_failure([&]() -> Result<void> {
    TemporaryFile file(path);
    if (!file.is_open()) return io_error("cannot create state file", path, errno);
    const bool written =
        encode_state(snapshot, identity,
                     [&file](std::span<const std::byte> bytes) { return file.write_all(bytes); });
    if (!written) return io_error("cannot write state file", path, errno);
    if (!file.rename_to(path)) return io_error("cannot rename state file", path, errno);
    return {};
  });
}

Result<std::shared_ptr<const StateSnapshot>> load_state_file(
    const std::string& path, const StateIdentity& identity, const std::shared_ptr<PagePool>& pool) {
  using Loaded = Result<std::shared_ptr<const StateSnapshot>>;
  return with_memory_failure([&]() -> Loaded {
    // Mapped: what the header rules out is never read, and nothing is in memory twice.
    const auto file = MappedFile::open(path);
    if (!file) return fail(file.error());
    const std::string_view bytes = (*file)->bytes();
    const int64_t most_tokens = int64_t{pool->capacity()} * ops::kPageTokens;
    const size_t most_bytes = state_codec::file_bytes(*identity.layout, most_tokens);
    if (bytes.size() > most_bytes)
      return fail({.code = Errc::kCorruptFile,
                   .what = "state file is larger than any state of this engine",
                   .where = path,
                   .expected = "at most " + std::to_string(most_bytes) + " bytes",
                   .found = std::to_string(bytes.size())});
    return decode_state(std::as_bytes(std::span(bytes)), identity, pool, path);
  });
}

}  // namespace tessera
