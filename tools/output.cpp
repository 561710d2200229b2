#include "tools/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fmt/format.h>

#include "models/error.h"

namespace quern::tools {
namespace {

[[noreturn]] void throw_stdout_error() {
  const int code = errno;
  if (code == EPIPE) throw BrokenPipe{};
  throw Error(ErrorKind::failed, "standard output", std::strerror(code),
              "send the output somewhere with room");
}

[[noreturn]] void throw_unwritable(const std::filesystem::path& path) {
  throw Error(ErrorKind::failed, path.string(),
              fmt::format("cannot be written ({})", std::strerror(errno)),
              "choose a folder that exists and that you may write to");
}

// The temporary file that a signal handler has to remove. One is enough: a command writes one
// output file. Set and cleared around the life of an AtomicFile.
std::array<char, 4096> g_temporary;
std::atomic<bool> g_has_temporary{false};

extern "C" void remove_temporary(int signal) {
  if (g_has_temporary.load()) unlink(g_temporary.data());
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void guard_temporary(const std::string& path) {
  if (path.size() + 1 > g_temporary.size()) return;
  std::memcpy(g_temporary.data(), path.c_str(), path.size() + 1);
  g_has_temporary = true;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, remove_temporary);
}

void release_temporary() {
  if (!g_has_temporary.exchange(false)) return;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
}

}  // namespace

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) throw_stdout_error();
}

void write_out_now(std::string_view text) {
  write_out(text);
  flush_out();
}

void flush_out() {
  if (std::fflush(stdout) != 0) throw_stdout_error();
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  if (std::filesystem::is_directory(path_)) {
    throw Error(ErrorKind::failed, path_.string(), "is a folder", "give the name of a file");
  }
  // Devices and pipes (-o /dev/null) are written to as they are: renaming would replace them.
  if (std::filesystem::exists(path_) && !std::filesystem::is_regular_file(path_)) {
    file_ = std::fopen(path_.c_str(), "wb");
    if (file_ == nullptr) throw_unwritable(path_);
    return;
  }
  temporary_ = path_.string() + ".tmp-XXXXXX";
  const int descriptor = mkstemp(temporary_.data());
  if (descriptor < 0) throw_unwritable(path_);
  // mkstemp makes files of mode 600; give what the umask would have given.
  const mode_t mask = umask(0);
  umask(mask);
  fchmod(descriptor, 0666 & ~mask);
  file_ = fdopen(descriptor, "wb");
  guard_temporary(temporary_);
}

AtomicFile::~AtomicFile() {
  release_temporary();
  if (file_ != nullptr) {
    std::fclose(file_);
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }
}

void AtomicFile::write(const void* data, size_t bytes) {
  if (std::fwrite(data, 1, bytes, file_) != bytes) {
    throw Error(ErrorKind::failed, path_.string(),
                fmt::format("writing failed ({})", std::strerror(errno)), "make room on the disk");
  }
}

void AtomicFile::commit() {
  const bool renames = !temporary_.empty();
  const bool flushed = std::fflush(file_) == 0 && (!renames || fsync(fileno(file_)) == 0);
  const bool closed = std::fclose(file_) == 0;
  file_ = nullptr;
  if (!flushed || !closed || (renames && std::rename(temporary_.c_str(), path_.c_str()) != 0)) {
    const int code = errno;
    if (renames) unlink(temporary_.c_str());
    throw Error(ErrorKind::failed, path_.string(),
                fmt::format("writing failed ({})", std::strerror(code)), "make room on the disk");
  }
  release_temporary();
}

NpyWriter::NpyWriter(std::filesystem::path path) : file_(std::move(path)) {
  static_assert(std::endian::native == std::endian::little, "rows are written as they lie");
}

void NpyWriter::begin(uint64_t rows, uint64_t columns) {
  rows_ = rows;
  columns_ = columns;
  std::string header =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  // The format wants magic, version, length and header together to be a multiple of 64 bytes.
  constexpr size_t preamble = 10;
  header.append(63 - (preamble + header.size()) % 64, ' ');
  header.push_back('\n');
  std::string start = "\x93NUMPY";
  start.push_back(1);
  start.push_back(0);
  start.push_back(static_cast<char>(header.size() & 0xff));
  start.push_back(static_cast<char>(header.size() >> 8));
  file_.write(start.data(), start.size());
  file_.write(header.data(), header.size());
}

void NpyWriter::row(std::span<const float> values) {
  if (values.size() != columns_) {
    throw Error(ErrorKind::failed, "logits",
                fmt::format("row of {} values where {} belong", values.size(), columns_));
  }
  file_.write(values.data(), values.size_bytes());
  ++written_;
}

void NpyWriter::commit() {
  if (written_ != rows_) {
    throw Error(ErrorKind::failed, "logits",
                fmt::format("{} rows were computed where {} were asked for", written_, rows_));
  }
  file_.commit();
}

std::string human_bytes(uint64_t bytes) {
  constexpr std::array<const char*, 4> units = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, units[unit]);
}

std::string human_count(uint64_t count) {
  const double value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.2f} B", value / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.2f} M", value / 1e6);
  return fmt::format("{}", count);
}

}  // namespace quern::tools
