#include "models/keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"

namespace quern {
namespace {

constexpr uint64_t largest_size = uint64_t{1} << 31;

Size checked(uint64_t value, std::string origin) {
  if (value > largest_size) {
    throw Error(ErrorKind::bad_model, fmt::format("metadata keys {}", origin),
                "give a size above 2^31");
  }
  return {value, std::move(origin)};
}

}  // namespace

Size operator*(const Size& a, const Size& b) {
  // Both factors are at most 2^31: the product cannot overflow 64 bits.
  return checked(a.value * b.value, fmt::format("{} x {}", a.origin, b.origin));
}

Size operator*(uint32_t factor, const Size& size) {
  return checked(factor * size.value, fmt::format("{} x {}", factor, size.origin));
}

Size operator+(const Size& a, const Size& b) {
  return checked(a.value + b.value, fmt::format("{} + {}", a.origin, b.origin));
}

Keys::Keys(const gguf::Metadata& metadata, std::string architecture)
    : metadata_(metadata), architecture_(std::move(architecture)) {
  asked_.insert("general.architecture");
}

std::string Keys::full(std::string_view key) const {
  return fmt::format("{}.{}", architecture_, key);
}

const std::string& Keys::note(std::string_view key) const {
  return *asked_.insert(full(key)).first;
}

bool Keys::has(std::string_view key) const {
  return metadata_.has(note(key));
}

Size Keys::size(std::string_view key, Bounds bounds) const {
  const std::string& name = note(key);
  const uint64_t value = metadata_.get_uint(name);
  if (value < bounds.low || value > bounds.high) {
    refuse(key, fmt::format("is {} where {} to {} makes sense", value, bounds.low, bounds.high));
  }
  return {value, name};
}

Size Keys::size_or(std::string_view key, const Size& fallback, Bounds bounds) const {
  return has(key) ? size(key, bounds) : fallback;
}

Size Keys::uniform(std::string_view key, uint64_t n_blocks, Bounds bounds) const {
  if (!is_array(key)) return size(key, bounds);
  const std::vector<int64_t> values = integers(key);
  if (values.size() != n_blocks) {
    refuse(key, fmt::format("has {} values for {} blocks", values.size(), n_blocks));
  }
  if (std::ranges::adjacent_find(values, std::not_equal_to{}) != values.end()) {
    refuse(key, "differs between blocks, which is not supported");
  }
  const int64_t value = values.front();
  if (value < 0 || static_cast<uint64_t>(value) < bounds.low ||
      static_cast<uint64_t>(value) > bounds.high) {
    refuse(key, fmt::format("is {} where {} to {} makes sense", value, bounds.low, bounds.high));
  }
  return {static_cast<uint64_t>(value), full(key)};
}

Size Keys::uniform_or(std::string_view key, uint64_t n_blocks, const Size& fallback,
                      Bounds bounds) const {
  return has(key) ? uniform(key, n_blocks, bounds) : fallback;
}

double Keys::real(std::string_view key, Range range) const {
  const double value = metadata_.get_float(note(key));
  // Written so that NaN is refused too.
  const bool above = range.with_low ? value >= range.low : value > range.low;
  if (!(above && value <= range.high)) {
    refuse(key, fmt::format("is {} where a value {} {} and up to {} makes sense", value,
                            range.with_low ? "from" : "above", range.low, range.high));
  }
  return value;
}

double Keys::real_or(std::string_view key, double fallback, Range range) const {
  return has(key) ? real(key, range) : fallback;
}

std::string Keys::text_or(std::string_view key, std::string_view fallback) const {
  return metadata_.get_string_or(note(key), fallback);
}

bool Keys::flag_or(std::string_view key, bool fallback) const {
  return metadata_.get_bool_or(note(key), fallback);
}

std::vector<bool> Keys::flags(std::string_view key) const {
  return metadata_.get_bools(note(key));
}

std::vector<int64_t> Keys::integers(std::string_view key) const {
  return metadata_.get_ints(note(key));
}

bool Keys::is_array(std::string_view key) const {
  const gguf::Value* value = metadata_.find(note(key));
  return value != nullptr && value->type == gguf::ValueType::array;
}

uint64_t Keys::global_strings(std::string_view key) const {
  asked_.emplace(key);
  return metadata_.has(key) ? metadata_.get_strings(key).size() : 0;
}

void Keys::must_be_zero(std::string_view key) const {
  if (has(key) && metadata_.get_float(full(key)) != 0) {
    refuse(key, fmt::format("is set, which the {} family does not compute", architecture_));
  }
}

void Keys::refuse(std::string_view key, std::string_view reason, std::string_view remedy) const {
  throw Error(ErrorKind::bad_model, fmt::format("metadata key {}", full(key)), reason, remedy);
}

}  // namespace quern
