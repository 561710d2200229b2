#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quern::test {

/// Builds GGUF images byte by byte, unsound ones too, independently of the writer under test.
class GgufBytes {
 public:
  /// Starts with the magic, a version and the two counts.
  static GgufBytes header(uint32_t version, int64_t tensors, int64_t keys) {
    return GgufBytes().raw("GGUF").number(version).number(tensors).number(keys);
  }

  GgufBytes& raw(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  template <typename T>
  GgufBytes& number(T value) {
    return raw({reinterpret_cast<const char*>(&value), sizeof(T)});
  }
  GgufBytes& text(std::string_view value) { return number(uint64_t{value.size()}).raw(value); }
  /// A key and its value's type id; the value itself follows.
  GgufBytes& key(std::string_view name, uint32_t type) { return text(name).number(type); }
  GgufBytes& u32_pair(std::string_view name, uint32_t value) { return key(name, 4).number(value); }
  GgufBytes& string_pair(std::string_view name, std::string_view value) {
    return key(name, 8).text(value);
  }
  /// A key with an array of this element type and count; the elements follow.
  GgufBytes& array(std::string_view name, uint32_t element, uint64_t count) {
    return key(name, 9).number(element).number(count);
  }
  /// An entry of the tensor table.
  GgufBytes& tensor(std::string_view name, std::initializer_list<int64_t> shape, uint32_t type,
                    uint64_t offset) {
    text(name).number(static_cast<uint32_t>(shape.size()));
    for (const int64_t extent : shape) number(extent);
    return number(type).number(offset);
  }
  GgufBytes& pad(size_t alignment = 32) {
    while (bytes_.size() % alignment != 0) bytes_.push_back('\0');
    return *this;
  }
  GgufBytes& fill(size_t count, char value = 1) {
    bytes_.append(count, value);
    return *this;
  }

  size_t size() const { return bytes_.size(); }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

}  // namespace quern::test
