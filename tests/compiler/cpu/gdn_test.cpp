#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "templates/spec/gdn.h"
#include "tests/compiler/cpu/kernel_check.h"

QUERN_NATIVE_TEMPLATE(quern::spec::ConvSpec, quern_conv_none)
QUERN_NATIVE_TEMPLATE(quern::spec::ConvSpec, quern_conv_conv_state_after_silu)
QUERN_NATIVE_TEMPLATE(quern::spec::DeltaSpec, quern_delta_none)
QUERN_NATIVE_TEMPLATE(quern::spec::DeltaSpec, quern_delta_decay_after_update)
QUERN_NATIVE_TEMPLATE(quern::spec::DeltaSpec, quern_delta_head_map_swapped)

namespace quern::cpu {
namespace {

using spec::ConvSpec;
using spec::DeltaSpec;
using spec::HeadMap;

std::vector<float> joined(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

struct ConvCase {
  ConvSpec spec;
  uint32_t n_tokens;
  std::vector<float> u, weight, state;

  ConvCase(const ConvSpec& s, uint32_t n)
      : spec(s),
        n_tokens(n),
        u(random_floats(size_t{n} * s.row_width, 1)),
        weight(random_floats(size_t{s.channels} * s.kernel, 2)),
        state(random_floats(size_t{s.kernel - 1} * s.channels, 3)) {}

  /// y, then the new state.
  std::vector<double> reference() const {
    const size_t past = spec.kernel - 1, channels = spec.channels;
    std::vector<double> out((n_tokens + past) * channels);
    for (size_t c = 0; c < channels; ++c) {
      std::vector<double> in;
      for (size_t row = 0; row < past; ++row) in.push_back(state[row * channels + c]);
      for (size_t t = 0; t < n_tokens; ++t) in.push_back(u[t * spec.row_width + spec.offset + c]);
      for (size_t t = 0; t < n_tokens; ++t) {
        double sum = 0;
        for (size_t k = 0; k <= past; ++k) sum += weight[c * spec.kernel + k] * in[t + k];
        out[t * channels + c] = sum / (1 + std::exp(-sum));
      }
      for (size_t row = 0; row < past; ++row) {
        out[(n_tokens + row) * channels + c] = in[n_tokens + row];
      }
    }
    return out;
  }

  std::vector<float> run(Launcher& launcher, const std::vector<uint32_t>& split, uint32_t workers) {
    std::vector<float> y = poisoned(size_t{n_tokens} * spec.channels), s = state;
    size_t token = 0;
    for (uint32_t n : split) {
      launcher.run({.n_tokens = n},
                   {u.data() + token * spec.row_width, weight.data(),
                    y.data() + token * spec.channels, s.data()},
                   workers);
      token += n;
    }
    return joined(y, s);
  }
};

ConvSpec conv_spec(uint32_t channels, uint32_t kernel) {
  return {.channels = channels, .kernel = kernel, .row_width = channels + 40, .offset = 24};
}

TEST(Conv, output_and_state_agree_with_double_and_bits_do_not_depend_on_the_split) {
  for (uint32_t n : {1u, 2u, 5u, 33u}) {
    for (const ConvSpec& spec : {conv_spec(8192, 4), conv_spec(6144, 4), conv_spec(100, 4),
                                 conv_spec(48, 2), conv_spec(32, 7)}) {
      ConvCase test(spec, n);
      const auto out =
          expect_bits_independent(spec, n, [&](Launcher& l, const auto& split, uint32_t workers) {
            return test.run(l, split, workers);
          });
      EXPECT_LE(relative_error(out, test.reference()), 3e-6) << spec_to_text(spec) << " x " << n;
    }
  }
}

TEST(Conv, the_comparison_sees_a_state_kept_after_silu) {
  ConvCase test(conv_spec(64, 4), 6);
  NativeLauncher right(quern_conv_none, quern_conv_none_spec, test.spec);
  NativeLauncher wrong(quern_conv_conv_state_after_silu, quern_conv_conv_state_after_silu_spec,
                       test.spec);
  EXPECT_LE(relative_error(test.run(right, {2, 4}, 1), test.reference()), 3e-6);
  EXPECT_TRUE(same_bits(test.run(right, {6}, 1), test.run(compiled(test.spec), {6}, 1)));
  EXPECT_GT(relative_error(test.run(wrong, {2, 4}, 1), test.reference()), 1e-2);
}

struct DeltaCase {
  DeltaSpec spec;
  uint32_t n_tokens;
  std::vector<float> x, ab, rate, bias, state;

  DeltaCase(const DeltaSpec& s, uint32_t n)
      : spec(s),
        n_tokens(n),
        x(random_floats(size_t{n} * row_width(), 1)),
        ab(random_floats(size_t{n} * s.ab_row_width, 2, 2)),
        rate(random_floats(s.n_v_heads, 3)),
        bias(random_floats(s.n_v_heads, 4)),
        state(random_floats(size_t{s.n_v_heads} * s.dim * s.dim, 5, 0.1f)) {
    for (float& r : rate) r = -0.3f * std::exp(r);
  }

  uint32_t row_width() const { return (2 * spec.n_k_heads + spec.n_v_heads) * spec.dim; }

  std::vector<double> normalised(size_t at) const {
    double square = 0;
    for (size_t i = at; i < at + spec.dim; ++i) square += double{x[i]} * x[i];
    std::vector<double> y(spec.dim);
    for (size_t i = 0; i < spec.dim; ++i) y[i] = x[at + i] / std::sqrt(square + spec.eps);
    return y;
  }

  void reference_step(uint32_t token, uint32_t head, std::vector<double>& s, double* out) const {
    const size_t dim = spec.dim, row = size_t{token} * row_width();
    const size_t k_head = spec.head_map == HeadMap::tiled
                              ? head % spec.n_k_heads
                              : head / (spec.n_v_heads / spec.n_k_heads);
    const auto q = normalised(row + k_head * dim);
    const auto k = normalised(row + (spec.n_k_heads + k_head) * dim);
    const float* v = x.data() + row + (2 * spec.n_k_heads + head) * dim;
    const float* gates = ab.data() + size_t{token} * spec.ab_row_width;
    const double a = double{gates[spec.a_offset + head]} + bias[head];
    const double softplus = a > 20 ? a : std::log1p(std::exp(a));
    const double decay = std::exp(rate[head] * softplus);
    const double beta = 1 / (1 + std::exp(-double{gates[spec.b_offset + head]}));
    for (size_t j = 0; j < dim; ++j) {
      double p = 0, o = 0;
      for (size_t i = 0; i < dim; ++i) p += (s[i * dim + j] *= decay) * k[i];
      const double d = (v[j] - p) * beta;
      for (size_t i = 0; i < dim; ++i) o += (s[i * dim + j] += k[i] * d) * q[i];
      out[j] = o / std::sqrt(static_cast<double>(dim));
    }
  }

  /// o, then the new state.
  std::vector<double> reference() const {
    const size_t dim = spec.dim, width = spec.n_v_heads * dim;
    std::vector<double> out(n_tokens * width);
    for (uint32_t h = 0; h < spec.n_v_heads; ++h) {
      std::vector<double> s(state.begin() + static_cast<ptrdiff_t>(h * dim * dim),
                            state.begin() + static_cast<ptrdiff_t>((h + 1) * dim * dim));
      for (uint32_t t = 0; t < n_tokens; ++t) {
        reference_step(t, h, s, out.data() + t * width + h * dim);
      }
      out.insert(out.end(), s.begin(), s.end());
    }
    return out;
  }

  std::vector<float> run(Launcher& launcher, const std::vector<uint32_t>& split, uint32_t workers) {
    const size_t width = size_t{spec.n_v_heads} * spec.dim;
    std::vector<float> o = poisoned(n_tokens * width), s = state;
    size_t token = 0;
    for (uint32_t n : split) {
      launcher.run({.n_tokens = n},
                   {x.data() + token * row_width(), ab.data() + token * spec.ab_row_width,
                    rate.data(), bias.data(), o.data() + token * width, s.data()},
                   workers);
      token += n;
    }
    return joined(o, s);
  }
};

DeltaSpec delta_spec(uint32_t n_k_heads, uint32_t n_v_heads, uint32_t dim, HeadMap map) {
  return {.n_k_heads = n_k_heads,
          .n_v_heads = n_v_heads,
          .dim = dim,
          .head_map = map,
          .eps = 1e-6f,
          .ab_row_width = 2 * n_v_heads + 6,
          .a_offset = n_v_heads + 3,
          .b_offset = 2};
}

/// The output's error against its own size, then the state's against its own.
void expect_right(const DeltaCase& test, const std::vector<float>& out) {
  const auto expected = test.reference();
  const auto outputs = static_cast<ptrdiff_t>(out.size() - test.state.size());
  EXPECT_LE(relative_error({out.begin(), out.begin() + outputs},
                           {expected.begin(), expected.begin() + outputs}),
            1e-5)
      << spec_to_text(test.spec);
  EXPECT_LE(relative_error({out.begin() + outputs, out.end()},
                           {expected.begin() + outputs, expected.end()}),
            1e-5)
      << spec_to_text(test.spec);
}

void check(const DeltaSpec& spec, uint32_t n_tokens) {
  DeltaCase test(spec, n_tokens);
  expect_right(test, expect_bits_independent(spec, n_tokens,
                                             [&](Launcher& l, const auto& split, uint32_t workers) {
                                               return test.run(l, split, workers);
                                             }));
}

TEST(Delta, output_and_state_agree_with_double_and_bits_do_not_depend_on_the_split) {
  for (auto [k, v, n] :
       {std::tuple{16u, 16u, 37u}, {16u, 32u, 64u}, {16u, 48u, 9u}, {16u, 32u, 1u}}) {
    for (HeadMap map : {HeadMap::tiled, HeadMap::grouped}) check(delta_spec(k, v, 128, map), n);
  }
}

TEST(Delta, every_dim_works) {
  for (uint32_t dim : {16u, 18u, 32u, 64u, 100u}) check(delta_spec(2, 4, dim, HeadMap::tiled), 19);
}

TEST(Delta, extreme_gates_and_zero_keys_stay_finite) {
  DeltaCase test(delta_spec(2, 4, 32, HeadMap::grouped), 20);
  const float extremes[] = {-200, -30, 19.99f, 20.01f, 300};
  for (size_t i = 0; i < test.ab.size(); ++i) test.ab[i] = extremes[i * 7 % 5];
  std::fill_n(test.x.begin() + 5 * test.row_width(), test.row_width(), 0.0f);
  expect_right(test, test.run(compiled(test.spec), {20}, 1));
}

TEST(Delta, the_comparison_sees_each_mutant) {
  DeltaCase test(delta_spec(2, 4, 32, HeadMap::tiled), 7);
  NativeLauncher right(quern_delta_none, quern_delta_none_spec, test.spec);
  expect_right(test, test.run(right, {7}, 1));
  EXPECT_TRUE(same_bits(test.run(right, {7}, 1), test.run(compiled(test.spec), {7}, 1)));
  NativeLauncher late(quern_delta_decay_after_update, quern_delta_decay_after_update_spec,
                      test.spec);
  EXPECT_GT(relative_error(test.run(late, {7}, 1), test.reference()), 1e-2);
  NativeLauncher swapped(quern_delta_head_map_swapped, quern_delta_head_map_swapped_spec,
                         test.spec);
  EXPECT_GT(relative_error(test.run(swapped, {7}, 1), test.reference()), 1e-2);
}

}  // namespace
}  // namespace quern::cpu
