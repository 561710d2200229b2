#include "runtime/store/entry_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <random>
#include <system_error>

#include "runtime/store/descriptor.h"
#include "runtime/store/entry.h"

namespace quern::store {
namespace {

std::atomic<WriteHook> write_hook{nullptr};

void at(WritePoint point) {
  if (const WriteHook hook = write_hook.load(std::memory_order_relaxed)) hook(point);
}

std::string last_error(std::string_view what) {
  return fmt::format("{}: {}", what, std::generic_category().message(errno));
}

/// Keeps SIGXFSZ (a file size limit) from ending the process while it lives: the write then fails
/// with EFBIG, and the pending signal is taken back.
class FileSizeSignalBlock {
 public:
  FileSizeSignalBlock() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    blocked_ = pthread_sigmask(SIG_BLOCK, &set_, &before_) == 0;
  }
  ~FileSizeSignalBlock() {
    if (!blocked_) return;
    if (sigismember(&before_, SIGXFSZ) == 0) {
      const timespec none{0, 0};
      while (sigtimedwait(&set_, nullptr, &none) == SIGXFSZ) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalBlock(const FileSizeSignalBlock&) = delete;
  FileSizeSignalBlock& operator=(const FileSizeSignalBlock&) = delete;

 private:
  sigset_t set_;
  sigset_t before_;
  bool blocked_ = false;
};

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

std::filesystem::path temporary_name(const std::filesystem::path& folder) {
  static std::atomic<uint64_t> serial{std::random_device{}()};
  return folder / fmt::format("{}{}-{:x}", temporary_prefix, ::getpid(),
                              serial.fetch_add(1, std::memory_order_relaxed));
}

/// Creates the temporary file and fills it; on failure it is gone again and the reason returned.
std::string write_temporary(const std::filesystem::path& temporary,
                            std::span<const std::byte> image, Descriptor& file) {
  file = Descriptor(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) return last_error("cannot create a file");
  // Held until the file is published: a temporary file that nobody has locked is abandoned.
  ::flock(file.get(), LOCK_EX | LOCK_NB);
  at(WritePoint::created);
  const size_t half = image.size() / 2;
  std::string problem;
  if (!write_all(file.get(), image.first(half))) problem = last_error("cannot write");
  at(WritePoint::half_written);
  if (problem.empty() && !write_all(file.get(), image.subspan(half))) {
    problem = last_error("cannot write");
  }
  at(WritePoint::written);
  if (problem.empty() && ::fsync(file.get()) != 0) problem = last_error("cannot sync");
  if (!problem.empty()) ::unlink(temporary.c_str());
  return problem;
}

}  // namespace

void set_write_hook(WriteHook hook) {
  write_hook.store(hook, std::memory_order_relaxed);
}

FileRead read_entry_file(const std::filesystem::path& path) {
  FileRead result;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (errno != ENOENT && errno != ENOTDIR) {
      result.state = FileRead::State::unreadable;
      result.reason = last_error("cannot open");
    }
    return result;
  }
  result.state = FileRead::State::unreadable;
  struct stat info{};
  struct stat folder{};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    result.reason = "not a regular file";
    return result;
  }
  const bool folder_known = ::stat(path.parent_path().c_str(), &folder) == 0;
  if (info.st_uid != ::geteuid() && info.st_uid != 0 &&
      !(folder_known && folder.st_uid == info.st_uid)) {
    result.reason = fmt::format("it belongs to user {}", info.st_uid);
    return result;
  }
  result.bytes.resize(static_cast<size_t>(info.st_size));
  size_t done = 0;
  while (done < result.bytes.size()) {
    const ssize_t n = ::read(file.get(), result.bytes.data() + done, result.bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      result.reason = last_error("cannot read");
      result.bytes.clear();
      return result;
    }
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  result.bytes.resize(done);
  result.state = FileRead::State::read;
  return result;
}

std::string publish(const std::filesystem::path& path, std::span<const std::byte> image) {
  const FileSizeSignalBlock no_signal;
  const std::filesystem::path folder = path.parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fmt::format("cannot create {}: {}", folder.string(), error.message());
  at(WritePoint::begin);
  for (int attempt = 0;; ++attempt) {
    const std::filesystem::path temporary = temporary_name(folder);
    Descriptor file;
    if (std::string problem = write_temporary(temporary, image, file); !problem.empty()) {
      return problem;
    }
    at(WritePoint::synced);
    if (::rename(temporary.c_str(), path.c_str()) == 0) break;
    // A prune may take the file for abandoned in the moment before it is locked: write it again.
    if (errno == ENOENT && attempt < 3) continue;
    std::string problem = last_error("cannot rename");
    ::unlink(temporary.c_str());
    return problem;
  }
  at(WritePoint::renamed);
  // The entry is in place; a folder that cannot be synced only risks its loss in a power cut.
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory) ::fsync(directory.get());
  at(WritePoint::finished);
  return {};
}

bool is_abandoned(const std::filesystem::path& temporary) {
  const Descriptor file(::open(temporary.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  return file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
}

bool set_modification_time(const std::filesystem::path& path, int64_t nanoseconds) {
  const timespec stamp{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  const timespec times[2] = {{0, UTIME_OMIT}, stamp};
  return ::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0;
}

std::optional<int64_t> modification_time(const std::filesystem::path& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace quern::store
