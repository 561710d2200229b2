#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "runtime/store/descriptor.h"

namespace quern::store {

/// The folder for lock files on a local disk: XDG_RUNTIME_DIR/quern, else /tmp/quern-<uid>. Created
/// where missing; nothing where there is no folder that belongs to this user alone.
std::optional<std::filesystem::path> lock_folder();

/// An flock on a file a key, which the kernel takes back when its holder dies, however that
/// happens. The file goes when the lock is released, so that the folder stays empty.
class KeyLock {
 public:
  /// Waits until the lock is free. After `timeout` the wait goes on as long as the process that
  /// holds it lives and runs; a lock held by a stopped process, or by nobody that can be found (a
  /// descriptor that leaked to a child), is given up on: the result then holds nothing.
  static KeyLock acquire(const std::filesystem::path& folder, const std::string& name,
                         std::chrono::milliseconds timeout);

  KeyLock() = default;
  KeyLock(KeyLock&& other) noexcept = default;
  KeyLock& operator=(KeyLock&&) = delete;
  ~KeyLock();

  explicit operator bool() const { return static_cast<bool>(file_); }

 private:
  KeyLock(Descriptor file, std::filesystem::path path)
      : file_(std::move(file)), path_(std::move(path)) {}

  Descriptor file_;
  std::filesystem::path path_;
};

}  // namespace quern::store
