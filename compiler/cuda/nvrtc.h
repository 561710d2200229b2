#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace quern::cuda {

/// NVIDIA's run-time compiler, loaded when it is first needed. Looked for at QUERN_NVRTC (a file),
/// then by the names libnvrtc.so.13, .12 and libnvrtc.so where the loader finds them, then in
/// /usr/local/cuda*/lib64.
class Nvrtc {
 public:
  /// The loaded library. Throws Error (`failed`) with a remedy where there is none or it is too old
  /// (before 12.0); the same error every time, until a library can be loaded.
  static const Nvrtc& get();
  /// What is wrong, or empty where `get` succeeds: for `quern doctor`.
  static std::string problem();

  int major() const { return major_; }
  int minor() const { return minor_; }
  /// "13.0", and the file it came from.
  std::string version() const;
  const std::filesystem::path& path() const { return path_; }

  struct Header {
    const char* name;
    const char* text;
  };
  struct Result {
    bool ok = false;
    std::string log;               ///< Always read, also on success.
    std::string problem;           ///< NVRTC's own word for the failure.
    std::vector<std::byte> cubin;  ///< Empty where only PTX was made.
    std::string ptx;
  };
  /// Compiles one translation unit. Thread-safe.
  Result compile(const std::string& source, const std::string& name,
                 const std::vector<Header>& headers, const std::vector<std::string>& options,
                 bool want_ptx) const;

 private:
  Nvrtc() = default;
  struct Functions;
  static Nvrtc load();
  const Functions* functions_ = nullptr;
  std::filesystem::path path_;
  int major_ = 0, minor_ = 0;
};

}  // namespace quern::cuda
