#include "runtime/store/key_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace quern::store {
namespace {

using Clock = std::chrono::steady_clock;

/// True for a directory of this user's that nobody else may write to, created where missing.
bool own_folder(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return false;
  struct stat info{};
  // lstat: a link that somebody planted in /tmp is no folder of ours.
  if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return false;
  return info.st_uid == ::geteuid() && (info.st_mode & 0022) == 0 &&
         ::access(path.c_str(), R_OK | W_OK | X_OK) == 0;
}

/// State letter and start time of a process from /proc, or nothing where it is gone.
struct ProcessState {
  char state = 0;
  std::string start;
};
std::optional<ProcessState> process_state(long pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  // The second field is the command in parentheses and may hold anything; what follows it is
  // regular.
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::vector<std::string> fields;
  for (size_t at = end + 1; at < text.size();) {
    const size_t begin = text.find_first_not_of(' ', at);
    if (begin == std::string::npos) break;
    at = std::min(text.find(' ', begin), text.size());
    fields.push_back(text.substr(begin, at - begin));
  }
  if (fields.size() < 20) return std::nullopt;
  return ProcessState{fields[0][0], fields[19]};
}

/// What a holder writes into the lock file: "pid start-time".
std::string own_mark() {
  const auto state = process_state(::getpid());
  return fmt::format("{} {}\n", ::getpid(), state ? state->start : "0");
}

bool holder_lives(const std::filesystem::path& path) {
  std::ifstream file(path);
  long pid = 0;
  std::string start;
  if (!(file >> pid >> start)) return false;
  const auto state = process_state(pid);
  if (!state || state->start != start) return false;
  return state->state != 'T' && state->state != 't' && state->state != 'Z' && state->state != 'X';
}

/// True where the open file is still the one that the path names.
bool is_current(const Descriptor& file, const std::filesystem::path& path) {
  struct stat mine{};
  struct stat named{};
  return ::fstat(file.get(), &mine) == 0 && ::stat(path.c_str(), &named) == 0 &&
         mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

}  // namespace

std::optional<std::filesystem::path> lock_folder() {
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime != nullptr && *runtime != 0) {
    std::filesystem::path path = std::filesystem::path(runtime) / "quern";
    if (own_folder(path)) return path;
  }
  std::filesystem::path path = fmt::format("/tmp/quern-{}", ::geteuid());
  if (own_folder(path)) return path;
  return std::nullopt;
}

KeyLock KeyLock::acquire(const std::filesystem::path& folder, const std::string& name,
                         std::chrono::milliseconds timeout) {
  const std::filesystem::path path = folder / (name + ".lock");
  auto deadline = Clock::now() + timeout;
  auto pause = std::chrono::microseconds(200);
  int times_without_holder = 0;
  for (;;) {
    Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return {};
    if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      // The holder before removed the file after we opened it: lock its successor instead.
      if (!is_current(file, path)) continue;
      const std::string mark = own_mark();
      if (::ftruncate(file.get(), 0) != 0 ||
          ::pwrite(file.get(), mark.data(), mark.size(), 0) != static_cast<ssize_t>(mark.size())) {
        // The lock holds all the same; others merely cannot see who has it.
      }
      return KeyLock(std::move(file), path);
    }
    if (errno != EWOULDBLOCK && errno != EINTR) return {};
    if (Clock::now() >= deadline) {
      // Asked again before giving up: a holder that has only just come has not signed yet.
      const bool lives = holder_lives(path);
      times_without_holder = lives ? 0 : times_without_holder + 1;
      if (times_without_holder == 3) return {};
      deadline = Clock::now() + (lives ? timeout : std::chrono::milliseconds(50));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(20'000));
  }
}

KeyLock::~KeyLock() {
  // Unlinked while still locked: whoever opened it in the meantime sees that it is no longer
  // current.
  if (file_) ::unlink(path_.c_str());
}

}  // namespace quern::store
