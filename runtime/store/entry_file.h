#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace quern::store {

/// Points of a publication, in order, at which a test may stop the process or make a call fail.
enum class WritePoint { begin, created, half_written, written, synced, renamed, finished };

/// Called at each point of every publication; null in normal life. Tests set it (before starting
/// threads).
using WriteHook = void (*)(WritePoint);
void set_write_hook(WriteHook hook);

/// What reading an entry file gave.
struct FileRead {
  enum class State {
    missing,     ///< No such file.
    unreadable,  ///< It is there but this user may not read or should not trust it.
    read,
  };
  State state = State::missing;
  std::vector<std::byte> bytes;
  std::string reason;  ///< Where unreadable.
};

/// Reads a whole entry file. A file that belongs neither to this user, nor to root, nor to the
/// owner of its folder is not trusted: kernels are machine code.
FileRead read_entry_file(const std::filesystem::path& path);

/// Writes `image` under a temporary name in `path`'s folder (created where missing), syncs it,
/// renames it to `path` and syncs the folder: `path` holds either what it held before or all of
/// `image`. Returns what went wrong, or an empty string. A file size limit (SIGXFSZ) is an error
/// like any other.
std::string publish(const std::filesystem::path& path, std::span<const std::byte> image);

/// True where the temporary file's writer is gone.
bool is_abandoned(const std::filesystem::path& temporary);

/// Sets the file's modification time, in nanoseconds since the epoch; false where not allowed.
bool set_modification_time(const std::filesystem::path& path, int64_t nanoseconds);
/// The modification time in nanoseconds since the epoch, or nothing.
std::optional<int64_t> modification_time(const std::filesystem::path& path);

}  // namespace quern::store
