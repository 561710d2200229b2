#include "models/rope.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

namespace quern {
namespace {

/// The pair index (fractional) whose wavelength fits `turns` times into the original context.
double correction_dimension(double turns, uint32_t n_rot, double base, double original_context) {
  return n_rot * std::log(original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
}

}  // namespace

RopeScaling read_rope_scaling(const Keys& keys, const Size& context_length) {
  constexpr double largest = 1e6;
  constexpr Range positive = {.low = 0, .high = largest};
  RopeScaling scaling;
  const std::string type = keys.text_or("rope.scaling.type", "linear");
  if (type != "none" && type != "linear" && type != "yarn") {
    keys.refuse("rope.scaling.type", fmt::format("is \"{}\", which is not supported", type),
                "known are none, linear and yarn");
  }
  const bool legacy = !keys.has("rope.scaling.factor") && keys.has("rope.scale_linear");
  const char* factor_key = legacy ? "rope.scale_linear" : "rope.scaling.factor";
  // The format writes 0 for "not scaled".
  const double factor = keys.real_or(factor_key, 0, {.low = 0, .high = largest, .with_low = true});
  if (type == "none") return scaling;
  scaling.factor = factor == 0 ? 1 : factor;
  scaling.attention_factor = keys.real_or("rope.scaling.attn_factor", 1, positive) *
                             keys.real_or("rope.scaling.yarn_attn_factor", 1, positive);
  if (type == "linear") return scaling;

  if (factor == 0)
    keys.refuse(factor_key,
                fmt::format("is missing or 0 where {} is yarn", keys.full("rope.scaling.type")));
  scaling.original_context = static_cast<double>(
      keys.size_or("rope.scaling.original_context_length", context_length, {1, uint64_t{1} << 31})
          .value);
  scaling.extrapolation =
      keys.real_or("rope.scaling.yarn_ext_factor", 1, {.low = 0, .high = 1, .with_low = true});
  scaling.beta_fast = keys.real_or("rope.scaling.yarn_beta_fast", 32, positive);
  scaling.beta_slow = keys.real_or("rope.scaling.yarn_beta_slow", 1, positive);
  if (scaling.beta_fast < scaling.beta_slow) {
    keys.refuse("rope.scaling.yarn_beta_fast",
                fmt::format("is below {}", keys.full("rope.scaling.yarn_beta_slow")));
  }
  keys.must_be_zero("rope.scaling.yarn_log_multiplier");
  return scaling;
}

Rope make_rope(RopeKind kind, uint32_t n_rot, double base, const RopeScaling& scaling,
               std::span<const float> divisors) {
  Rope rope{.kind = kind, .n_rot = n_rot, .inverse_frequency = {}, .mscale = 1};
  double low = 0;
  double high = 0;
  if (scaling.extrapolation != 0) {
    const double last = n_rot - 1.0;
    low =
        std::floor(correction_dimension(scaling.beta_fast, n_rot, base, scaling.original_context));
    high =
        std::ceil(correction_dimension(scaling.beta_slow, n_rot, base, scaling.original_context));
    low = std::max(low, 0.0);
    high = std::min(high, last);
  }
  rope.mscale = scaling.attention_factor;
  if (scaling.extrapolation != 0) rope.mscale *= 1 + 0.1 * std::log(scaling.factor);
  const double ratio = static_cast<float>(std::pow(base, -2.0 / n_rot));
  for (uint32_t i = 0; i < n_rot / 2; ++i) {
    const double divisor = divisors.empty() ? 1.0 : double{divisors[i]};
    const double unscaled = std::pow(ratio, i) / divisor;
    const double stretched = unscaled / scaling.factor;
    const double ramp = 1 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
    const double mix = ramp * scaling.extrapolation;
    rope.inverse_frequency.push_back(stretched * (1 - mix) + unscaled * mix);
  }
  return rope;
}

void check_rope_sections(const Keys& keys, uint32_t n_rot) {
  constexpr std::string_view key = "rope.dimension_sections";
  // What the format's writers put where a model says nothing; it reaches beyond a small n_rot.
  constexpr std::array<int64_t, 4> unset = {11, 11, 10, 0};
  const std::vector<int64_t> sections = keys.integers(key);
  if (sections.size() != 4) {
    keys.refuse(key, fmt::format("has {} values where 4 are needed", sections.size()));
  }
  for (const int64_t section : sections) {
    if (section < 0 || section > std::max<int64_t>(n_rot, unset[0])) {
      keys.refuse(key, fmt::format("holds {} where 0 to {} makes sense", section, n_rot));
    }
  }
  const int64_t sum = std::accumulate(sections.begin(), sections.end(), int64_t{0});
  const int64_t pairs = n_rot / 2;
  if (sum != pairs && !std::ranges::equal(sections, unset)) {
    keys.refuse(key, fmt::format("[{}] sums to {} where {} / 2 is {}", fmt::join(sections, ", "),
                                 sum, keys.full("rope.dimension_count"), pairs));
  }
  // Pairs go to time, height and width in turn, each until its section is used up.
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t s = pair % sum;
    if (s >= 3 * sections[static_cast<size_t>(s % 3)]) {
      keys.refuse(key, fmt::format("[{}] leaves rotary pair {} without a position",
                                   fmt::join(sections, ", "), pair));
    }
  }
}

}  // namespace quern
