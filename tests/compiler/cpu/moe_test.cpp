#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "templates/spec/moe.h"
#include "tests/compiler/cpu/kernel_check.h"

QUERN_NATIVE_TEMPLATE(quern::spec::RouterSpec, quern_router_none)
QUERN_NATIVE_TEMPLATE(quern::spec::RouterSpec, quern_router_no_renormalisation)

namespace quern::cpu {
namespace {

using spec::CombineSpec;
using spec::GroupSpec;
using spec::RouterSpec;

/// An f32 matrix in cells of 16 rows, [k][16] each, k padded to 8 (templates/cpu/cell_format.h).
std::vector<float> pack_f32(const std::vector<float>& matrix, uint32_t rows, uint32_t k) {
  const uint32_t padded = (k + 7) / 8 * 8;
  std::vector<float> cells(size_t{(rows + 15) / 16} * padded * 16);
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t i = 0; i < k; ++i) {
      cells[(size_t{r / 16} * padded + i) * 16 + r % 16] = matrix[size_t{r} * k + i];
    }
  }
  return cells;
}

struct Routes {
  std::vector<double> weights, logits;
  std::vector<int32_t> ids;
};

struct RouterCase {
  RouterSpec spec;
  uint32_t n_tokens;
  std::vector<float> x, matrix, packed;

  RouterCase(const RouterSpec& s, uint32_t n)
      : spec(s),
        n_tokens(n),
        x(random_floats(size_t{n} * s.k, 1)),
        matrix(random_floats(size_t{s.n_expert} * s.k, 2, 2 / std::sqrt(static_cast<float>(s.k)))) {
    repack();
  }

  void repack() { packed = pack_f32(matrix, spec.n_expert, spec.k); }

  Routes reference() const {
    Routes routes;
    for (uint32_t t = 0; t < n_tokens; ++t) {
      std::vector<double> p(spec.n_expert);
      for (uint32_t e = 0; e < spec.n_expert; ++e) {
        for (uint32_t i = 0; i < spec.k; ++i) {
          p[e] += double{matrix[size_t{e} * spec.k + i]} * x[size_t{t} * spec.k + i];
        }
      }
      routes.logits.insert(routes.logits.end(), p.begin(), p.end());
      const double largest = *std::max_element(p.begin(), p.end());
      double total = 0;
      for (double& v : p) total += v = std::exp(v - largest);
      std::vector<int32_t> order(spec.n_expert);
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        const double pa = p[static_cast<size_t>(a)], pb = p[static_cast<size_t>(b)];
        return pa != pb ? pa > pb : a < b;
      });
      double used = 0;
      for (uint32_t s = 0; s < spec.n_used; ++s) used += p[static_cast<size_t>(order[s])] / total;
      const double divisor = spec.renormalise != 0 ? std::max(used, 6.103515625e-5) : 1;
      for (uint32_t s = 0; s < spec.n_used; ++s) {
        routes.ids.push_back(order[s]);
        routes.weights.push_back(p[static_cast<size_t>(order[s])] / total / divisor *
                                 spec.weights_scale);
      }
    }
    return routes;
  }

  /// Weights, then ids, then logits.
  std::vector<float> run(Launcher& launcher, const std::vector<uint32_t>& split, uint32_t workers) {
    const size_t pairs = size_t{n_tokens} * spec.n_used;
    std::vector<float> weights = poisoned(pairs);
    std::vector<float> logits = poisoned(size_t{n_tokens} * spec.n_expert);
    std::vector<int32_t> ids(pairs, -1);
    size_t token = 0;
    for (uint32_t n : split) {
      launcher.run({.n_tokens = n},
                   {x.data() + token * spec.k, packed.data(), ids.data() + token * spec.n_used,
                    weights.data() + token * spec.n_used, logits.data() + token * spec.n_expert},
                   workers);
      token += n;
    }
    std::vector<float> out = weights;
    for (int32_t id : ids) out.push_back(static_cast<float>(id));
    out.insert(out.end(), logits.begin(), logits.end());
    return out;
  }

  void expect_right(const std::vector<float>& out) const {
    const Routes routes = reference();
    const auto pairs = static_cast<ptrdiff_t>(routes.ids.size());
    EXPECT_LE(relative_error({out.begin(), out.begin() + pairs}, routes.weights), 2e-5);
    EXPECT_TRUE(std::equal(routes.ids.begin(), routes.ids.end(), out.begin() + pairs));
    EXPECT_LE(relative_error({out.begin() + 2 * pairs, out.end()}, routes.logits), 2e-5);
  }
};

void check(const RouterSpec& spec, uint32_t n_tokens) {
  RouterCase test(spec, n_tokens);
  SCOPED_TRACE(spec_to_text(spec));
  test.expect_right(expect_bits_independent(spec, n_tokens,
                                            [&](Launcher& l, const auto& split, uint32_t workers) {
                                              return test.run(l, split, workers);
                                            }));
}

TEST(Router, routes_agree_with_double_and_bits_do_not_depend_on_the_split) {
  check({.k = 2048, .n_expert = 64, .n_used = 8}, 33);
  check({.k = 256, .n_expert = 128, .n_used = 8, .renormalise = 1}, 21);
  check({.k = 128, .n_expert = 8, .n_used = 2, .renormalise = 1, .weights_scale = 2.5f}, 17);
  check({.k = 72, .n_expert = 37, .n_used = 10}, 9);
  check({.k = 256, .n_expert = 512, .n_used = 10, .renormalise = 1}, 5);
}

TEST(Router, equal_experts_are_taken_by_lower_index) {
  RouterCase test({.k = 64, .n_expert = 40, .n_used = 5}, 6);
  for (uint32_t e = 0; e < 40; ++e) {
    std::copy_n(test.matrix.begin() + (e % 3) * 64, 64, test.matrix.begin() + e * 64);
  }
  test.repack();
  const auto out = test.run(compiled(test.spec), {6}, 1);
  for (uint32_t t = 0; t < 6; ++t) {
    const float* ids = out.data() + 30 + t * 5;
    for (uint32_t s = 1; s < 5; ++s) EXPECT_EQ(ids[s], ids[s - 1] + 3);
  }
}

TEST(Router, the_weight_sum_is_clamped_before_dividing) {
  RouterCase test({.k = 8, .n_expert = 20000, .n_used = 1, .renormalise = 1}, 2);
  std::fill(test.x.begin(), test.x.end(), 0.0f);
  const auto out = test.run(compiled(test.spec), {2}, 1);
  EXPECT_NEAR(out[0], 1.0 / 20000 / 6.103515625e-5, 1e-5);
  EXPECT_EQ(out[2], 0);
}

TEST(Router, ids_are_experts_even_when_logits_are_not_numbers) {
  RouterCase test({.k = 16, .n_expert = 16, .n_used = 4, .renormalise = 1}, 1);
  std::fill(test.x.begin(), test.x.end(), std::numeric_limits<float>::quiet_NaN());
  const auto out = test.run(compiled(test.spec), {1}, 1);
  for (uint32_t s = 0; s < 4; ++s) {
    EXPECT_GE(out[4 + s], 0);
    EXPECT_LT(out[4 + s], 16);
  }
}

TEST(Router, the_comparison_sees_a_missing_renormalisation) {
  RouterCase test({.k = 64, .n_expert = 16, .n_used = 4, .renormalise = 1}, 5);
  const auto weights_error = [&](Launcher& launcher) {
    auto out = test.run(launcher, {5}, 1);
    out.resize(20);
    return relative_error(out, test.reference().weights);
  };
  NativeLauncher right(quern_router_none, quern_router_none_spec, test.spec);
  NativeLauncher wrong(quern_router_no_renormalisation, quern_router_no_renormalisation_spec,
                       test.spec);
  EXPECT_LE(weights_error(right), 5e-6);
  EXPECT_TRUE(same_bits(test.run(right, {5}, 1), test.run(compiled(test.spec), {5}, 1)));
  EXPECT_GT(weights_error(wrong), 1e-2);
}

TEST(Group, pairs_are_sorted_by_expert_and_keep_their_order) {
  for (uint32_t n : {1u, 5u, 257u}) {
    const GroupSpec spec{.n_expert = 64, .n_used = 8};
    std::mt19937 generator(n);
    std::vector<int32_t> ids(n * 8);
    for (int32_t& id : ids) id = static_cast<int32_t>(generator() % 40 + 3);
    std::vector<int32_t> expected(ids.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::sort(expected.begin(), expected.end(), [&](int32_t a, int32_t b) {
      return std::pair(ids[static_cast<size_t>(a)], a) < std::pair(ids[static_cast<size_t>(b)], b);
    });
    for (uint32_t workers : {1u, 3u}) {
      std::vector<int32_t> offsets(65, -1), pairs(ids.size(), -1);
      compiled(spec).run({.n_tokens = n}, {ids.data(), offsets.data(), pairs.data()}, workers);
      EXPECT_EQ(pairs, expected);
      for (int32_t e = 0; e <= 64; ++e) {
        EXPECT_EQ(offsets[static_cast<size_t>(e)],
                  std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return id < e; }));
      }
    }
  }
}

struct CombineCase {
  CombineSpec spec;
  uint32_t n_tokens;
  std::vector<float> rows, weights, residual;

  CombineCase(const CombineSpec& s, uint32_t n)
      : spec(s),
        n_tokens(n),
        rows(random_floats(size_t{n} * s.n_used * s.width, 1)),
        weights(random_floats(size_t{n} * s.n_used, 2)),
        residual(random_floats(size_t{n} * s.width, 3)) {}

  std::vector<double> reference() const {
    std::vector<double> y(size_t{n_tokens} * spec.width);
    for (size_t t = 0; t < n_tokens; ++t) {
      for (size_t i = 0; i < spec.width; ++i) {
        double& out = y[t * spec.width + i];
        for (size_t s = t * spec.n_used; s < (t + 1) * spec.n_used; ++s) {
          out += double{weights[s]} * rows[s * spec.width + i];
        }
        if (spec.residual != 0) out += residual[t * spec.width + i];
      }
    }
    return y;
  }

  std::vector<float> run(Launcher& launcher, const std::vector<uint32_t>& split, uint32_t workers) {
    std::vector<float> y = poisoned(size_t{n_tokens} * spec.width);
    size_t token = 0;
    for (uint32_t n : split) {
      const size_t at = token * spec.width;
      launcher.run({.n_tokens = n},
                   {rows.data() + at * spec.n_used, weights.data() + token * spec.n_used,
                    y.data() + at, spec.residual != 0 ? residual.data() + at : nullptr},
                   workers);
      token += n;
    }
    return y;
  }
};

TEST(Combine, sums_agree_with_double_and_bits_do_not_depend_on_the_split) {
  for (uint32_t n : {1u, 5u, 33u, 257u}) {
    for (const CombineSpec& spec : {CombineSpec{.width = 512, .n_used = 8},
                                    {.width = 512, .n_used = 8, .residual = 1},
                                    {.width = 100, .n_used = 1}}) {
      CombineCase test(spec, n);
      const auto y =
          expect_bits_independent(spec, n, [&](Launcher& l, const auto& split, uint32_t workers) {
            return test.run(l, split, workers);
          });
      EXPECT_LE(relative_error(y, test.reference()), 2e-6) << spec_to_text(spec);
    }
  }
}

}  // namespace
}  // namespace quern::cpu
