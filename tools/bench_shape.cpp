#include "tools/bench_shape.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>

#include <fmt/format.h>

#include "models/error.h"
#include "models/synth/synth.h"
#include "runtime/clock.h"
#include "runtime/cpu/thread_pool.h"
#include "tools/output.h"

namespace quern::tools {
namespace {

/// Memory that the system says it can give without swapping; no limit where it does not say.
uint64_t available_memory() {
  std::ifstream info("/proc/meminfo");
  std::string key, unit;
  for (uint64_t kib = 0; info >> key >> kib; std::getline(info, unit)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<uint64_t>::max();
}

[[noreturn]] void fail(const std::string& name) {
  throw Error(errno == ENOSPC || errno == ENOMEM ? ErrorKind::does_not_fit : ErrorKind::failed,
              name, fmt::format("cannot be made in memory ({})", std::strerror(errno)),
              "write it with quern synth and bench the file");
}

}  // namespace

MemoryModel::MemoryModel(const synth::Shape& shape, const synth::Mix& mix, uint32_t threads,
                         const Progress& progress) {
  const std::string name = fmt::format("{} {}", shape.name, mix.name);
  const uint64_t bytes = synth::total_bytes(synth::tensors_of(shape, mix));
  if (const uint64_t available = available_memory(); bytes > available) {
    throw Error(ErrorKind::does_not_fit, name,
                fmt::format("takes {} and {} of memory are free", human_bytes(bytes),
                            human_bytes(available)),
                "choose a smaller shape or mix, or write it with quern synth and bench the file");
  }
  const auto start = Clock::now();
  descriptor_ = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (descriptor_ < 0) fail(name);
  synth::SynthOptions options;
  options.threads = threads > 0 ? threads : cpu::usable_cpus();
  if (progress) {
    options.progress = [&](uint64_t done, uint64_t total) {
      progress("synthesis MiB", done >> 20, total >> 20);
    };
  }
  try {
    synth::write_synthetic(shape, mix, options, [&](std::span<const std::byte> piece) {
      while (!piece.empty()) {
        const ssize_t written = ::write(descriptor_, piece.data(), piece.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail(name);
        piece = piece.subspan(static_cast<size_t>(written));
      }
    });
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
  made_ms_ = milliseconds_since(start);
}

MemoryModel::~MemoryModel() {
  ::close(descriptor_);
}

std::string MemoryModel::path() const {
  return fmt::format("/proc/self/fd/{}", descriptor_);
}

}  // namespace quern::tools
