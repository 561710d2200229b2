#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "templates/spec/norm.h"
#include "tests/compiler/cpu/kernel_check.h"

QUERN_NATIVE_TEMPLATE(quern::spec::AddSpec, quern_add_none)
QUERN_NATIVE_TEMPLATE(quern::spec::AddSpec, quern_add_gate_raw)

namespace quern::cpu {
namespace {

double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}

struct NormCase {
  spec::NormSpec spec;
  uint32_t n_tokens;
  std::vector<float> x, weight, residual, z;

  NormCase(const spec::NormSpec& s, uint32_t n)
      : spec(s),
        n_tokens(n),
        x(random_floats(size_t{n} * s.width, 1, 3)),
        weight(random_floats(s.group, 2)),
        residual(random_floats(size_t{n} * s.width, 3)),
        z(random_floats(size_t{n} * s.z_row_width, 4, 4)) {}

  std::vector<double> reference() const {
    std::vector<double> y(x.size());
    for (size_t g = 0; g < x.size(); g += spec.group) {
      double square = 0;
      for (uint32_t i = 0; i < spec.group; ++i) square += double{x[g + i]} * x[g + i];
      const double scale = 1 / std::sqrt(square / spec.group + spec.eps);
      for (uint32_t i = 0; i < spec.group; ++i) {
        const size_t at = g + i;
        y[at] = x[at] * scale * weight[i];
        if (spec.gate != 0) {
          const double gate =
              z[at / spec.width * spec.z_row_width + spec.z_offset + at % spec.width];
          y[at] *= gate * sigmoid_of(gate);
        }
        if (spec.residual != 0) y[at] += residual[at];
      }
    }
    return y;
  }

  std::vector<float> run(Launcher& launcher, const std::vector<uint32_t>& split, uint32_t workers) {
    std::vector<float> y = poisoned(x.size());
    size_t token = 0;
    for (uint32_t n : split) {
      const size_t at = token * spec.width;
      float* rows = spec.residual != 0 ? residual.data() + at : nullptr;
      float* gate = spec.gate != 0 ? z.data() + token * spec.z_row_width : nullptr;
      launcher.run({.n_tokens = n}, {x.data() + at, weight.data(), y.data() + at, rows, gate},
                   workers);
      token += n;
    }
    return y;
  }
};

void check_norm(const spec::NormSpec& spec, uint32_t n_tokens) {
  NormCase test(spec, n_tokens);
  const auto y = expect_bits_independent(spec, n_tokens,
                                         [&](Launcher& l, const auto& split, uint32_t workers) {
                                           return test.run(l, split, workers);
                                         });
  EXPECT_LE(relative_error(y, test.reference()), 5e-6) << spec_to_text(spec);
}

TEST(Norm, rms_norm_agrees_with_double_and_bits_do_not_depend_on_the_split) {
  for (auto [width, n] :
       {std::pair{256u, 3u}, {2048u, 17u}, {2048u, 64u}, {576u, 9u}, {100u, 5u}}) {
    check_norm({.width = width, .group = width, .eps = 1e-6f}, n);
  }
}

TEST(Norm, head_norm_shares_its_weight_between_groups) {
  for (uint32_t n : {3u, 17u, 64u}) {
    check_norm({.width = 16 * 256, .group = 256, .eps = 1e-5f}, n);
  }
  check_norm({.width = 6 * 20, .group = 20, .eps = 1e-5f}, 4);
}

TEST(Norm, residual_is_added_after_the_norm) {
  check_norm({.width = 640, .group = 640, .eps = 1e-6f, .residual = 1}, 7);
}

TEST(Norm, gated_norm_multiplies_by_silu_after_the_norm) {
  check_norm(
      {.width = 512, .group = 128, .eps = 1e-6f, .gate = 1, .z_row_width = 1600, .z_offset = 1024},
      33);
}

TEST(Norm, output_may_replace_the_residual) {
  NormCase test({.width = 64, .group = 64, .eps = 1e-6f, .residual = 1}, 3);
  Launcher& launcher = compiled(test.spec);
  const auto expected = test.run(launcher, {3}, 1);
  launcher.run(
      {.n_tokens = 3},
      {test.x.data(), test.weight.data(), test.residual.data(), test.residual.data(), nullptr}, 1);
  EXPECT_TRUE(same_bits(test.residual, expected));
}

TEST(Gather, rows_are_copied_by_index) {
  const uint32_t width = 37, rows = 600;
  const auto x = random_floats(width * 50, 1);
  std::vector<int32_t> index(rows);
  for (uint32_t i = 0; i < rows; ++i) index[i] = static_cast<int32_t>(i * 7 % 50);
  Launcher& launcher = compiled(spec::GatherSpec{.width = width});
  for (uint32_t workers : {1u, 3u}) {
    auto y = poisoned(width * rows);
    launcher.run({.n_tokens = rows}, {const_cast<float*>(x.data()), index.data(), y.data()},
                 workers);
    for (uint32_t i = 0; i < rows; ++i) {
      for (uint32_t c = 0; c < width; ++c) {
        ASSERT_EQ(y[i * width + c], x[static_cast<uint32_t>(index[i]) * width + c]);
      }
    }
  }
}

struct AddCase {
  spec::AddSpec spec;
  uint32_t n_tokens;
  std::vector<float> a, b, x, g;

  AddCase(const spec::AddSpec& s, uint32_t n)
      : spec(s),
        n_tokens(n),
        a(random_floats(size_t{n} * s.width, 1)),
        b(random_floats(size_t{n} * s.width, 2)),
        x(random_floats(size_t{n} * s.gate_width, 3)),
        g(random_floats(s.gate_width, 4, 0.1f)) {}

  std::vector<double> reference() const {
    std::vector<double> y(a.size());
    for (uint32_t t = 0; t < n_tokens; ++t) {
      double gate = 1;
      if (spec.gate_width != 0) {
        double logit = 0;
        for (uint32_t i = 0; i < spec.gate_width; ++i) {
          logit += double{g[i]} * x[t * spec.gate_width + i];
        }
        gate = sigmoid_of(logit);
      }
      for (uint32_t i = t * spec.width; i < (t + 1) * spec.width; ++i) y[i] = a[i] + b[i] * gate;
    }
    return y;
  }

  std::vector<float> run(Launcher& launcher, const std::vector<uint32_t>& split, uint32_t workers) {
    std::vector<float> y = poisoned(a.size());
    size_t token = 0;
    for (uint32_t n : split) {
      const size_t at = token * spec.width;
      launcher.run({.n_tokens = n},
                   {a.data() + at, b.data() + at, y.data() + at, x.data() + token * spec.gate_width,
                    g.data()},
                   workers);
      token += n;
    }
    return y;
  }
};

TEST(Add, sums_agree_with_double_and_bits_do_not_depend_on_the_split) {
  for (const spec::AddSpec& spec : {spec::AddSpec{.width = 2048},
                                    {.width = 50},
                                    {.width = 2048, .gate_width = 2048},
                                    {.width = 130, .gate_width = 77}}) {
    AddCase test(spec, 19);
    const auto y = expect_bits_independent(spec, test.n_tokens,
                                           [&](Launcher& l, const auto& split, uint32_t workers) {
                                             return test.run(l, split, workers);
                                           });
    EXPECT_LE(relative_error(y, test.reference()), 2e-6) << spec_to_text(spec);
  }
}

TEST(Add, the_comparison_sees_a_raw_gate) {
  AddCase test({.width = 256, .gate_width = 128}, 5);
  NativeLauncher right(quern_add_none, quern_add_none_spec, test.spec);
  NativeLauncher wrong(quern_add_gate_raw, quern_add_gate_raw_spec, test.spec);
  EXPECT_TRUE(same_bits(test.run(right, {5}, 1), test.run(compiled(test.spec), {5}, 1)));
  EXPECT_LE(relative_error(test.run(right, {5}, 1), test.reference()), 2e-6);
  EXPECT_GT(relative_error(test.run(wrong, {5}, 1), test.reference()), 1e-3);
}

}  // namespace
}  // namespace quern::cpu
