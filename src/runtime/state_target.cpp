// SPDX-License-Identifier: Apache-2.0
// What may be replaced by a state file: nothing, or a state file.
#include <tessera/state_target.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "runtime/state_codec.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool begins_like_a_state(const fs::path& path) {
  std::array<char, state_codec::kMagic.size()> head{};
  std::ifstream file(path, std::ios::binary);
  return file.read(head.data(), head.size()) && head == state_codec::kMagic;
}

tl::unexpected<Error> not_replaced(const std::string& path, std::string found) {
  return fail({.code = Errc::kInvalidArgument,
               .what = "will not overwrite",
               .where = path,
               .expected = "a new name or a state file",
               .found = std::move(found)});
}

}  // namespace

Result<std::string> state_target(const std::string& path) {
  std::error_code code;
  const fs::path target = fs::weakly_canonical(fs::absolute(path, code), code);
  const fs::path folder = target.parent_path();
  if (path.empty() || !fs::is_directory(folder, code)) {
    return fail({.code = Errc::kNotFound, .what = "no folder to save the state in", .where = path});
  }
  // Not followed: a link that is still one here leads nowhere.
  const fs::file_status status = fs::symlink_status(target, code);
  if (fs::exists(status)) {
    if (!fs::is_regular_file(status)) return not_replaced(path, "no regular file");
    if (!begins_like_a_state(target)) return not_replaced(path, "another kind of file");
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    return fail({.code = Errc::kNotFound,
                 .what = "cannot save a state here",
                 .where = path,
                 .found = std::strerror(errno)});
  }
  return target.string();
}

}  // namespace tessera
