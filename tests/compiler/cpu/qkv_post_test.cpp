#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "templates/spec/qkv_post.h"
#include "tests/compiler/cpu/kernel_check.h"
#include "tests/compiler/cpu/kv_reference.h"

QUERN_NATIVE_TEMPLATE(quern::spec::QkvPostSpec, quern_qkv_post_none)
QUERN_NATIVE_TEMPLATE(quern::spec::QkvPostSpec, quern_qkv_post_qk_norm_per_head)
QUERN_NATIVE_TEMPLATE(quern::spec::QkvPostSpec, quern_qkv_post_rope_before_norm)
QUERN_NATIVE_TEMPLATE(quern::spec::QkvPostSpec, quern_qkv_post_base_dropped)

namespace quern::cpu {
namespace {

using spec::KvType;
using spec::QkNorm;
using spec::QkvPostSpec;
using spec::RopePairing;

/// A row of q | k | v with some floats before and after.
QkvPostSpec make_spec(uint32_t n_head, uint32_t n_head_kv, uint32_t head_dim, uint32_t value_dim) {
  QkvPostSpec s;
  s.n_head = n_head;
  s.n_head_kv = n_head_kv;
  s.head_dim = head_dim;
  s.value_dim = value_dim;
  s.q_offset = 8;
  s.k_offset = s.q_offset + n_head * head_dim;
  s.v_offset = s.k_offset + n_head_kv * head_dim;
  s.row_width = s.v_offset + n_head_kv * value_dim + 3;
  s.eps = 1e-6f;
  s.n_rot = head_dim;
  return s;
}

struct QkvCase {
  QkvPostSpec spec;
  uint32_t start, n_tokens, capacity;
  std::vector<float> rows, table, q_weight, k_weight;

  QkvCase(const QkvPostSpec& s, uint32_t first, uint32_t n)
      : spec(s),
        start(first),
        n_tokens(n),
        capacity((first + n + 63) / 64 * 64),
        rows(random_floats(size_t{n} * s.row_width, 1, 2)),
        table(size_t{n} * (s.n_rot / 2) * 2),
        q_weight(random_floats(s.n_head * s.head_dim, 2)),
        k_weight(random_floats(s.n_head_kv * s.head_dim, 3)) {
    for (uint32_t t = 0; t < n; ++t) {
      for (uint32_t i = 0; i < s.n_rot / 2; ++i) {
        const double angle = (start + t) * std::pow(10000.0, -2.0 * i / s.n_rot);
        table[(t * (s.n_rot / 2) + i) * 2] = static_cast<float>(std::cos(angle));
        table[(t * (s.n_rot / 2) + i) * 2 + 1] = static_cast<float>(std::sin(angle));
      }
    }
  }

  void norm(std::vector<double>& row, uint32_t offset, uint32_t heads,
            const std::vector<float>& weight) const {
    const bool full = spec.qk_norm == QkNorm::full_width;
    const uint32_t width = full ? heads * spec.head_dim : spec.head_dim;
    for (uint32_t begin = 0; begin < heads * spec.head_dim; begin += width) {
      double square = 0;
      for (uint32_t i = 0; i < width; ++i) square += std::pow(row[offset + begin + i], 2);
      const double scale = 1 / std::sqrt(square / width + spec.eps);
      for (uint32_t i = 0; i < width; ++i) row[offset + begin + i] *= scale * weight[i];
    }
  }

  void rope(std::vector<double>& row, uint32_t token, uint32_t offset, uint32_t heads) const {
    const uint32_t half = spec.n_rot / 2;
    for (uint32_t h = 0; h < heads; ++h) {
      double* x = row.data() + offset + h * spec.head_dim;
      for (uint32_t i = 0; i < half; ++i) {
        const bool pairs = spec.rope == RopePairing::norm;
        double &a = x[pairs ? 2 * i : i], &b = x[pairs ? 2 * i + 1 : i + half];
        const double c = table[(token * half + i) * 2], s = table[(token * half + i) * 2 + 1];
        const double x0 = a, x1 = b;
        a = x0 * c - x1 * s;
        b = x0 * s + x1 * c;
      }
    }
  }

  /// The rows with q and k normalised and rotated.
  std::vector<double> reference() const {
    std::vector<double> all(rows.begin(), rows.end());
    for (uint32_t t = 0; t < n_tokens; ++t) {
      std::vector<double> row(all.begin() + t * spec.row_width,
                              all.begin() + (t + 1) * spec.row_width);
      if (spec.qk_norm != QkNorm::none) {
        norm(row, spec.q_offset, spec.n_head, q_weight);
        norm(row, spec.k_offset, spec.n_head_kv, k_weight);
      }
      if (spec.rope != RopePairing::none) {
        rope(row, t, spec.q_offset, spec.n_head);
        rope(row, t, spec.k_offset, spec.n_head_kv);
      }
      std::copy(row.begin(), row.end(), all.begin() + t * spec.row_width);
    }
    return all;
  }

  KvReference empty_cache(bool key) const {
    return {spec.kv, key, spec.n_head_kv, key ? spec.head_dim : spec.value_dim, capacity};
  }

  /// The rows after the kernel, then the bytes of both caches as floats' bits.
  std::vector<float> run(Launcher& launcher, const std::vector<uint32_t>& split, uint32_t workers) {
    std::vector<float> out = rows;
    const KvReference k = empty_cache(true), v = empty_cache(false);
    uint32_t token = 0;
    for (uint32_t n : split) {
      launcher.run({.n_tokens = n, .start_position = start + token, .kv_capacity = capacity},
                   {out.data() + size_t{token} * spec.row_width,
                    table.data() + size_t{token} * (spec.n_rot / 2) * 2, q_weight.data(),
                    k_weight.data(), k.data(), v.data()},
                   workers);
      token += n;
    }
    for (const KvReference* cache : {&k, &v}) {
      const size_t at = out.size();
      out.resize(at + cache->size() / 4);
      std::memcpy(out.data() + at, cache->data(), cache->size());
    }
    return out;
  }

  /// Rows after the kernel, and caches that hold exactly those rows rounded to the cache's type.
  void expect_right(std::vector<float> output, double tolerance) const {
    std::vector<float> bytes(output.begin() + static_cast<ptrdiff_t>(rows.size()), output.end());
    output.resize(rows.size());
    EXPECT_LE(relative_error(output, reference()), tolerance) << spec_to_text(spec);
    KvReference k = empty_cache(true), v = empty_cache(false);
    for (uint32_t t = 0; t < n_tokens; ++t) {
      const float* row = output.data() + size_t{t} * spec.row_width;
      for (uint32_t h = 0; h < spec.n_head_kv; ++h) {
        k.store(h, start + t, row + spec.k_offset + h * spec.head_dim);
        v.store(h, start + t, row + spec.v_offset + h * spec.value_dim);
      }
    }
    EXPECT_EQ(std::memcmp(bytes.data(), k.data(), k.size()), 0) << spec_to_text(spec);
    EXPECT_EQ(std::memcmp(bytes.data() + k.size() / 4, v.data(), v.size()), 0)
        << spec_to_text(spec);
  }
};

void check(const QkvPostSpec& spec, uint32_t start, uint32_t n_tokens,
           Targets targets = Targets::all) {
  QkvCase test(spec, start, n_tokens);
  test.expect_right(expect_bits_independent(
                        spec, n_tokens,
                        [&](Launcher& l, const auto& split, uint32_t workers) {
                          return test.run(l, split, workers);
                        },
                        targets),
                    5e-6);
}

TEST(QkvPost, rope_of_both_pairings_agrees_with_double_in_every_cache_type) {
  for (KvType kv : all_kv_types) {
    for (RopePairing pairing : {RopePairing::norm, RopePairing::neox}) {
      QkvPostSpec spec = make_spec(9, 3, 64, 64);
      spec.rope = pairing;
      spec.kv = kv;
      check(spec, 29, 37);
    }
  }
}

TEST(QkvPost, dims_past_n_rot_pass_through) {
  QkvPostSpec spec = make_spec(4, 2, 256, 256);
  spec.rope = RopePairing::neox;
  spec.qk_norm = QkNorm::per_head;
  spec.n_rot = 64;
  spec.kv = KvType::f16;
  check(spec, 5, 12);
}

TEST(QkvPost, full_width_norm_runs_over_all_heads_before_rope) {
  QkvPostSpec spec = make_spec(4, 4, 32, 32);
  spec.rope = RopePairing::neox;
  spec.qk_norm = QkNorm::full_width;
  check(spec, 0, 20);
}

TEST(QkvPost, odd_dims_and_different_value_dims_are_stored) {
  for (KvType kv : all_kv_types) {
    QkvPostSpec spec = make_spec(2, 1, 40, 20);
    spec.rope = RopePairing::norm;
    spec.qk_norm = QkNorm::per_head;
    spec.kv = kv;
    check(spec, 60, 9, Targets::native);
  }
}

TEST(QkvPost, without_norm_and_rope_rows_are_only_stored) {
  QkvPostSpec spec = make_spec(2, 2, 16, 16);
  spec.n_rot = 0;
  check(spec, 3, 5);
}

TEST(QkvPost, f16_cache_saturates_and_zero_rows_quantise_to_zero) {
  for (KvType kv : {KvType::f16, KvType::q8_0}) {
    QkvPostSpec spec = make_spec(1, 1, 32, 32);
    spec.kv = kv;
    QkvCase test(spec, 0, 2);
    for (uint32_t i = 0; i < spec.row_width; ++i) {
      test.rows[i] = i % 2 == 0 ? 1e6f : -1e6f;
      test.rows[spec.row_width + i] = 0;
    }
    Launcher& launcher = compiled(spec);
    const auto output = test.run(launcher, {2}, 1);
    KvReference k = test.empty_cache(true);
    std::memcpy(k.data(), output.data() + test.rows.size(), k.size());
    const float limit = kv == KvType::f16 ? 65504.0f : 127.0f * f16_to_f32(f32_to_f16(1e6f / 127));
    EXPECT_EQ(k.value(0, 0, 0), limit);
    EXPECT_EQ(k.value(0, 0, 1), -limit);
    EXPECT_EQ(k.value(0, 1, 7), 0);
  }
}

TEST(QkvPost, the_comparison_sees_each_mutant) {
  QkvPostSpec spec = make_spec(4, 2, 32, 32);
  spec.rope = RopePairing::neox;
  spec.qk_norm = QkNorm::full_width;
  QkvCase test(spec, 17, 6);
  NativeLauncher right(quern_qkv_post_none, quern_qkv_post_none_spec, spec);
  test.expect_right(test.run(right, {6}, 1), 5e-6);
  EXPECT_TRUE(same_bits(test.run(right, {6}, 1), test.run(compiled(spec), {6}, 1)));

  const auto rows_of = [&](Launcher& l) {
    auto output = test.run(l, {6}, 1);
    output.resize(test.rows.size());
    return output;
  };
  NativeLauncher per_head(quern_qkv_post_qk_norm_per_head, quern_qkv_post_qk_norm_per_head_spec,
                          spec);
  EXPECT_GT(relative_error(rows_of(per_head), test.reference()), 1e-3);
  NativeLauncher early(quern_qkv_post_rope_before_norm, quern_qkv_post_rope_before_norm_spec, spec);
  EXPECT_GT(relative_error(rows_of(early), test.reference()), 1e-3);
  NativeLauncher no_base(quern_qkv_post_base_dropped, quern_qkv_post_base_dropped_spec, spec);
  const KvReference k = test.empty_cache(true);
  const auto output = test.run(no_base, {6}, 1);
  std::memcpy(k.data(), output.data() + test.rows.size(), k.size());
  EXPECT_TRUE(std::isnan(k.value(0, 17, 0)));
}

}  // namespace
}  // namespace quern::cpu
