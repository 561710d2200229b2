// What follows the fused QKV projection on the mma tier (QK-norm, RoPE, the cache), against double
// precision.

#include <cmath>

#include "models/quant/quant_type.h"
#include "templates/spec/kv_launch.h"
#include "templates/spec/qkv_post.h"
#include "tests/gpu/support/attention_case.h"
#include "tests/gpu/support/gpu.h"

namespace quern::test {
namespace {

using spec::KvType;
using spec::QkNorm;
using spec::QkvPostSpec;
using spec::RopePairing;

constexpr uint32_t tokens = 5, start = 60, capacity = 128;

QkvPostSpec qkv_spec(uint32_t head_dim, QkNorm norm, RopePairing rope, uint32_t n_rot, KvType kv,
                     uint32_t value_dim = 0) {
  const uint32_t value = value_dim == 0 ? head_dim : value_dim;
  return {.n_head = 6,
          .n_head_kv = 2,
          .head_dim = head_dim,
          .value_dim = value,
          .row_width = 8 * head_dim + 2 * value + 7,
          .q_offset = 3,
          .k_offset = 3 + 6 * head_dim,
          .v_offset = 3 + 8 * head_dim,
          .qk_norm = norm,
          .eps = 1e-5f,
          .rope = rope,
          .n_rot = n_rot,
          .kv = kv,
          .tier = spec::Tier::mma};
}

class QkvCase {
 public:
  explicit QkvCase(const QkvPostSpec& s) : s_(s) {
    RandomNormal random(s.head_dim + s.n_rot);
    rows_.resize(static_cast<size_t>(tokens) * s.row_width);
    for (float& v : rows_) v = random() * 2;
    q_weight_.resize(s.qk_norm == QkNorm::full_width ? s.n_head * s.head_dim : s.head_dim);
    k_weight_.resize(s.qk_norm == QkNorm::full_width ? s.n_head_kv * s.head_dim : s.head_dim);
    for (float& v : q_weight_) v = random();
    for (float& v : k_weight_) v = random();
    const uint32_t half = s.n_rot / 2;
    for (uint32_t position = 0; position < capacity; ++position) {
      for (uint32_t i = 0; i < half; ++i) {
        const double angle = position * std::pow(10000.0, -static_cast<double>(i) / half);
        table_.push_back(static_cast<float>(std::cos(angle)));
        table_.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    if (table_.empty()) table_.push_back(0);
  }

  /// Runs the kernel and compares everything it writes; the number of values outside their bars.
  uint32_t run(bool halves, const CompiledKernel* mutant = nullptr) {
    Array<float> rows(rows_), table(table_), q_weight(q_weight_), k_weight(k_weight_);
    const uint32_t k_row = spec::kv_row_bytes(s_.kv, s_.head_dim),
                   v_row = spec::kv_row_bytes(s_.kv, s_.value_dim);
    Array<std::byte> k_cache(size_t{s_.n_head_kv} * capacity * k_row),
        v_cache(size_t{s_.n_head_kv} * capacity * v_row);
    Array<uint16_t> q(static_cast<size_t>(tokens) * s_.n_head * s_.head_dim);
    k_cache.poison(), v_cache.poison(), q.poison();
    cuda::KernelArgs args = plain_args();
    void* buffers[] = {rows.pointer(),
                       table.pointer(),
                       q_weight.pointer(),
                       k_weight.pointer(),
                       k_cache.pointer(),
                       v_cache.pointer(),
                       halves ? q.pointer() : nullptr};
    std::copy(std::begin(buffers), std::end(buffers), args.buffers);
    args.kv_capacity = capacity;
    args.x_scale = 0.25f;
    const uint32_t heads = s_.n_head + 2 * s_.n_head_kv;
    const CompiledKernel& code = mutant != nullptr ? *mutant : compiled(s_);
    Kernel kernel(code, {.threads = 256});
    kernel.run(args, {.n_tokens = tokens, .start_position = start, .n_outputs = 0, .reserved = 0},
               tokens + 1, (heads + 7) / 8);
    wrong_ = 0;
    check_queries(rows.download(), q.download(), halves);
    check_cache(k_cache.download(), k_row, s_.head_dim, true);
    check_cache(v_cache.download(), v_row, s_.value_dim, false);
    return wrong_;
  }

 private:
  struct Exact {
    double value, spread;  ///< `spread`: the size of what was added to make it.
  };

  std::vector<Exact> exact_head(uint32_t token, uint32_t offset, uint32_t head, uint32_t n_head,
                                const std::vector<float>& weight) const {
    const float* all = rows_.data() + static_cast<size_t>(token) * s_.row_width + offset;
    const float* x = all + static_cast<size_t>(head) * s_.head_dim;
    const bool full = s_.qk_norm == QkNorm::full_width;
    const uint32_t width = full ? n_head * s_.head_dim : s_.head_dim;
    double squares = 0;
    for (uint32_t i = 0; i < width; ++i)
      squares += static_cast<double>((full ? all : x)[i]) * (full ? all : x)[i];
    const double scale = s_.qk_norm == QkNorm::none
                             ? 1
                             : 1 / std::sqrt(squares / width + static_cast<double>(s_.eps));
    std::vector<double> v(s_.head_dim);
    for (uint32_t i = 0; i < s_.head_dim; ++i) {
      v[i] = x[i] * scale *
             (s_.qk_norm == QkNorm::none ? 1 : weight[full ? head * s_.head_dim + i : i]);
    }
    std::vector<Exact> out;
    for (const double value : v) out.push_back({value, std::abs(value)});
    if (s_.rope == RopePairing::none) return out;
    const uint32_t half = s_.n_rot / 2;
    for (uint32_t i = 0; i < half; ++i) {
      const float* cs = table_.data() + (static_cast<size_t>(start + token) * half + i) * 2;
      const uint32_t a = s_.rope == RopePairing::neox ? i : 2 * i,
                     b = s_.rope == RopePairing::neox ? i + half : 2 * i + 1;
      const double spread = std::abs(v[a]) + std::abs(v[b]);
      out[a] = {v[a] * cs[0] - v[b] * cs[1], spread};
      out[b] = {v[b] * cs[0] + v[a] * cs[1], spread};
    }
    return out;
  }
  void expect(double got, const Exact& exact, double bar) {
    if (!(std::abs(got - exact.value) <= bar + exact.spread * 1e-6)) ++wrong_;
  }

  void check_queries(const std::vector<float>& rows, const std::vector<uint16_t>& q, bool halves) {
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t head = 0; head < s_.n_head; ++head) {
        const std::vector<Exact> exact = exact_head(t, s_.q_offset, head, s_.n_head, q_weight_);
        for (uint32_t i = 0; i < s_.head_dim; ++i) {
          if (halves) {
            const double got =
                f16_to_f32(q[(static_cast<size_t>(t) * s_.n_head + head) * s_.head_dim + i]) * 4.0;
            expect(got, exact[i], std::abs(exact[i].value) * 0x1p-11 + 0x1p-23);
          } else {
            expect(
                rows[static_cast<size_t>(t) * s_.row_width + s_.q_offset + head * s_.head_dim + i],
                exact[i], 0);
          }
        }
      }
    }
  }

  void check_cache(const std::vector<std::byte>& cache, uint32_t row_bytes, uint32_t dim,
                   bool keys) {
    for (uint32_t head = 0; head < s_.n_head_kv; ++head) {
      for (uint32_t position = 0; position < capacity; ++position) {
        const std::byte* row =
            cache.data() + (static_cast<size_t>(head) * capacity + position) * row_bytes;
        if (position < start || position >= start + tokens) {
          for (uint32_t i = 0; i < row_bytes; ++i) wrong_ += row[i] != std::byte{0xff};
          continue;
        }
        std::vector<Exact> exact;
        if (keys) {
          exact = exact_head(position - start, s_.k_offset, head, s_.n_head_kv, k_weight_);
        } else {
          for (uint32_t i = 0; i < dim; ++i) {
            const double v = rows_[static_cast<size_t>(position - start) * s_.row_width +
                                   s_.v_offset + head * dim + i];
            exact.push_back({v, std::abs(v)});
          }
        }
        check_row(row, exact);
      }
    }
  }

  void check_row(const std::byte* row, const std::vector<Exact>& exact) {
    for (uint32_t i = 0; i < exact.size(); ++i) {
      uint16_t bits = 0;
      if (s_.kv == KvType::f32) {
        float v = 0;
        std::memcpy(&v, row + i * 4, 4);
        expect(v, exact[i], 0);
      } else if (s_.kv == KvType::q8_0) {
        const std::byte* block = row + i / 32 * 34;
        std::memcpy(&bits, block + 32, 2);
        double top = 0;
        for (uint32_t j = i / 32 * 32; j < std::min<size_t>(i / 32 * 32 + 32, exact.size()); ++j) {
          top = std::max(top, std::abs(exact[j].value));
        }
        expect(f16_to_f32(bits) * static_cast<double>(static_cast<int8_t>(block[i % 32])), exact[i],
               top / 127 * 0.502);
      } else {
        std::memcpy(&bits, row + i * 2, 2);
        const bool half = s_.kv == KvType::f16;
        expect(half ? f16_to_f32(bits) : bf16_to_f32(bits), exact[i],
               std::abs(exact[i].value) * (half ? 0x1p-11 : 0x1p-8) + 0x1p-25);
      }
    }
  }

  QkvPostSpec s_;
  std::vector<float> rows_, q_weight_, k_weight_, table_;
  uint32_t wrong_ = 0;
};

struct Shape {
  std::string name;
  QkvPostSpec spec;
};
std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << shape.name;
}

std::vector<Shape> shapes() {
  return {
      {"llama", qkv_spec(128, QkNorm::none, RopePairing::norm, 128, KvType::f16)},
      {"qwen3", qkv_spec(128, QkNorm::per_head, RopePairing::neox, 128, KvType::f16)},
      {"olmo2", qkv_spec(64, QkNorm::full_width, RopePairing::neox, 64, KvType::bf16)},
      {"phi2", qkv_spec(80, QkNorm::none, RopePairing::neox, 32, KvType::q8_0)},
      {"norm_part", qkv_spec(96, QkNorm::per_head, RopePairing::norm, 64, KvType::q8_0)},
      {"no_rope", qkv_spec(64, QkNorm::none, RopePairing::none, 0, KvType::f32)},
      {"wide", qkv_spec(256, QkNorm::per_head, RopePairing::neox, 64, KvType::f32)},
      {"two_dims", qkv_spec(72, QkNorm::none, RopePairing::norm, 40, KvType::f16, 40)},
  };
}

class QkvPost : public testing::TestWithParam<Shape> {};

TEST_P(QkvPost, queries_and_cache_are_the_exact_ones_rounded) {
  QUERN_NEED_GPU();
  QkvCase c(GetParam().spec);
  EXPECT_EQ(c.run(true), 0u) << "f16 queries";
  EXPECT_EQ(c.run(false), 0u) << "f32 queries in place";
}
INSTANTIATE_TEST_SUITE_P(All, QkvPost, testing::ValuesIn(shapes()),
                         [](const auto& shape) { return shape.param.name; });

TEST(QkvPost, a_value_past_the_f16_range_is_clamped_and_counted) {
  QUERN_NEED_GPU();
  const QkvPostSpec s = qkv_spec(64, QkNorm::none, RopePairing::none, 0, KvType::f16);
  std::vector<float> row(s.row_width, 1.0f);
  row[s.v_offset + 5] = 1e6f;
  Array<float> rows(row);
  Array<uint16_t> k_cache(2 * 64 * 64), v_cache(2 * 64 * 64), q(6 * 64);
  Array<uint32_t> saturated(std::vector<uint32_t>{0});
  cuda::KernelArgs args = plain_args();
  args.buffers[0] = rows.pointer();
  args.buffers[4] = k_cache.pointer();
  args.buffers[5] = v_cache.pointer();
  args.buffers[6] = q.pointer();
  args.kv_capacity = 64;
  args.saturated = saturated.pointer();
  v_cache.zero();
  Kernel kernel(s, {.threads = 256});
  kernel.run(args, {.n_tokens = 1, .start_position = 0, .n_outputs = 0, .reserved = 0}, 1, 2);
  EXPECT_EQ(f16_to_f32(v_cache.download()[5]), 65504.0f);
  EXPECT_EQ(saturated.download()[0], 1u);
}

TEST(QkvPostMutants, fail_the_comparison) {
  QUERN_NEED_GPU();
  const Shape qwen3 = shapes()[1], olmo2 = shapes()[2], part = shapes()[4];
  struct Change {
    QkvPostSpec spec;
    std::string from, to;
  };
  const std::vector<Change> changes = {
      {qwen3.spec, "position = args.state->start_position + token", "position = token"},
      {qwen3.spec, "second ? other : -other", "second ? -other : other"},
      {part.spec, "i < s.n_rot;", "i <= s.n_rot;"},
      {part.spec, "const u32 pair = neox ? i % half : i / 2",
       "const u32 pair = neox ? i % half : i % half"},
      {olmo2.spec, "w += head * s.head_dim", "w += 0"},
      {qwen3.spec, "static_cast<float>(count))", "static_cast<float>(count + 1))"},
  };
  std::vector<CompiledKernel> kernels(changes.size());
  in_parallel(changes.size(), [&](size_t i) {
    kernels[i] = compile_mutant(changes[i].spec, "templates/cuda/qkv_post.cuh", changes[i].from,
                                changes[i].to);
  });
  for (size_t i = 0; i < changes.size(); ++i) {
    EXPECT_GT(QkvCase(changes[i].spec).run(true, &kernels[i]), 0u) << changes[i].to;
  }
}

}  // namespace
}  // namespace quern::test
