// SPDX-License-Identifier: Apache-2.0
// POSIX memory maps; every failure of the system becomes an Error with its reason.
#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdint>
#include <system_error>

namespace tessera {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

tl::unexpected<Error> system_failure(const char* what, const std::string& path, int code) {
  return fail({.code = code == ENOMEM ? Errc::kOutOfMemory : Errc::kNotFound,
               .what = what,
               .where = path,
               .found = std::generic_category().message(code)});
}

/// Size of an open regular file; a pipe or device could block or never end.
Result<size_t> regular_size(const FileDescriptor& file, const std::string& path) {
  if (file.get() < 0) return system_failure("cannot open file", path, errno);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return system_failure("cannot read file", path, errno);
  if (!S_ISREG(status.st_mode)) {
    return fail({.code = Errc::kNotFound, .what = "not a regular file", .where = path});
  }
  return static_cast<size_t>(status.st_size);
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const FileDescriptor descriptor(path);
  const Result<size_t> size = regular_size(descriptor, path);
  if (!size) return fail(size.error());
  const std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  if (*size == 0) return file;  // mmap refuses empty ranges
  void* data = ::mmap(nullptr, *size, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (data == MAP_FAILED) return system_failure("cannot map file", path, errno);
  file->data_ = static_cast<const char*>(data);
  file->size_ = *size;
  return file;
}

MappedFile::~MappedFile() {
  if (size_ != 0) ::munmap(const_cast<char*>(data_), size_);
}

void advise_random(const void* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first_page = (begin + page - 1) / page * page;
  const uintptr_t last_page = (begin + bytes) / page * page;
  if (first_page >= last_page) return;
  // Only speed depends on the advice, so a refusal is no error.
  ::madvise(reinterpret_cast<void*>(first_page), last_page - first_page, MADV_RANDOM);
}

Result<std::string> read_text_file(const std::string& path, size_t max_bytes) {
  const FileDescriptor descriptor(path);
  const Result<size_t> size = regular_size(descriptor, path);
  if (!size) return fail(size.error());
  if (*size > max_bytes) {
    return fail({.code = Errc::kCorruptFile,
                 .what = "text file is too large",
                 .where = path,
                 .expected = "at most " + std::to_string(max_bytes) + " bytes",
                 .found = std::to_string(*size) + " bytes"});
  }
  std::string text(*size, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::read(descriptor.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_failure("cannot read file", path, errno);
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

}  // namespace tessera
