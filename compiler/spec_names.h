#pragma once

// Names of the enumerators that kernel specs hold: one table an enum, used by the canonical text,
// the plan's JSON and the diffs.

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "models/quant/quant_type.h"
#include "templates/spec/any_spec.h"

namespace quern {

/// `SpecNames<E>::table` pairs every enumerator of E with its name in canonical text.
template <class E>
struct SpecNames;

template <>
struct SpecNames<spec::QuantType> {
  using E = spec::QuantType;
  static constexpr std::array<std::pair<E, std::string_view>, 16> table = {{
      {E::f32, "f32"},
      {E::f16, "f16"},
      {E::q4_0, "q4_0"},
      {E::q4_1, "q4_1"},
      {E::q5_0, "q5_0"},
      {E::q5_1, "q5_1"},
      {E::q8_0, "q8_0"},
      {E::q2_k, "q2_k"},
      {E::q3_k, "q3_k"},
      {E::q4_k, "q4_k"},
      {E::q5_k, "q5_k"},
      {E::q6_k, "q6_k"},
      {E::iq4_nl, "iq4_nl"},
      {E::iq4_xs, "iq4_xs"},
      {E::bf16, "bf16"},
      {E::mxfp4, "mxfp4"},
  }};
};

template <>
struct SpecNames<spec::KvType> {
  using E = spec::KvType;
  static constexpr std::array<std::pair<E, std::string_view>, 4> table = {{
      {E::f32, "f32"},
      {E::f16, "f16"},
      {E::bf16, "bf16"},
      {E::q8_0, "q8_0"},
  }};
};

template <>
struct SpecNames<spec::Tier> {
  using E = spec::Tier;
  static constexpr std::array<std::pair<E, std::string_view>, 3> table = {{
      {E::cpu, "cpu"},
      {E::mma, "mma"},
      {E::wgmma, "wgmma"},
  }};
};

template <>
struct SpecNames<spec::AttentionPath> {
  using E = spec::AttentionPath;
  static constexpr std::array<std::pair<E, std::string_view>, 2> table = {{
      {E::flash, "flash"},
      {E::wave, "wave"},
  }};
};

template <>
struct SpecNames<spec::HeadMap> {
  using E = spec::HeadMap;
  static constexpr std::array<std::pair<E, std::string_view>, 2> table = {{
      {E::tiled, "tiled"},
      {E::grouped, "grouped"},
  }};
};

template <>
struct SpecNames<spec::Epilogue> {
  using E = spec::Epilogue;
  static constexpr std::array<std::pair<E, std::string_view>, 4> table = {{
      {E::store, "store"},
      {E::residual, "residual"},
      {E::swiglu, "swiglu"},
      {E::gelu_glu, "gelu_glu"},
  }};
};

template <>
struct SpecNames<spec::QkNorm> {
  using E = spec::QkNorm;
  static constexpr std::array<std::pair<E, std::string_view>, 3> table = {{
      {E::none, "none"},
      {E::per_head, "per_head"},
      {E::full_width, "full_width"},
  }};
};

template <>
struct SpecNames<spec::RopePairing> {
  using E = spec::RopePairing;
  static constexpr std::array<std::pair<E, std::string_view>, 3> table = {{
      {E::none, "none"},
      {E::norm, "norm"},
      {E::neox, "neox"},
  }};
};

/// The name of an enumerator, or "" for a value that the enum does not have.
template <class E>
constexpr std::string_view spec_name(E value) {
  for (const auto& [enumerator, name] : SpecNames<E>::table) {
    if (enumerator == value) return name;
  }
  return {};
}

/// The enumerator of a name; false where the enum has none such.
template <class E>
constexpr bool spec_value(std::string_view name, E& value) {
  for (const auto& [enumerator, known] : SpecNames<E>::table) {
    if (known == name) {
      value = enumerator;
      return true;
    }
  }
  return false;
}

/// Specs and models have the same ids for the types.
constexpr spec::QuantType to_spec(QuantType type) {
  return static_cast<spec::QuantType>(type);
}
constexpr QuantType from_spec(spec::QuantType type) {
  return static_cast<QuantType>(type);
}

}  // namespace quern
