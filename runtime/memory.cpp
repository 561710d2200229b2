#include "runtime/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <utility>

#include "models/error.h"

namespace quern {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

[[noreturn]] void does_not_fit(std::string_view what, uint64_t bytes, uint64_t available) {
  throw Error(ErrorKind::does_not_fit, what,
              fmt::format("{} are needed and {} are available", readable_bytes(bytes),
                          available == kUnknown ? "fewer" : readable_bytes(available)),
              "take a smaller --ctx, --chunk or model, or end other programs");
}

uint64_t number_in(const char* path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value ? value : kUnknown;  // "max" is no number: no limit.
}

uint64_t system_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("MemAvailable:")) {
      return std::strtoull(line.c_str() + line.find(':') + 1, nullptr, 10) * 1024;
    }
  }
  return kUnknown;
}

/// What the control group (version 2) leaves; its page cache can be reclaimed and does not count as
/// used.
uint64_t group_available() {
  const uint64_t limit = number_in("/sys/fs/cgroup/memory.max");
  uint64_t used = number_in("/sys/fs/cgroup/memory.current");
  if (limit == kUnknown || used == kUnknown) return kUnknown;
  std::ifstream stat("/sys/fs/cgroup/memory.stat");
  uint64_t value = 0;
  for (std::string name; stat >> name >> value;) {
    if (name == "inactive_file" || name == "active_file") used -= std::min(used, value);
  }
  return limit - std::min(limit, used);
}

}  // namespace

ZeroedMemory::ZeroedMemory(uint64_t bytes, std::string_view what) : bytes_(bytes) {
  if (bytes == 0) return;
  const bool large = bytes >= kHugePage;
  if (bytes > kUnknown / 2) does_not_fit(what, bytes, kUnknown);
  mapped_bytes_ = large ? bytes + kHugePage : bytes;
  mapping_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    does_not_fit(what, bytes, kUnknown);
  }
  data_ = static_cast<std::byte*>(mapping_);
  if (large) {
    data_ += (kHugePage - reinterpret_cast<uintptr_t>(mapping_) % kHugePage) % kHugePage;
    // Advice: where the kernel has no huge pages, all works as well.
    ::madvise(data_, bytes, MADV_HUGEPAGE);
  }
}

ZeroedMemory::ZeroedMemory(ZeroedMemory&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

ZeroedMemory& ZeroedMemory::operator=(ZeroedMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

ZeroedMemory::~ZeroedMemory() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapped_bytes_);
}

void ZeroedMemory::clear() {
  if (bytes_ == 0) return;
  if (::madvise(data_, bytes_, MADV_DONTNEED) != 0) std::fill_n(data_, bytes_, std::byte{0});
}

uint64_t available_memory() {
  return std::min(system_available(), group_available());
}

void require_memory(uint64_t bytes, std::string_view what) {
  const uint64_t available = available_memory();
  if (bytes > available) does_not_fit(what, bytes, available);
}

std::string readable_bytes(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes >= uint64_t{1} << 30) return fmt::format("{:.2f} GiB", value / (1 << 30));
  if (bytes >= uint64_t{1} << 20) return fmt::format("{:.0f} MiB", value / (1 << 20));
  return fmt::format("{} KiB", (bytes + 1023) / 1024);
}

}  // namespace quern
