#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "templates/spec/any_spec.h"

namespace quern::test {

/// Adds 1 to the field number `index` of a spec (fields of nested aggregates counted one by one);
/// false past the last.
class FieldChanger {
 public:
  explicit FieldChanger(size_t index) : index_(index) {}
  template <class T>
  void operator()(std::string_view, T& value) {
    change(value);
  }
  bool done() const { return done_; }

 private:
  template <class T>
  void change(T& value) {
    if constexpr (std::is_array_v<T>) {
      for (auto& item : value) change(item);
    } else if constexpr (std::is_enum_v<T>) {
      if (at_++ != index_) return;
      value = static_cast<T>(static_cast<uint32_t>(value) == 0 ? 1 : 0);
      done_ = true;
    } else if constexpr (std::is_class_v<T>) {
      T::fields(value, *this);
    } else {
      if (at_++ != index_) return;
      value = value + T{1};
      done_ = true;
    }
  }
  size_t index_, at_ = 0;
  bool done_ = false;
};

/// The specs that differ from this one in one field each, every field in turn.
inline std::vector<spec::AnySpec> every_field_changed(const spec::AnySpec& spec) {
  std::vector<spec::AnySpec> all;
  for (size_t field = 0;; ++field) {
    spec::AnySpec changed = spec;
    FieldChanger changer(field);
    std::visit([&](auto& s) { std::decay_t<decltype(s)>::fields(s, changer); }, changed);
    if (!changer.done()) return all;
    all.push_back(changed);
  }
}

}  // namespace quern::test
