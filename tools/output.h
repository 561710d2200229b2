#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace quern::tools {

/// The reader of our standard output has gone: the command ends quietly.
struct BrokenPipe {};

/// Writes to standard output. Throws BrokenPipe, or Error (`failed`) where the disk is full.
void write_out(std::string_view text);
/// The same with flushing, for text that appears as it is generated.
void write_out_now(std::string_view text);
/// Flushes standard output, checking for errors; main calls it before it returns success.
void flush_out();

/// A file that appears under its name only when it is whole: the bytes go to a temporary file
/// beside it, which `commit` renames. Opening it at the start of a command is also the check that
/// the path can be written. The temporary file goes away with the object and on SIGINT or SIGTERM.
class AtomicFile {
 public:
  /// Throws Error (`failed`) where a file cannot be created in the folder of `path`.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void commit();

 private:
  std::filesystem::path path_;
  std::string temporary_;
  std::FILE* file_ = nullptr;
};

/// A NumPy file (format 1.0) of little-endian f32 in row-major order, written row by row.
class NpyWriter {
 public:
  /// `rows` x `columns` values will follow.
  NpyWriter(std::filesystem::path path);
  void begin(uint64_t rows, uint64_t columns);
  void row(std::span<const float> values);
  /// Throws Error (`failed`) where fewer or more rows came than were announced.
  void commit();

 private:
  AtomicFile file_;
  uint64_t rows_ = 0, columns_ = 0, written_ = 0;
};

/// "1.5 GiB", "12.0 MiB", "300 B".
std::string human_bytes(uint64_t bytes);
/// "134.5 M", "1.24 B".
std::string human_count(uint64_t count);

}  // namespace quern::tools
