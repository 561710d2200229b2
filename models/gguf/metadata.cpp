#include "models/gguf/metadata.h"

#include <fmt/format.h>

#include <limits>
#include <type_traits>
#include <utility>

#include "models/error.h"
#include "models/gguf/value_type.h"

namespace quern::gguf {
namespace {

[[noreturn]] void missing(std::string_view key) {
  throw Error(ErrorKind::bad_model, fmt::format("metadata key {}", key), "is missing");
}

std::string describe(const Value& value) {
  if (value.type != ValueType::array) return std::string(value_type_name(value.type));
  return fmt::format("array of {}", value_type_name(value.element));
}

[[noreturn]] void wrong_type(std::string_view key, const Value& value, std::string_view wanted) {
  throw Error(ErrorKind::bad_model, fmt::format("metadata key {}", key),
              fmt::format("has type {} where {} is needed", describe(value), wanted));
}

const Value& require(const Metadata& metadata, std::string_view key) {
  const Value* value = metadata.find(key);
  if (value == nullptr) missing(key);
  return *value;
}

Value scalar(ValueType type, Value::Storage data) {
  return {.type = type, .element = ValueType::u32, .data = std::move(data)};
}

Value array(ValueType element, Value::Storage data) {
  return {.type = ValueType::array, .element = element, .data = std::move(data)};
}

}  // namespace

void Metadata::set(std::string key, Value value) {
  const auto [it, inserted] = values_.insert_or_assign(key, std::move(value));
  if (inserted) order_.push_back(std::move(key));
}

void Metadata::set_u32(std::string key, uint32_t value) {
  set(std::move(key), scalar(ValueType::u32, uint64_t{value}));
}

void Metadata::set_f32(std::string key, float value) {
  set(std::move(key), scalar(ValueType::f32, double{value}));
}

void Metadata::set_bool(std::string key, bool value) {
  set(std::move(key), scalar(ValueType::boolean, value));
}

void Metadata::set_string(std::string key, std::string value) {
  set(std::move(key), scalar(ValueType::string, std::move(value)));
}

void Metadata::set_i32_array(std::string key, std::vector<int64_t> values) {
  set(std::move(key), array(ValueType::i32, std::move(values)));
}

void Metadata::set_f32_array(std::string key, std::vector<double> values) {
  set(std::move(key), array(ValueType::f32, std::move(values)));
}

void Metadata::set_string_array(std::string key, std::vector<std::string> values) {
  set(std::move(key), array(ValueType::string, std::move(values)));
}

bool Metadata::has(std::string_view key) const {
  return find(key) != nullptr;
}

const Value* Metadata::find(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

uint64_t Metadata::get_uint(std::string_view key) const {
  const Value& value = require(*this, key);
  if (const auto* u = std::get_if<uint64_t>(&value.data)) return *u;
  const auto* i = std::get_if<int64_t>(&value.data);
  if (i == nullptr) wrong_type(key, value, "a non-negative integer");
  if (*i < 0) {
    throw Error(ErrorKind::bad_model, fmt::format("metadata key {}", key),
                fmt::format("is {} where a non-negative integer is needed", *i));
  }
  return static_cast<uint64_t>(*i);
}

double Metadata::get_float(std::string_view key) const {
  const Value& value = require(*this, key);
  const auto* number = std::get_if<double>(&value.data);
  if (number == nullptr) wrong_type(key, value, "a float");
  return *number;
}

bool Metadata::get_bool(std::string_view key) const {
  const Value& value = require(*this, key);
  const auto* flag = std::get_if<bool>(&value.data);
  if (flag == nullptr) wrong_type(key, value, "a bool");
  return *flag;
}

const std::string& Metadata::get_string(std::string_view key) const {
  const Value& value = require(*this, key);
  const auto* text = std::get_if<std::string>(&value.data);
  if (text == nullptr) wrong_type(key, value, "a string");
  return *text;
}

std::vector<int64_t> Metadata::get_ints(std::string_view key) const {
  const Value& value = require(*this, key);
  if (const auto* signed_values = std::get_if<std::vector<int64_t>>(&value.data)) {
    return *signed_values;
  }
  const auto* values = std::get_if<std::vector<uint64_t>>(&value.data);
  if (values == nullptr) wrong_type(key, value, "an array of integers");
  std::vector<int64_t> result;
  result.reserve(values->size());
  for (const uint64_t element : *values) {
    if (element > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw Error(ErrorKind::bad_model, fmt::format("metadata key {}", key),
                  fmt::format("holds {}, which is out of range", element));
    }
    result.push_back(static_cast<int64_t>(element));
  }
  return result;
}

std::vector<double> Metadata::get_floats(std::string_view key) const {
  const Value& value = require(*this, key);
  const auto* values = std::get_if<std::vector<double>>(&value.data);
  if (values == nullptr) wrong_type(key, value, "an array of floats");
  return *values;
}

const std::vector<std::string>& Metadata::get_strings(std::string_view key) const {
  const Value& value = require(*this, key);
  const auto* values = std::get_if<std::vector<std::string>>(&value.data);
  if (values == nullptr) wrong_type(key, value, "an array of strings");
  return *values;
}

std::vector<bool> Metadata::get_bools(std::string_view key) const {
  const Value& value = require(*this, key);
  const auto* values = std::get_if<std::vector<uint8_t>>(&value.data);
  if (values == nullptr) wrong_type(key, value, "an array of bools");
  return {values->begin(), values->end()};
}

uint64_t Metadata::get_uint_or(std::string_view key, uint64_t fallback) const {
  return has(key) ? get_uint(key) : fallback;
}

double Metadata::get_float_or(std::string_view key, double fallback) const {
  return has(key) ? get_float(key) : fallback;
}

bool Metadata::get_bool_or(std::string_view key, bool fallback) const {
  return has(key) ? get_bool(key) : fallback;
}

std::string Metadata::get_string_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? get_string(key) : std::string(fallback);
}

}  // namespace quern::gguf
