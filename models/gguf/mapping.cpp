#include "models/gguf/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "models/error.h"

namespace quern::gguf {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view what, int error) {
  throw Error(ErrorKind::failed, path.string(), std::string(what) + ": " + std::strerror(error),
              error == ENOENT ? "check the path" : "check that the file can be read");
}

}  // namespace

Mapping::Mapping(const std::filesystem::path& path) {
  // Non-blocking, so that opening a pipe nobody writes to is refused below instead of hanging here.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) fail(path, "cannot be opened", errno);
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) fail(path, "cannot be examined", errno);
  if (!S_ISREG(info.st_mode)) {
    throw Error(ErrorKind::failed, path.string(),
                S_ISDIR(info.st_mode) ? "is a directory, not a file" : "is not a regular file",
                "give the path of a .gguf file");
  }
  if (info.st_size == 0) return;
  const auto size = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) fail(path, "cannot be mapped", errno);
  bytes_ = {static_cast<const std::byte*>(address), size};
}

Mapping::Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace quern::gguf
