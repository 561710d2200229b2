#include "compiler/kernel.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <span>
#include <type_traits>

#include "compiler/spec_json.h"
#include "compiler/spec_names.h"
#include "models/error.h"
#include "models/sha256.h"

namespace quern {

namespace {

#define QUERN_SAME_ID(name)                                        \
  static_assert(static_cast<uint32_t>(spec::QuantType::name) ==    \
                    static_cast<uint32_t>(quern::QuantType::name), \
                "specs and models must agree on the type's GGUF id")
QUERN_SAME_ID(f32);
QUERN_SAME_ID(f16);
QUERN_SAME_ID(q4_0);
QUERN_SAME_ID(q4_1);
QUERN_SAME_ID(q5_0);
QUERN_SAME_ID(q5_1);
QUERN_SAME_ID(q8_0);
QUERN_SAME_ID(q2_k);
QUERN_SAME_ID(q3_k);
QUERN_SAME_ID(q4_k);
QUERN_SAME_ID(q5_k);
QUERN_SAME_ID(q6_k);
QUERN_SAME_ID(iq4_nl);
QUERN_SAME_ID(iq4_xs);
QUERN_SAME_ID(bf16);
QUERN_SAME_ID(mxfp4);
#undef QUERN_SAME_ID

[[noreturn]] void refuse(std::string_view thing, std::string_view reason) {
  throw Error(ErrorKind::failed, thing, reason, "write the plan again with `quern compile`");
}

/// Builds JSON from the fields of a spec.
struct Writer {
  OrderedJson& json;

  static OrderedJson value(std::string_view, uint32_t number) { return number; }
  static OrderedJson value(std::string_view name, float number) {
    if (!std::isfinite(number)) refuse(name, "the value is not finite");
    return readable_double(number);
  }
  template <class E>
    requires std::is_enum_v<E>
  static OrderedJson value(std::string_view name, E enumerator) {
    const std::string_view text = spec_name(enumerator);
    if (text.empty()) {
      refuse(name, fmt::format("no such value: {}", static_cast<uint32_t>(enumerator)));
    }
    return text;
  }
  template <class T>
    requires std::is_class_v<T>
  static OrderedJson value(std::string_view, const T& nested) {
    OrderedJson object = OrderedJson::object();
    T::fields(nested, Writer{object});
    return object;
  }

  template <class T>
  void operator()(const char* name, const T& field) {
    if constexpr (std::is_array_v<T>) {
      OrderedJson array = OrderedJson::array();
      for (const auto& element : field) array.push_back(value(name, element));
      json[name] = std::move(array);
    } else {
      json[name] = value(name, field);
    }
  }
};

/// Fills the fields of a spec from JSON, and counts them so that strangers are found.
struct Reader {
  const OrderedJson& json;
  std::string where;
  size_t seen = 0;

  static void value(const OrderedJson& json, const std::string& where, uint32_t& number) {
    if (!json.is_number_unsigned() || json.get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
      refuse(where, "not a 32-bit unsigned number");
    }
    number = json.get<uint32_t>();
  }
  static void value(const OrderedJson& json, const std::string& where, float& number) {
    if (!json.is_number()) refuse(where, "not a number");
    const double wide = json.get<double>();
    if (!(std::fabs(wide) <= std::numeric_limits<float>::max())) {
      refuse(where, "the number is outside the range of f32");
    }
    number = static_cast<float>(wide);
  }
  template <class E>
    requires std::is_enum_v<E>
  static void value(const OrderedJson& json, const std::string& where, E& enumerator) {
    if (!json.is_string()) refuse(where, "not a name");
    const std::string& text = json.get_ref<const std::string&>();
    if (!spec_value(text, enumerator)) refuse(where, fmt::format("unknown name \"{}\"", text));
  }
  template <class T>
    requires std::is_class_v<T>
  static void value(const OrderedJson& json, const std::string& where, T& nested) {
    if (!json.is_object()) refuse(where, "not an object");
    Reader reader{json, where};
    T::fields(nested, reader);
    reader.finish();
  }

  template <class T>
  void operator()(const char* name, T& field) {
    const std::string path = where + "." + name;
    const auto found = json.find(name);
    if (found == json.end()) refuse(path, "missing");
    ++seen;
    if constexpr (std::is_array_v<T>) {
      if (!found->is_array() || found->size() != std::extent_v<T>) {
        refuse(path, fmt::format("not an array of {}", std::extent_v<T>));
      }
      for (size_t i = 0; i < std::extent_v<T>; ++i) {
        value((*found)[i], fmt::format("{}[{}]", path, i), field[i]);
      }
    } else {
      value(*found, path, field);
    }
  }

  void finish() const {
    if (seen != json.size()) refuse(where, "holds fields that this family does not have");
  }
};

/// Flattens fields to "segments[0].type" = "q4_k".
struct Lister {
  std::vector<std::pair<std::string, std::string>>& list;
  std::string prefix;

  void value(const std::string& path, uint32_t number) {
    list.emplace_back(path, fmt::to_string(number));
  }
  void value(const std::string& path, float number) {
    list.emplace_back(path, fmt::to_string(readable_double(number)));
  }
  template <class E>
    requires std::is_enum_v<E>
  void value(const std::string& path, E enumerator) {
    const std::string_view name = spec_name(enumerator);
    list.emplace_back(
        path, name.empty() ? fmt::to_string(static_cast<uint32_t>(enumerator)) : std::string(name));
  }
  template <class T>
    requires std::is_class_v<T>
  void value(const std::string& path, const T& nested) {
    T::fields(nested, Lister{list, path + "."});
  }

  template <class T>
  void operator()(const char* name, const T& field) {
    const std::string path = prefix + name;
    if constexpr (std::is_array_v<T>) {
      for (size_t i = 0; i < std::extent_v<T>; ++i) value(fmt::format("{}[{}]", path, i), field[i]);
    } else {
      value(path, field);
    }
  }
};

/// Makes a default spec of the family and hands it to `use`; false where no family has the name.
template <class Use, size_t Index = 0>
bool with_family(std::string_view family, Use&& use) {
  if constexpr (Index == std::variant_size_v<spec::AnySpec>) {
    return false;
  } else {
    using Spec = std::variant_alternative_t<Index, spec::AnySpec>;
    if (family == Spec::family) {
      use(Spec{});
      return true;
    }
    return with_family<Use, Index + 1>(family, std::forward<Use>(use));
  }
}

void feed(Sha256& hash, std::string_view text) {
  // Lengths first, so that no two lists of fields run together into the same bytes.
  const std::string length = fmt::format("{}:", text.size());
  hash.update(std::as_bytes(std::span(length)));
  hash.update(std::as_bytes(std::span(text)));
}

}  // namespace

double readable_double(float value) {
  const double exact = static_cast<double>(value);
  if (!std::isfinite(value)) return exact;
  const double shown = std::strtod(fmt::format("{}", value).c_str(), nullptr);
  // The largest f32's short decimal lies beyond it.
  if (std::fabs(shown) > std::numeric_limits<float>::max()) return exact;
  return static_cast<float>(shown) == value ? shown : exact;
}

OrderedJson spec_to_json(const spec::AnySpec& spec) {
  OrderedJson json = OrderedJson::object();
  std::visit(
      [&json](const auto& held) {
        using Spec = std::decay_t<decltype(held)>;
        json["family"] = Spec::family;
        Spec::fields(held, Writer{json});
      },
      spec);
  return json;
}

spec::AnySpec spec_from_json(const OrderedJson& json, std::string_view where) {
  if (!json.is_object()) refuse(where, "not an object");
  const auto family = json.find("family");
  const std::string family_path = fmt::format("{}.family", where);
  if (family == json.end()) refuse(family_path, "missing");
  if (!family->is_string()) refuse(family_path, "not a name");
  const std::string& name = family->get_ref<const std::string&>();
  spec::AnySpec spec;
  const bool known = with_family(name, [&](auto held) {
    Reader reader{json, std::string(where), 1};
    decltype(held)::fields(held, reader);
    reader.finish();
    spec = held;
  });
  if (!known) refuse(family_path, fmt::format("unknown kernel family \"{}\"", name));
  return spec;
}

std::string spec_to_text(const spec::AnySpec& spec) {
  return spec_to_json(spec).dump();
}

spec::AnySpec spec_from_text(std::string_view text) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) refuse("kernel spec", "the text is not JSON");
  return spec_from_json(json, "spec");
}

std::string_view spec_family(const spec::AnySpec& spec) {
  return std::visit([](const auto& held) { return std::string_view(held.family); }, spec);
}

bool is_library(const spec::AnySpec& spec) {
  return std::holds_alternative<spec::MatmulSpec>(spec);
}

std::vector<std::pair<std::string, std::string>> spec_fields(const spec::AnySpec& spec) {
  std::vector<std::pair<std::string, std::string>> list;
  std::visit(
      [&list](const auto& held) { std::decay_t<decltype(held)>::fields(held, Lister{list, {}}); },
      spec);
  return list;
}

std::string KernelKey::digest() const {
  Sha256 hash;
  for (const auto& [name, value] : fields) {
    feed(hash, name);
    feed(hash, value);
  }
  return hash.hex();
}

}  // namespace quern
