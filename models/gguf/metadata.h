#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace quern::gguf {

/// GGUF metadata value types, with the file's own ids.
enum class ValueType : uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

/// One metadata value. Integers of every width are held as 64 bits (signed or unsigned, as the
/// file says), f32 and f64 as double, arrays by element family. `type` (and `element`, for an
/// array) remember what the file said, so that a file can be written back as it was.
struct Value {
  using Storage = std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<uint64_t>,
                               std::vector<int64_t>, std::vector<double>,
                               std::vector<uint8_t> /* bools */, std::vector<std::string>>;
  ValueType type = ValueType::u32;
  ValueType element = ValueType::u32;  ///< Meaningful for arrays alone.
  Storage data;
};

/// The key-value part of a GGUF file, in the file's order, with typed look-ups whose errors
/// (`ErrorKind::bad_model`) name the key and what is wrong with it.
class Metadata {
 public:
  /// Adds or replaces a value; the order of first insertion is kept.
  void set(std::string key, Value value);
  void set_u32(std::string key, uint32_t value);
  void set_f32(std::string key, float value);
  void set_bool(std::string key, bool value);
  void set_string(std::string key, std::string value);
  void set_i32_array(std::string key, std::vector<int64_t> values);
  void set_f32_array(std::string key, std::vector<double> values);
  void set_string_array(std::string key, std::vector<std::string> values);

  bool has(std::string_view key) const;
  /// The value, or null where the key is absent.
  const Value* find(std::string_view key) const;
  size_t size() const { return order_.size(); }
  /// Keys in file order.
  const std::vector<std::string>& keys() const { return order_; }

  /// Required look-ups. Any integer type of the file is accepted where the value is in range; a
  /// float is accepted from f32 and f64 alone.
  uint64_t get_uint(std::string_view key) const;
  double get_float(std::string_view key) const;
  bool get_bool(std::string_view key) const;
  const std::string& get_string(std::string_view key) const;
  /// Arrays of any integer type / of floats / of strings / of bools. A scalar is not an array.
  std::vector<int64_t> get_ints(std::string_view key) const;
  std::vector<double> get_floats(std::string_view key) const;
  const std::vector<std::string>& get_strings(std::string_view key) const;
  std::vector<bool> get_bools(std::string_view key) const;

  /// Optional look-ups: the fallback where the key is absent, an error where it has another type.
  uint64_t get_uint_or(std::string_view key, uint64_t fallback) const;
  double get_float_or(std::string_view key, double fallback) const;
  bool get_bool_or(std::string_view key, bool fallback) const;
  std::string get_string_or(std::string_view key, std::string_view fallback) const;

 private:
  std::map<std::string, Value, std::less<>> values_;
  std::vector<std::string> order_;
};

}  // namespace quern::gguf
