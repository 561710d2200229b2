#include "models/gguf/parse.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "models/error.h"
#include "models/gguf/limits.h"
#include "models/gguf/tensor_size.h"
#include "models/gguf/value_type.h"

namespace quern::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "values are read as they lie");

/// Reads an image from front to back. Every read is checked against what remains, and every count
/// against what could still fit, before anything is allocated.
class Parser {
 public:
  Parser(std::span<const std::byte> image, std::string_view name, TensorTypes accepted)
      : image_(image), name_(name), accepted_(accepted) {}

  ParsedImage parse() {
    read_header();
    for (uint64_t i = 0; i < key_count_; ++i) read_pair();
    read_alignment();
    for (uint64_t i = 0; i < tensor_count_; ++i) read_tensor_info();
    result_.header = image_.first(at_);
    place_tensors();
    return std::move(result_);
  }

 private:
  [[noreturn]] void bad(const std::string& reason, std::string_view remedy = {}) const {
    throw Error(ErrorKind::bad_model, name_, reason, remedy);
  }

  uint64_t remaining() const { return image_.size() - at_; }

  std::span<const std::byte> take(uint64_t bytes, std::string_view what) {
    if (bytes > remaining()) {
      bad(fmt::format("is truncated: {} needs {} bytes at offset {}, {} are left", what, bytes, at_,
                      remaining()),
          "get the file again");
    }
    const auto piece = image_.subspan(at_, bytes);
    at_ += bytes;
    return piece;
  }

  template <typename T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string text(std::string_view what, uint64_t longest) {
    const auto length = number<uint64_t>(what);
    if (length > longest) {
      bad(fmt::format("{} claims {} bytes; at most {} are allowed", what, length, longest));
    }
    const auto bytes = take(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void read_header() {
    if (image_.size() < kMagic.size() ||
        std::memcmp(image_.data(), kMagic.data(), kMagic.size()) != 0) {
      bad(image_.empty() ? "is empty, not a GGUF file"
                         : "is not a GGUF file: it does not start with \"GGUF\"");
    }
    at_ = kMagic.size();
    result_.version = number<uint32_t>("the version");
    const uint32_t version = result_.version;
    if (version != 0 && (version & 0xffffu) == 0) {
      bad("is a big-endian GGUF file; Quern reads little-endian ones", "convert it");
    }
    if (version < 2 || version > 3) {
      bad(fmt::format("is GGUF version {}; Quern reads versions 2 and 3", version));
    }
    tensor_count_ = count("the tensor count", "tensors", kMinTensorInfoBytes);
    key_count_ = count("the metadata count", "metadata keys", kMinPairBytes);
    // Both lists must fit together; each was checked alone, so the products cannot overflow.
    if (tensor_count_ * kMinTensorInfoBytes + key_count_ * kMinPairBytes > remaining()) {
      bad(fmt::format("claims {} tensors and {} metadata keys, more than its {} bytes can hold",
                      tensor_count_, key_count_, image_.size()));
    }
  }

  uint64_t count(std::string_view what, std::string_view things, uint64_t min_bytes) {
    const auto value = number<int64_t>(what);
    if (value < 0) bad(fmt::format("{} is {}", what, value));
    if (static_cast<uint64_t>(value) > remaining() / min_bytes) {
      bad(fmt::format("claims {} {}, more than its {} bytes can hold", value, things,
                      image_.size()));
    }
    return static_cast<uint64_t>(value);
  }

  ValueType value_type(const std::string& what) {
    const auto id = number<uint32_t>(what);
    if (!is_value_type(id))
      bad(fmt::format("{} has value type {}, which does not exist", what, id));
    return static_cast<ValueType>(id);
  }

  void read_pair() {
    std::string key = text("a metadata key", kMaxKeyBytes);
    if (key.empty()) bad("has a metadata key without a name");
    if (result_.metadata.has(key)) bad(fmt::format("has metadata key {} twice", key));
    const std::string what = fmt::format("metadata key {}", key);
    Value value;
    value.type = value_type(what);
    if (value.type == ValueType::array) {
      value.element = value_type(what);
      value.data = array(value.element, what);
    } else if (value.type == ValueType::string) {
      value.data = text(what, kMaxStringBytes);
    } else {
      value.data = scalar(value.type, what);
    }
    result_.metadata.set(std::move(key), std::move(value));
  }

  bool boolean(const std::string& what) {
    const auto byte = number<uint8_t>(what);
    if (byte > 1) bad(fmt::format("{} holds the bool {}, which is neither 0 nor 1", what, byte));
    return byte == 1;
  }

  Value::Storage scalar(ValueType type, const std::string& what) {
    switch (type) {
      case ValueType::u8:
        return uint64_t{number<uint8_t>(what)};
      case ValueType::i8:
        return int64_t{number<int8_t>(what)};
      case ValueType::u16:
        return uint64_t{number<uint16_t>(what)};
      case ValueType::i16:
        return int64_t{number<int16_t>(what)};
      case ValueType::u32:
        return uint64_t{number<uint32_t>(what)};
      case ValueType::i32:
        return int64_t{number<int32_t>(what)};
      case ValueType::f32:
        return double{number<float>(what)};
      case ValueType::boolean:
        return boolean(what);
      case ValueType::u64:
        return number<uint64_t>(what);
      case ValueType::i64:
        return number<int64_t>(what);
      case ValueType::f64:
        return number<double>(what);
      case ValueType::string:
      case ValueType::array:
        break;
    }
    bad(fmt::format("{} is not a single value", what));
  }

  template <typename FileType, typename HeldType>
  Value::Storage numbers(uint64_t length, const std::string& what) {
    const auto bytes = take(length * sizeof(FileType), what);
    std::vector<HeldType> values(length);
    for (size_t i = 0; i < length; ++i) {
      FileType value;
      std::memcpy(&value, bytes.data() + i * sizeof(FileType), sizeof(FileType));
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): an INT8 is a number here, and keeps its sign
      values[i] = value;
    }
    return values;
  }

  Value::Storage array(ValueType element, const std::string& what) {
    if (element == ValueType::array) {
      bad(fmt::format("{} is an array of arrays, which Quern does not read", what));
    }
    const auto length = number<uint64_t>(what);
    // A string takes at least its length field.
    const uint64_t element_bytes = value_type_bytes(element).value_or(sizeof(uint64_t));
    if (length > kMaxArrayBytes / element_bytes) {
      bad(fmt::format("{} claims {} values of type {}; at most {} bytes are allowed", what, length,
                      value_type_name(element), kMaxArrayBytes));
    }
    if (length > remaining() / element_bytes) {
      bad(fmt::format("is truncated: {} claims {} values of type {}, {} bytes are left", what,
                      length, value_type_name(element), remaining()),
          "get the file again");
    }
    switch (element) {
      case ValueType::u8:
        return numbers<uint8_t, uint64_t>(length, what);
      case ValueType::i8:
        return numbers<int8_t, int64_t>(length, what);
      case ValueType::u16:
        return numbers<uint16_t, uint64_t>(length, what);
      case ValueType::i16:
        return numbers<int16_t, int64_t>(length, what);
      case ValueType::u32:
        return numbers<uint32_t, uint64_t>(length, what);
      case ValueType::i32:
        return numbers<int32_t, int64_t>(length, what);
      case ValueType::f32:
        return numbers<float, double>(length, what);
      case ValueType::u64:
        return numbers<uint64_t, uint64_t>(length, what);
      case ValueType::i64:
        return numbers<int64_t, int64_t>(length, what);
      case ValueType::f64:
        return numbers<double, double>(length, what);
      case ValueType::boolean: {
        std::vector<uint8_t> values(length);
        for (uint8_t& value : values) value = boolean(what) ? 1 : 0;
        return values;
      }
      case ValueType::string: {
        std::vector<std::string> values(length);
        for (std::string& value : values) value = text(what, kMaxStringBytes);
        return values;
      }
      case ValueType::array:
        break;
    }
    bad(fmt::format("{} is not an array Quern reads", what));
  }

  void read_alignment() {
    const Value* value = result_.metadata.find(kAlignmentKey);
    if (value == nullptr) return;
    if (value->type != ValueType::u32) {
      bad(fmt::format("metadata key {} has type {} where u32 is needed", kAlignmentKey,
                      value_type_name(value->type)));
    }
    result_.alignment = std::get<uint64_t>(value->data);
    if (!std::has_single_bit(result_.alignment)) {
      bad(fmt::format("metadata key {} is {}, which is not a power of two", kAlignmentKey,
                      result_.alignment));
    }
  }

  void read_tensor_info() {
    Tensor tensor;
    tensor.name = text("a tensor name", kMaxTensorNameBytes);
    if (tensor.name.empty()) bad("has a tensor without a name");
    if (!names_.insert(tensor.name).second) bad(fmt::format("has tensor {} twice", tensor.name));
    const std::string what = fmt::format("tensor {}", tensor.name);

    const auto dimensions = number<uint32_t>(what);
    if (dimensions > kMaxDimensions) {
      bad(fmt::format("{} has {} dimensions; at most {} are allowed", what, dimensions,
                      kMaxDimensions));
    }
    for (uint32_t i = 0; i < dimensions; ++i) {
      const auto extent = number<int64_t>(what);
      if (extent < 0) bad(fmt::format("{} has extent {} in dimension {}", what, extent, i));
      tensor.shape.push_back(static_cast<uint64_t>(extent));
    }
    const auto elements = tensor_elements(tensor.shape);
    if (!elements) bad(fmt::format("{} has more elements than 63 bits count", what));

    const auto type_id = number<uint32_t>(what);
    const auto block = gguf_block_size(type_id);
    if (!quant_type_from_id(type_id) && (accepted_ == TensorTypes::decodable || !block)) {
      bad(fmt::format("{} has type {}, which Quern does not decode", what, gguf_type_name(type_id)),
          "use a file quantised to another type");
    }
    tensor.type = static_cast<QuantType>(type_id);
    if (tensor.row_length() % block->values != 0) {
      bad(fmt::format("{} has rows of {} values, which is not a multiple of the {} block of {}",
                      what, tensor.row_length(), gguf_type_name(type_id), block->values));
    }
    const auto bytes = tensor_bytes(*elements, *block);
    if (!bytes) bad(fmt::format("{} has more bytes than 63 bits count", what));
    infos_.push_back({.offset = number<uint64_t>(what), .bytes = *bytes});
    result_.tensors.push_back(std::move(tensor));
  }

  /// `value` rounded up to the alignment, or nothing where that passes 63 bits.
  std::optional<uint64_t> align_up(uint64_t value) const {
    if (value > kMaxTensorSize - (result_.alignment - 1)) return std::nullopt;
    return (value + result_.alignment - 1) & ~(result_.alignment - 1);
  }

  /// Tensors lie one after the other, each padded to the alignment. Padding after the last one may
  /// be missing: files without tensors, and those of some writers, end right where their content
  /// does.
  void place_tensors() {
    if (result_.tensors.empty()) return;
    const auto data_start = align_up(at_);
    uint64_t expected = 0;
    for (size_t i = 0; i < infos_.size(); ++i) {
      const TensorInfo& info = infos_[i];
      Tensor& tensor = result_.tensors[i];
      if (info.offset % result_.alignment != 0) {
        bad(fmt::format("tensor {} has offset {}, which is not a multiple of the alignment {}",
                        tensor.name, info.offset, result_.alignment));
      }
      if (info.offset != expected) {
        bad(fmt::format("tensor {} has offset {} where {} is expected", tensor.name, info.offset,
                        expected));
      }
      uint64_t start = 0;
      if (!data_start || __builtin_add_overflow(*data_start, expected, &start) ||
          start > image_.size() || info.bytes > image_.size() - start) {
        bad(fmt::format("is truncated: tensor {} needs {} bytes at data offset {}, beyond the end "
                        "of the file of {} bytes",
                        tensor.name, info.bytes, expected, image_.size()),
            "get the file again");
      }
      tensor.data = image_.subspan(start, info.bytes);
      // Cannot overflow: the sum is within the image, whose size is far below 63 bits, plus
      // padding.
      expected = align_up(expected + info.bytes).value_or(kMaxTensorSize);
    }
  }

  struct TensorInfo {
    uint64_t offset;
    uint64_t bytes;
  };

  std::span<const std::byte> image_;
  std::string_view name_;
  TensorTypes accepted_;
  size_t at_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  std::vector<TensorInfo> infos_;
  std::unordered_set<std::string> names_;
  ParsedImage result_;
};

}  // namespace

ParsedImage parse_image(std::span<const std::byte> image, std::string_view name,
                        TensorTypes accepted) {
  return Parser(image, name, accepted).parse();
}

}  // namespace quern::gguf
