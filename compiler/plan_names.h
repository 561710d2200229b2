#pragma once

// Names of the plan's own enumerators in its JSON and its text.

#include "compiler/plan.h"
#include "compiler/spec_names.h"

namespace quern {

template <>
struct SpecNames<BufferKind> {
  using E = BufferKind;
  static constexpr std::array<std::pair<E, std::string_view>, 10> table = {{
      {E::none, "none"},
      {E::activation, "activation"},
      {E::weight, "weight"},
      {E::state, "state"},
      {E::tokens, "tokens"},
      {E::rope, "rope"},
      {E::outputs, "outputs"},
      {E::logits, "logits"},
      {E::wish, "wish"},
      {E::candidates, "candidates"},
  }};
};

template <>
struct SpecNames<ActivationForm> {
  using E = ActivationForm;
  static constexpr std::array<std::pair<E, std::string_view>, 4> table = {{
      {E::rows, "rows"},
      {E::operand, "operand"},
      {E::counters, "counters"},
      {E::kept, "kept"},
  }};
};

template <>
struct SpecNames<WeightForm> {
  using E = WeightForm;
  static constexpr std::array<std::pair<E, std::string_view>, 3> table = {{
      {E::packed, "packed"},
      {E::raw, "raw"},
      {E::vector, "vector"},
  }};
};

template <>
struct SpecNames<StateKind> {
  using E = StateKind;
  static constexpr std::array<std::pair<E, std::string_view>, 4> table = {{
      {E::key_cache, "key_cache"},
      {E::value_cache, "value_cache"},
      {E::conv, "conv"},
      {E::recurrent, "recurrent"},
  }};
};

template <>
struct SpecNames<StepRows> {
  using E = StepRows;
  static constexpr std::array<std::pair<E, std::string_view>, 2> table = {{
      {E::tokens, "tokens"},
      {E::outputs, "outputs"},
  }};
};

template <>
struct SpecNames<StepRun> {
  using E = StepRun;
  static constexpr std::array<std::pair<E, std::string_view>, 4> table = {{
      {E::always, "always"},
      {E::few, "few"},
      {E::many, "many"},
      {E::once, "once"},
  }};
};

template <>
struct SpecNames<Numerics> {
  using E = Numerics;
  static constexpr std::array<std::pair<E, std::string_view>, 2> table = {{
      {E::exact, "exact"},
      {E::fast, "fast"},
  }};
};

template <>
struct SpecNames<RopeKind> {
  using E = RopeKind;
  static constexpr std::array<std::pair<E, std::string_view>, 3> table = {{
      {E::none, "none"},
      {E::norm, "norm"},
      {E::neox, "neox"},
  }};
};

}  // namespace quern
