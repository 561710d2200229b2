#include "models/gguf/writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>
#include <type_traits>
#include <utility>

#include "models/error.h"
#include "models/gguf/limits.h"
#include "models/gguf/tensor_size.h"
#include "models/gguf/value_type.h"

namespace quern::gguf {
namespace {

constexpr uint32_t kVersion = 3;

using Sink = TensorToWrite::Sink;

[[noreturn]] void refuse(std::string_view thing, std::string_view reason) {
  throw Error(ErrorKind::usage, thing, reason);
}

/// Serialises header parts into memory.
class HeaderBytes {
 public:
  template <typename T>
  void number(T value) {
    raw({reinterpret_cast<const char*>(&value), sizeof(T)});
  }
  void text(std::string_view value) {
    number(uint64_t{value.size()});
    raw(value);
  }
  void raw(std::string_view value) { bytes_.append(value); }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

template <typename FileType, typename Held>
void put_number(HeaderBytes& out, std::string_view key, Held held) {
  if constexpr (std::is_integral_v<FileType>) {
    if (!std::in_range<FileType>(held)) {
      refuse(key, fmt::format("holds {}, which its type cannot", held));
    }
  }
  out.number(static_cast<FileType>(held));
}

/// Writes one number that is held as `Held` with the width that `type` says.
template <typename Held>
void put_typed(HeaderBytes& out, std::string_view key, ValueType type, Held held) {
  if constexpr (std::is_same_v<Held, uint64_t>) {
    if (type == ValueType::u8) return put_number<uint8_t>(out, key, held);
    if (type == ValueType::u16) return put_number<uint16_t>(out, key, held);
    if (type == ValueType::u32) return put_number<uint32_t>(out, key, held);
    if (type == ValueType::u64) return put_number<uint64_t>(out, key, held);
  } else if constexpr (std::is_same_v<Held, int64_t>) {
    if (type == ValueType::i8) return put_number<int8_t>(out, key, held);
    if (type == ValueType::i16) return put_number<int16_t>(out, key, held);
    if (type == ValueType::i32) return put_number<int32_t>(out, key, held);
    if (type == ValueType::i64) return put_number<int64_t>(out, key, held);
  } else if constexpr (std::is_same_v<Held, double>) {
    if (type == ValueType::f32) return put_number<float>(out, key, held);
    if (type == ValueType::f64) return put_number<double>(out, key, held);
  }
  refuse(key, fmt::format("has type {}, which does not go with its value", value_type_name(type)));
}

void put_text(HeaderBytes& out, std::string_view key, std::string_view text) {
  if (text.size() > kMaxStringBytes) {
    refuse(key, fmt::format("has more than the {} bytes a string may have", kMaxStringBytes));
  }
  out.text(text);
}

void put_value(HeaderBytes& out, std::string_view key, const Value& value) {
  out.number(static_cast<uint32_t>(value.type));
  const auto need = [&](ValueType actual, ValueType wanted) {
    if (actual != wanted) refuse(key, "has a type that does not go with its value");
  };
  std::visit(
      [&](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, bool>) {
          need(value.type, ValueType::boolean);
          out.number(static_cast<uint8_t>(held));
        } else if constexpr (std::is_same_v<Held, std::string>) {
          need(value.type, ValueType::string);
          put_text(out, key, held);
        } else if constexpr (std::is_arithmetic_v<Held>) {
          put_typed(out, key, value.type, held);
        } else {
          need(value.type, ValueType::array);
          if (held.size() > kMaxArrayBytes / value_type_bytes(value.element).value_or(8)) {
            refuse(key,
                   fmt::format("has more than the {} bytes an array may have", kMaxArrayBytes));
          }
          out.number(static_cast<uint32_t>(value.element));
          out.number(uint64_t{held.size()});
          for (const auto& element : held) {
            if constexpr (std::is_same_v<Held, std::vector<std::string>>) {
              need(value.element, ValueType::string);
              put_text(out, key, element);
            } else if constexpr (std::is_same_v<Held, std::vector<uint8_t>>) {
              need(value.element, ValueType::boolean);
              out.number(static_cast<uint8_t>(element != 0));
            } else {
              put_typed(out, key, value.element, element);
            }
          }
        }
      },
      value.data);
}

uint64_t alignment_of(const Metadata& metadata) {
  const Value* value = metadata.find(kAlignmentKey);
  if (value == nullptr) return kDefaultAlignment;
  const auto* alignment = std::get_if<uint64_t>(&value->data);
  if (value->type != ValueType::u32 || alignment == nullptr || !std::has_single_bit(*alignment)) {
    refuse(kAlignmentKey, "must be a power of two of type u32");
  }
  return *alignment;
}

/// Bytes of the tensor, after checking everything that the reader would refuse.
uint64_t checked_bytes(const TensorToWrite& tensor) {
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
    refuse(fmt::format("tensor \"{}\"", tensor.name),
           fmt::format("has a name of {} bytes; 1 to {} are allowed", tensor.name.size(),
                       kMaxTensorNameBytes));
  }
  const std::string thing = fmt::format("tensor {}", tensor.name);
  if (tensor.shape.size() > kMaxDimensions) {
    refuse(thing, fmt::format("has {} dimensions; at most {} are allowed", tensor.shape.size(),
                              kMaxDimensions));
  }
  const auto block = gguf_block_size(static_cast<uint32_t>(tensor.type));
  if (!block) refuse(thing, "has a type that the format does not have");
  const uint64_t row = tensor.shape.empty() ? 1 : tensor.shape[0];
  if (row % block->values != 0) {
    refuse(thing, fmt::format("has rows of {} values, not a multiple of its block of {}", row,
                              block->values));
  }
  const auto elements = tensor_elements(tensor.shape);
  if (!elements) refuse(thing, "has more elements than 63 bits count");
  const auto bytes = tensor_bytes(*elements, *block);
  if (!bytes) refuse(thing, "has more bytes than 63 bits count");
  return *bytes;
}

void put_zeros(const Sink& sink, uint64_t count) {
  static constexpr std::array<std::byte, 4096> kZeros = {};
  while (count > 0) {
    const uint64_t piece = std::min<uint64_t>(count, kZeros.size());
    sink(std::span(kZeros).first(piece));
    count -= piece;
  }
}

HeaderBytes make_header(const Metadata& metadata, const std::vector<TensorToWrite>& tensors,
                        const std::vector<uint64_t>& sizes, uint64_t alignment) {
  HeaderBytes header;
  header.raw(kMagic);
  header.number(kVersion);
  header.number(uint64_t{tensors.size()});
  header.number(uint64_t{metadata.size()});
  for (const std::string& key : metadata.keys()) {
    if (key.empty() || key.size() > kMaxKeyBytes) {
      refuse(fmt::format("metadata key \"{}\"", key), "is empty or too long");
    }
    header.text(key);
    put_value(header, key, *metadata.find(key));
  }
  uint64_t offset = 0;
  std::set<std::string_view> names;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorToWrite& tensor = tensors[i];
    if (!names.insert(tensor.name).second) {
      refuse(fmt::format("tensor {}", tensor.name), "is given twice");
    }
    header.text(tensor.name);
    header.number(static_cast<uint32_t>(tensor.shape.size()));
    for (const uint64_t extent : tensor.shape) header.number(extent);
    header.number(static_cast<uint32_t>(tensor.type));
    header.number(offset);
    offset += (sizes[i] + alignment - 1) / alignment * alignment;
  }
  return header;
}

/// A file under a temporary name beside its destination, removed unless it is published.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& destination) : destination_(destination) {
    // A name of this process alone; an old leftover of the same name is passed over. Created with
    // open() rather than mkstemp() so that the file gets the permissions that the user's umask
    // gives.
    for (int attempt = 0; attempt < 1000 && fd_ < 0; ++attempt) {
      name_ = fmt::format("{}.partial-{}-{}", destination.string(), ::getpid(), attempt);
      fd_ = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd_ < 0 && errno != EEXIST) break;
    }
    if (fd_ < 0) fail("cannot be created");
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(name_.c_str());
  }

  void write(std::span<const std::byte> bytes) {
    if (bytes.size() + buffer_.size() > kBuffer) flush();
    if (bytes.size() > kBuffer) return write_through(bytes);
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  void publish() {
    flush();
    if (::fsync(fd_) != 0) fail("cannot be written");
    if (::rename(name_.c_str(), destination_.c_str()) != 0) fail("cannot be put in place");
    ::close(std::exchange(fd_, -1));
    sync_folder();
  }

 private:
  static constexpr size_t kBuffer = size_t{1} << 20;

  [[noreturn]] void fail(std::string_view what) const {
    const int error = errno;
    throw Error(ErrorKind::failed, destination_.string(),
                fmt::format("{}: {}", what, std::strerror(error)),
                error == ENOSPC || error == EFBIG || error == EDQUOT
                    ? "make room or write elsewhere"
                    : "check the folder and its permissions");
  }

  void flush() {
    write_through(std::as_bytes(std::span(buffer_)));
    buffer_.clear();
  }

  void write_through(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("cannot be written");
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }

  /// Makes the rename itself durable. The file is whole by now, so a failure here is not an error.
  void sync_folder() const {
    const auto folder = destination_.has_parent_path() ? destination_.parent_path() : ".";
    const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    ::fsync(fd);
    ::close(fd);
  }

  std::filesystem::path destination_;
  std::string name_;
  int fd_ = -1;
  std::string buffer_;
};

}  // namespace

void write_stream(const Sink& sink, const Metadata& metadata,
                  const std::vector<TensorToWrite>& tensors) {
  const uint64_t alignment = alignment_of(metadata);
  std::vector<uint64_t> sizes;
  sizes.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) sizes.push_back(checked_bytes(tensor));
  const HeaderBytes header = make_header(metadata, tensors, sizes, alignment);
  const auto pad = [&](uint64_t size) {
    put_zeros(sink, (alignment - size % alignment) % alignment);
  };
  sink(header.bytes());
  pad(header.bytes().size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string thing = fmt::format("tensor {}", tensors[i].name);
    uint64_t written = 0;
    const auto count_and_pass = [&](std::span<const std::byte> piece) {
      written += piece.size();
      if (written > sizes[i]) {
        refuse(thing, fmt::format("was given more than the {} bytes of its shape", sizes[i]));
      }
      sink(piece);
    };
    if (tensors[i].fill) tensors[i].fill(count_and_pass);
    if (written != sizes[i]) {
      refuse(thing, fmt::format("was given {} bytes where its shape has {}", written, sizes[i]));
    }
    pad(written);
  }
}

void write_file(const std::filesystem::path& path, const Metadata& metadata,
                const std::vector<TensorToWrite>& tensors) {
  TemporaryFile file(path);
  write_stream([&](std::span<const std::byte> bytes) { file.write(bytes); }, metadata, tensors);
  file.publish();
}

std::vector<std::byte> write_image(const Metadata& metadata,
                                   const std::vector<TensorToWrite>& tensors) {
  std::vector<std::byte> image;
  write_stream(
      [&](std::span<const std::byte> bytes) {
        image.insert(image.end(), bytes.begin(), bytes.end());
      },
      metadata, tensors);
  return image;
}

}  // namespace quern::gguf
