#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "templates/spec/attention.h"
#include "tests/compiler/cpu/kernel_check.h"
#include "tests/compiler/cpu/kv_reference.h"

QUERN_NATIVE_TEMPLATE(quern::spec::AttentionSpec, quern_attention_none)
QUERN_NATIVE_TEMPLATE(quern::spec::AttentionSpec, quern_attention_causal_exclusive)
QUERN_NATIVE_TEMPLATE(quern::spec::AttentionSpec, quern_attention_window_off_by_one)
QUERN_NATIVE_TEMPLATE(quern::spec::AttentionSpec, quern_attention_gate_raw)
QUERN_NATIVE_TEMPLATE(quern::spec::AttentionSpec, quern_attention_base_dropped)
QUERN_NATIVE_TEMPLATE(quern::spec::AttentionSpec, quern_attention_scale_off)

namespace quern::cpu {
namespace {

using spec::AttentionPath;
using spec::AttentionSpec;
using spec::KvType;

AttentionSpec make_spec(uint32_t n_head, uint32_t n_head_kv, uint32_t head_dim) {
  AttentionSpec s;
  s.n_head = n_head;
  s.n_head_kv = n_head_kv;
  s.head_dim = head_dim;
  s.value_dim = head_dim;
  s.q_offset = 5;
  s.q_row_width = s.q_offset + n_head * head_dim + 7;
  s.scale = 1 / std::sqrt(static_cast<float>(head_dim));
  s.kv = KvType::f32;
  s.block_keys = 64;
  s.segment_keys = 1024;
  return s;
}

struct AttentionCase {
  AttentionSpec spec;
  uint32_t start, n_tokens, capacity;
  std::vector<float> q, gate;
  KvReference k, v;

  AttentionCase(const AttentionSpec& s, uint32_t first, uint32_t n)
      : spec(s),
        start(first),
        n_tokens(n),
        capacity((first + n + 63) / 64 * 64),
        q(random_floats(size_t{n} * s.q_row_width, 1)),
        gate(random_floats(size_t{n} * s.gate_row_width, 2, 2)),
        k(s.kv, true, s.n_head_kv, s.head_dim, capacity),
        v(s.kv, false, s.n_head_kv, s.value_dim, capacity) {
    for (uint32_t p = 0; p < start + n; ++p) {
      for (uint32_t h = 0; h < s.n_head_kv; ++h) {
        k.store(h, p, random_floats(s.head_dim, 1000 + p * 64 + h).data());
        v.store(h, p, random_floats(s.value_dim, 500000 + p * 64 + h).data());
      }
    }
  }

  /// Softmax in double over the keys that the query sees.
  void reference_head(uint32_t token, uint32_t head, const float* keys, const float* values,
                      double* out) const {
    const uint32_t position = start + token;
    const float* query =
        q.data() + size_t{token} * spec.q_row_width + spec.q_offset + head * spec.head_dim;
    std::vector<double> scores(position + 1, -std::numeric_limits<double>::infinity());
    double largest = -std::numeric_limits<double>::infinity();
    for (uint32_t j = 0; j <= position; ++j) {
      if (spec.window != 0 && position - j >= spec.window) continue;
      double s = 0;
      for (uint32_t i = 0; i < spec.head_dim; ++i)
        s += double{query[i]} * keys[j * spec.head_dim + i];
      s *= spec.scale;
      if (spec.softcap > 0) s = spec.softcap * std::tanh(s / spec.softcap);
      scores[j] = s;
      largest = std::max(largest, s);
    }
    double total = 0;
    std::fill(out, out + spec.value_dim, 0.0);
    for (uint32_t j = 0; j <= position; ++j) {
      const double p = std::exp(scores[j] - largest);
      if (p == 0) continue;
      total += p;
      for (uint32_t i = 0; i < spec.value_dim; ++i) out[i] += p * values[j * spec.value_dim + i];
    }
    for (uint32_t i = 0; i < spec.value_dim; ++i) {
      out[i] /= total;
      if (spec.gate == 0) continue;
      const size_t at = size_t{token} * spec.gate_row_width + spec.gate_offset;
      out[i] /= 1 + std::exp(-double{gate[at + head * spec.value_dim + i]});
    }
  }

  std::vector<double> reference() const {
    std::vector<double> out(size_t{n_tokens} * spec.n_head * spec.value_dim);
    for (uint32_t h = 0; h < spec.n_head; ++h) {
      const uint32_t kv = h / (spec.n_head / spec.n_head_kv);
      const auto keys = k.decode(kv, start + n_tokens), values = v.decode(kv, start + n_tokens);
      for (uint32_t t = 0; t < n_tokens; ++t) {
        reference_head(t, h, keys.data(), values.data(),
                       out.data() + (t * spec.n_head + h) * spec.value_dim);
      }
    }
    return out;
  }

  std::vector<float> run(Launcher& launcher, const std::vector<uint32_t>& split, uint32_t workers) {
    std::vector<float> out = poisoned(size_t{n_tokens} * spec.n_head * spec.value_dim);
    uint32_t token = 0;
    for (uint32_t n : split) {
      launcher.run({.n_tokens = n, .start_position = start + token, .kv_capacity = capacity},
                   {q.data() + size_t{token} * spec.q_row_width, k.data(), v.data(),
                    out.data() + size_t{token} * spec.n_head * spec.value_dim,
                    gate.data() + size_t{token} * spec.gate_row_width},
                   workers);
      token += n;
    }
    return out;
  }
};

void check(const AttentionSpec& spec, uint32_t start, uint32_t n_tokens,
           Targets targets = Targets::native, double tolerance = 2e-5) {
  AttentionCase test(spec, start, n_tokens);
  const auto out = expect_bits_independent(
      spec, n_tokens,
      [&](Launcher& l, const auto& split, uint32_t workers) { return test.run(l, split, workers); },
      targets);
  EXPECT_LE(relative_error(out, test.reference()), tolerance)
      << spec_to_text(spec) << " at " << start << " + " << n_tokens;
}

TEST(Attention, flash_agrees_with_double_and_bits_do_not_depend_on_the_split) {
  for (auto [start, n] : {std::pair{0u, 3u}, {0u, 64u}, {100u, 17u}, {3000u, 40u}, {4090u, 6u}}) {
    check(make_spec(8, 2, 128), start, n, Targets::all);
  }
}

TEST(Attention, wave_agrees_with_double_and_bits_do_not_depend_on_the_split) {
  for (auto [start, n] : {std::pair{0u, 3u}, {100u, 17u}, {4097u, 8u}}) {
    AttentionSpec spec = make_spec(8, 2, 128);
    spec.path = AttentionPath::wave;
    check(spec, start, n, Targets::all);
  }
}

TEST(Attention, long_contexts_and_bf16_caches_agree_with_double) {
  AttentionSpec spec = make_spec(8, 2, 128);
  spec.path = AttentionPath::wave;
  check(spec, 5000, 64);
  spec.kv = KvType::bf16;
  check(spec, 6000, 48);
  spec.path = AttentionPath::flash;
  for (auto [start, n] : {std::pair{0u, 5u}, {0u, 64u}, {256u, 17u}, {3500u, 40u}}) {
    check(spec, start, n);
  }
}

TEST(Attention, every_cache_type_is_read_as_stored) {
  for (KvType kv : all_kv_types) {
    for (AttentionPath path : {AttentionPath::flash, AttentionPath::wave}) {
      for (auto [start, n] : {std::pair{0u, 64u}, {256u, 17u}, {3500u, 3u}}) {
        AttentionSpec spec = make_spec(6, 2, 64);
        spec.kv = kv;
        spec.path = path;
        check(spec, start, n);
      }
    }
  }
}

TEST(Attention, every_head_dim_works) {
  for (uint32_t dim : {8u, 32u, 36u, 64u, 80u, 96u, 128u, 256u}) {
    for (KvType kv : {KvType::f32, KvType::q8_0}) {
      AttentionSpec spec = make_spec(4, 2, dim);
      spec.kv = kv;
      check(spec, 90, 20, kv == KvType::q8_0 && dim == 64 ? Targets::all : Targets::native);
    }
  }
}

TEST(Attention, value_dim_may_differ) {
  AttentionSpec spec = make_spec(4, 2, 48);
  spec.value_dim = 20;
  spec.kv = KvType::f16;
  check(spec, 33, 31);
}

TEST(Attention, every_group_size_works) {
  for (auto [heads, kv] : {std::pair{1u, 1u}, {3u, 3u}, {5u, 1u}, {16u, 2u}, {64u, 1u}}) {
    check(make_spec(heads, kv, 32), 50, 21);
  }
}

TEST(Attention, window_hides_keys_at_exactly_its_width) {
  for (uint32_t window : {1u, 16u, 64u, 100u}) {
    for (auto [start, n] : {std::pair{0u, 70u}, {1000u, 40u}, {2040u, 20u}}) {
      AttentionSpec spec = make_spec(4, 2, 64);
      spec.window = window;
      check(spec, start, n);
    }
  }
  AttentionSpec spec = make_spec(4, 2, 64);
  spec.window = 1500;  // Across segments.
  check(spec, 2500, 30);
}

TEST(Attention, softcap_and_gate_apply) {
  for (AttentionPath path : {AttentionPath::flash, AttentionPath::wave}) {
    AttentionSpec spec = make_spec(4, 2, 64);
    spec.softcap = 5;
    spec.gate = 1;
    spec.gate_row_width = 300;
    spec.gate_offset = 40;
    spec.path = path;
    check(spec, 120, 40, Targets::all);
  }
}

TEST(Attention, small_blocks_and_segments_fold_to_the_same_bits_in_decode_and_prefill) {
  AttentionSpec spec = make_spec(6, 2, 32);
  spec.block_keys = 16;
  spec.segment_keys = 32;
  check(spec, 0, 150);
  check(spec, 777, 33);
}

TEST(Attention, large_scores_do_not_overflow) {
  AttentionSpec spec = make_spec(4, 2, 64);
  spec.scale = 20;
  check(spec, 100, 30, Targets::native, 1e-3);
}

TEST(Attention, a_token_far_into_the_context_is_shared_between_workers) {
  AttentionSpec spec = make_spec(3, 1, 64);
  spec.kv = KvType::f16;
  check(spec, 9000, 1);
}

TEST(Attention, infinite_values_of_hidden_keys_change_no_bit) {
  const AttentionSpec spec = make_spec(3, 3, 64);
  AttentionCase test(spec, 20, 30);
  Launcher& launcher = compiled(spec);
  auto before = test.run(launcher, {30}, 1);
  const std::vector<float> infinite(64, std::numeric_limits<float>::infinity());
  for (uint32_t h = 0; h < 3; ++h) test.v.store(h, 49, infinite.data());
  auto after = test.run(launcher, {30}, 1);
  const size_t last = size_t{29} * spec.n_head * spec.value_dim;
  before.resize(last);
  after.resize(last);
  EXPECT_TRUE(same_bits(before, after));
}

TEST(Attention, the_comparison_sees_each_mutant) {
  AttentionSpec spec = make_spec(4, 2, 64);
  spec.window = 24;
  spec.gate = 1;
  spec.gate_row_width = 4 * 64;
  AttentionCase test(spec, 100, 9);
  const auto error = [&](KernelFunction function, AttentionSpec& slot) {
    NativeLauncher launcher(function, slot, spec);
    return relative_error(test.run(launcher, {9}, 1), test.reference());
  };
  EXPECT_LE(error(quern_attention_none, quern_attention_none_spec), 5e-6);
  NativeLauncher right(quern_attention_none, quern_attention_none_spec, spec);
  EXPECT_TRUE(same_bits(test.run(right, {9}, 1), test.run(compiled(spec), {9}, 1)));
  EXPECT_GT(error(quern_attention_causal_exclusive, quern_attention_causal_exclusive_spec), 1e-3);
  EXPECT_GT(error(quern_attention_window_off_by_one, quern_attention_window_off_by_one_spec), 1e-3);
  EXPECT_GT(error(quern_attention_gate_raw, quern_attention_gate_raw_spec), 1e-3);
  EXPECT_GT(error(quern_attention_base_dropped, quern_attention_base_dropped_spec), 1e-3);
  EXPECT_GT(error(quern_attention_scale_off, quern_attention_scale_off_spec), 2e-5);
}

}  // namespace
}  // namespace quern::cpu
