// SPDX-License-Identifier: Apache-2.0
// Reads a whole file or standard input.
#include "cli/input.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace tessera::cli {
namespace {

constexpr size_t kReadBytes = 64 * 1024;

tl::unexpected<Error> read_failure(const std::string& path) {
  return fail({.code = Errc::kNotFound,
               .what = std::string("cannot read: ") + std::strerror(errno),
               .where = path});
}

Result<std::string> read_stream(std::FILE* stream, const std::string& name) {
  std::string text;
  std::array<char, kReadBytes> buffer;
  for (size_t count; (count = std::fread(buffer.data(), 1, buffer.size(), stream)) > 0;)
    text.append(buffer.data(), count);
  if (std::ferror(stream) != 0) return read_failure(name);
  return text;
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

Result<std::string> read_input(const std::string& path) {
  if (path == "-") return read_stream(stdin, "standard input");
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (!file) return read_failure(path);
  return read_stream(file.get(), path);
}

}  // namespace tessera::cli
