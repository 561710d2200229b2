#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "models/sha256.h"
#include "runtime/store/kernel_store.h"

// A compiler of fake kernels and child processes for the store's tests.
namespace quern::test {

/// Rounds of each fault test: QUERN_STORE_ROUNDS, else 20.
inline int store_rounds() {
  const char* text = std::getenv("QUERN_STORE_ROUNDS");
  const int rounds = text != nullptr ? std::atoi(text) : 0;
  return rounds > 0 ? rounds : 20;
}

inline const Target& fake_target() {
  static const Target target{"cpu", "fake", "+a,+b"};
  return target;
}

inline spec::AnySpec fake_spec(uint32_t width) {
  return spec::AddSpec{.width = width};
}

inline KernelKey fake_key(const spec::AnySpec& spec, const Target& target = fake_target()) {
  return {.fields = {{"schema", "test-1"},
                     {"family", std::string(spec_family(spec))},
                     {"spec", spec_to_text(spec)},
                     {"target", target.kind + " " + target.name + " " + target.features}}};
}

/// Code that follows from the key alone, so that a wrong kernel is seen.
inline std::vector<std::byte> fake_code(const KernelKey& key, size_t bytes = 700) {
  std::vector<std::byte> code;
  for (std::string block = key.digest(); code.size() < bytes;
       block = sha256_hex(std::as_bytes(std::span(block)))) {
    for (const char c : block) code.push_back(static_cast<std::byte>(c));
  }
  code.resize(bytes);
  return code;
}

inline CompiledKernel fake_kernel(const spec::AnySpec& spec, const Target& target = fake_target(),
                                  size_t bytes = 700) {
  CompiledKernel kernel;
  kernel.key = fake_key(spec, target);
  kernel.symbol = "quern_kernel";
  kernel.code = fake_code(kernel.key, bytes);
  kernel.scratch_bytes = 4096;
  kernel.record = {{"compile_ms", "1.5"}, {"log", "nothing \"special\"\n\xff"}};
  return kernel;
}

/// Compiles fake kernels and leaves a line in `log` (where not empty) for each, also across
/// processes.
inline KernelCompiler fake_compiler(const std::filesystem::path& log = {}, int milliseconds = 0) {
  return [log, milliseconds](const spec::AnySpec& spec, const Target& target) {
    CompiledKernel kernel = fake_kernel(spec, target);
    if (milliseconds > 0) ::usleep(static_cast<useconds_t>(milliseconds) * 1000);
    if (!log.empty()) {
      const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
      const std::string line = kernel.key.digest() + "\n";
      if (fd < 0 || ::write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
        ::_exit(99);
      }
      ::close(fd);
    }
    return kernel;
  };
}

/// What must be there.
template <class T>
T required(std::optional<T> value) {
  if (!value) throw std::runtime_error("there is none");
  return std::move(*value);
}

inline std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

inline std::vector<std::byte> bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline KernelStore make_store(const std::filesystem::path& directory,
                              StoreMode mode = StoreMode::automatic) {
  return KernelStore({.directory = directory, .readonly_tiers = {}, .mode = mode});
}

inline CompiledKernel get_fake(KernelStore& store, const spec::AnySpec& spec,
                               const KernelCompiler& compiler = fake_compiler()) {
  return store.get(fake_key(spec), spec, fake_target(), compiler);
}

/// Runs `body` in a child process; its result is the child's exit code. An exception gives 98.
inline pid_t start_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  int code = 98;
  try {
    code = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child: %s\n", error.what());
  }
  ::_exit(code);
}

/// The exit code of a child, or 1000 + signal.
inline int wait_child(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

inline int run_child(const std::function<int()>& body) {
  return wait_child(start_child(body));
}

}  // namespace quern::test
