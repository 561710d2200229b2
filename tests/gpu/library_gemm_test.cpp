// cuBLASLt's route through a GEMM (unpack, flatten, matmul, finish) against the fused kernels: the
// weights bit for bit, the sums within what another order of f32 additions may change.

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "runtime/cuda/cublas_lt.h"
#include "templates/spec/library_gemm.h"
#include "tests/gpu/support/attention_case.h"
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/weights.h"

namespace quern::test {
namespace {

using spec::Epilogue;
using spec::GemmSpec;
using spec::QuantType;

#define QUERN_NEED_CUBLASLT()                                                      \
  do {                                                                             \
    QUERN_NEED_GPU();                                                              \
    if (const std::string problem = cuda::CublasLt::problem(); !problem.empty()) { \
      GTEST_SKIP() << problem;                                                     \
    }                                                                              \
  } while (0)

cuda::DevicePointer address(const void* pointer) {
  return std::bit_cast<cuda::DevicePointer>(pointer);
}

/// A GEMM by both routes.
struct Problem {
  std::vector<spec::RowSegment> segments;  ///< Of a gated unit: one, the rows of a half.
  uint32_t k = 512, tokens = 130;
  Epilogue epilogue = Epilogue::store;
  uint32_t bias = 0;
  float softcap = 0;
  bool outputs = false;  ///< The launch's rows are requested outputs.
};

bool is_glu(const Problem& p) {
  return p.epilogue == Epilogue::swiglu || p.epilogue == Epilogue::gelu_glu;
}

double activated(Epilogue epilogue, double gate) {
  if (epilogue == Epilogue::swiglu) return gate / (1 + std::exp(-gate));
  return 0.5 * gate *
         (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate)));
}

GemmSpec fused_spec(const Problem& p) {
  GemmSpec s{.n_segments = static_cast<uint32_t>(p.segments.size()),
             .k = p.k,
             .epilogue = p.epilogue,
             .bias = p.bias,
             .softcap = p.softcap,
             .tile_tokens = 64,
             .tile_cells = 8,
             .tier = spec::Tier::mma,
             .stages = 4};
  for (size_t i = 0; i < p.segments.size(); ++i) {
    s.segments[i] = {spec::gpu_resident_type(p.segments[i].type),
                     p.segments[i].rows * (is_glu(p) ? 2 : 1)};
  }
  return s;
}
spec::UnpackSpec unpack_spec(const Problem& p) {
  const GemmSpec fused = fused_spec(p);
  spec::UnpackSpec s{.n_segments = fused.n_segments, .k = p.k};
  std::copy(std::begin(fused.segments), std::end(fused.segments), s.segments);
  return s;
}
spec::FinishSpec finish_spec(const Problem& p) {
  const GemmSpec fused = fused_spec(p);
  spec::FinishSpec s{
      .n_segments = fused.n_segments, .epilogue = p.epilogue, .bias = p.bias, .softcap = p.softcap};
  for (uint32_t i = 0; i < s.n_segments; ++i) s.rows[i] = fused.segments[i].rows;
  return s;
}
bool finishes(const Problem& p) {
  return is_glu(p) || p.bias != 0 || p.softcap > 0;
}
void add_specs(const Problem& p, std::vector<spec::AnySpec>& specs) {
  for (const spec::RowSegment& segment : p.segments) {
    specs.emplace_back(repack_spec(segment.type, p.k));
  }
  specs.emplace_back(fused_spec(p));
  specs.emplace_back(unpack_spec(p));
  specs.emplace_back(spec::FlattenSpec{.width = p.k});
  if (finishes(p)) specs.emplace_back(finish_spec(p));
}

class RouteCase {
 public:
  static constexpr float out_scale = 0.5F, x_scale = 4;

  explicit RouteCase(const Problem& problem)
      : p_(problem), random_(problem.k + problem.tokens), fused_(fused_spec(problem)) {
    const uint32_t halves = is_glu(p_) ? 2 : 1;
    for (const spec::RowSegment& segment : p_.segments) {
      std::vector<std::vector<std::byte>> raw;
      for (uint32_t half = 0; half < halves; ++half) {
        raw.push_back(random_weight(segment.type, segment.rows, p_.k, random_));
        decoded_.push_back(decode_weight(segment.type, raw.back(), segment.rows, p_.k));
        for (float& v : decoded_.back()) v = f16_to_f32(f32_to_f16(v));
      }
      packed_.push_back(
          pack_on_gpu(segment.type, raw[0], segment.rows, p_.k, halves == 2 ? &raw[1] : nullptr));
    }
    for (uint32_t i = 0; i < fused_.n_segments; ++i) rows_ += fused_.segments[i].rows;
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < size_t{p_.tokens} * p_.k; ++i) {
      x_.push_back(f32_to_f16(normal(random_)));
    }
    operand_rows_ = (p_.tokens + 63) / 64 * 64;
    operand_.emplace(make_operand(x_, p_.tokens, p_.k, operand_rows_));
    for (size_t i = 0; i < size_t{p_.tokens} * rows_; ++i) residual_.push_back(normal(random_));
    // Room for the rows that pad a product: any bits.
    std::vector<float> padded = residual_;
    padded.resize(size_t{operand_rows_} * rows_, std::nanf(""));
    residual_gpu_.emplace(padded);
    for (uint32_t i = 0; i < rows_; ++i) bias_.push_back(normal(random_));
    bias_gpu_.emplace(bias_);
  }

  /// Bytes of y: f32 rows, or an operand.
  size_t y_bytes() const {
    return size_t{operand_rows_} * (is_glu(p_) ? (rows_ / 2 + 63) / 64 * 128 : rows_ * 4);
  }

  std::vector<std::byte> fused() {
    Array<std::byte> y(y_bytes());
    y.poison();
    cuda::KernelArgs args = arguments(y);
    args.buffers[0] = operand_->pointer();
    for (uint32_t i = 0; i < fused_.n_segments; ++i) args.buffers[3 + i] = packed_[i].pointer();
    Kernel(fused_, launch_shape(fused_, p_.tokens)).run(args, state());
    return y.download();
  }

  /// Plain rows of the weights, row-major.
  Array<uint16_t> unpack() {
    const spec::UnpackSpec s = unpack_spec(p_);
    Array<uint16_t> plain(size_t{rows_} * spec::plain_row_halves(p_.k));
    plain.poison();
    cuda::KernelArgs args = plain_args();
    args.buffers[0] = plain.pointer();
    for (uint32_t i = 0; i < s.n_segments; ++i) args.buffers[1 + i] = packed_[i].pointer();
    Kernel(s, launch_shape(s)).run(args, state());
    return plain;
  }

  /// Plain rows of x; those past the tokens stay poison.
  Array<uint16_t> flatten() {
    const spec::FlattenSpec s{.width = p_.k};
    Array<uint16_t> plain(size_t{operand_rows_} * spec::plain_row_halves(p_.k));
    plain.poison();
    cuda::KernelArgs args = plain_args();
    args.buffers[0] = operand_->pointer();
    args.buffers[1] = plain.pointer();
    args.operand_rows = operand_rows_;
    args.rows_are_outputs = p_.outputs ? 1 : 0;
    Kernel(s, launch_shape(s, p_.tokens)).run(args, state());
    return plain;
  }

  /// `in_place`: y is the residual.
  std::vector<std::byte> library(bool in_place = false) {
    const Array<uint16_t> weights = unpack(), x = flatten();
    Array<std::byte> y(y_bytes());
    y.poison();
    const cuda::CublasGemm gemm(gpu(), operand_rows_, rows_, spec::plain_row_halves(p_.k));
    const cuda::StreamQueue stream(gpu());
    const bool residual = p_.epilogue == Epilogue::residual;
    if (!finishes(p_)) {
      if (in_place) {
        stream.copy_on_device(address(y.pointer()), address(residual_gpu_->pointer()), y_bytes());
      }
      const void* added = in_place ? static_cast<const void*>(y.pointer())
                                   : static_cast<const void*>(residual_gpu_->pointer());
      gemm.run(stream, {.a = address(x.pointer()),
                        .b = address(weights.pointer()),
                        .c = address(y.pointer()),
                        .added = residual ? address(added) : 0,
                        .alpha = out_scale});
      stream.synchronize();
      return y.download();
    }
    Array<float> sums(size_t{operand_rows_} * rows_);
    gemm.run(stream, address(x.pointer()), address(weights.pointer()), address(sums.pointer()));
    stream.synchronize();
    const spec::FinishSpec s = finish_spec(p_);
    cuda::KernelArgs args = arguments(y);
    args.buffers[0] = sums.pointer();
    Kernel(s, launch_shape(s, p_.tokens)).run(args, state());
    return y.download();
  }

  /// Weights of `unpack` that are not the reference's, rounded to f16; padding that is not zero.
  size_t wrong_weights() {
    const std::vector<uint16_t> plain = unpack().download();
    const uint32_t width = spec::plain_row_halves(p_.k);
    size_t wrong = 0, first = 0;
    for (size_t segment = 0; segment < p_.segments.size(); ++segment) {
      for (uint32_t row = 0; row < fused_.segments[segment].rows; ++row) {
        for (uint32_t i = 0; i < width; ++i) {
          const float wanted = i < p_.k ? weight(segment, row, i) : 0;
          wrong += !(f16_to_f32(plain[(first + row) * width + i]) == wanted);
        }
      }
      first += fused_.segments[segment].rows;
    }
    return wrong;
  }

  /// Outputs of two routes that lie farther apart than sums in another order may.
  size_t apart(const std::vector<std::byte>& a, const std::vector<std::byte>& b) const {
    size_t count = 0;
    for (uint32_t token = 0; token < p_.tokens; token += 1 + p_.tokens / 13) {
      size_t first = 0;
      for (size_t segment = 0; segment < p_.segments.size(); ++segment) {
        for (uint32_t row = 0; row < p_.segments[segment].rows; row += 1 + row % 3) {
          const double x = output(a, first + row, token), y = output(b, first + row, token);
          count += !(std::abs(x - y) <= bound(segment, row, token));
        }
        first += p_.segments[segment].rows;
      }
    }
    return count;
  }

 private:
  cuda::KernelArgs arguments(Array<std::byte>& y) const {
    cuda::KernelArgs args = plain_args();
    args.buffers[1] = y.pointer();
    if (p_.epilogue == Epilogue::residual) args.buffers[2] = residual_gpu_->pointer();
    uint32_t first = 0;
    for (uint32_t i = 0; i < fused_.n_segments; ++i) {
      if ((p_.bias >> i & 1U) != 0) {
        args.buffers[3 + fused_.n_segments + i] = bias_gpu_->pointer() + first;
      }
      first += fused_.segments[i].rows;
    }
    args.operand_rows = operand_rows_;
    args.out_scale = out_scale;
    args.x_scale = is_glu(p_) ? x_scale : 1;
    args.rows_are_outputs = p_.outputs ? 1 : 0;
    return args;
  }
  cuda::RunState state() const {
    return {.n_tokens = p_.outputs ? 1000 : p_.tokens,
            .start_position = 0,
            .n_outputs = p_.outputs ? p_.tokens : 0,
            .reserved = 0};
  }
  /// Of a packed row: a gated unit's are gate and up by 8.
  float weight(size_t segment, uint32_t packed_row, uint32_t i) const {
    if (!is_glu(p_)) return decoded_[segment][size_t{packed_row} * p_.k + i];
    const uint32_t row = packed_row / 16 * 8 + packed_row % 8;
    return decoded_[packed_row / 8 % 2][size_t{row} * p_.k + i];
  }
  double output(const std::vector<std::byte>& y, size_t row, uint32_t token) const {
    if (is_glu(p_)) {
      uint16_t half = 0;
      const size_t at = operand_index(static_cast<uint32_t>(row), token, operand_rows_);
      std::memcpy(&half, y.data() + at * 2, 2);
      return f16_to_f32(half);
    }
    float value = 0;
    std::memcpy(&value, y.data() + (size_t{token} * rows_ + row) * 4, 4);
    return value;
  }
  struct Sum {
    double value = 0, of_magnitudes = 0;
  };
  Sum sum(const std::vector<float>& weights, uint32_t row, uint32_t token) const {
    Sum s;
    for (uint32_t i = 0; i < p_.k; ++i) {
      const double product = double{weights[size_t{row} * p_.k + i]} *
                             double{f16_to_f32(x_[size_t{token} * p_.k + i])} * out_scale;
      s.value += product;
      s.of_magnitudes += std::abs(product);
    }
    return s;
  }
  double bound(size_t segment, uint32_t row, uint32_t token) const {
    constexpr double share = 1e-5;
    if (!is_glu(p_)) {
      const double rounding = 1e-6;  // of bias, residual and soft-cap, values of about 1
      return share * sum(decoded_[segment], row, token).of_magnitudes + rounding;
    }
    const Sum gate = sum(decoded_[0], row, token), up = sum(decoded_[1], row, token);
    const double act = activated(p_.epilogue, gate.value);
    const double change = 1.2 * share * gate.of_magnitudes * std::abs(up.value) +
                          share * up.of_magnitudes * std::abs(act);
    return x_scale * (2 * change + std::abs(act * up.value) * 0x1p-10) + 1e-6;
  }

  Problem p_;
  std::mt19937 random_;
  GemmSpec fused_;
  uint32_t rows_ = 0, operand_rows_ = 0;
  std::vector<std::vector<float>> decoded_;  ///< By segment; of a gated unit gate and up.
  std::vector<Array<std::byte>> packed_;
  std::vector<uint16_t> x_;
  std::vector<float> residual_, bias_;
  std::optional<Array<uint16_t>> operand_;
  std::optional<Array<float>> residual_gpu_, bias_gpu_;
};

constexpr QuantType types[] = {
    QuantType::q4_k, QuantType::q5_k,   QuantType::q6_k,   QuantType::q8_0,
    QuantType::q4_0, QuantType::f16,    QuantType::f32,    QuantType::bf16,
    QuantType::q4_1, QuantType::q5_0,   QuantType::q5_1,   QuantType::q2_k,
    QuantType::q3_k, QuantType::iq4_nl, QuantType::iq4_xs, QuantType::mxfp4};

/// What is tried with every type: each epilogue, alone and beside segments of other types.
std::vector<Problem> problems(QuantType type) {
  const std::vector<spec::RowSegment> one = {{type, 264}}, more = {{QuantType::q4_k, 128},
                                                                   {type, 200},
                                                                   {QuantType::q8_0, 40},
                                                                   {QuantType::q6_k, 64}};
  return {
      {.segments = one},
      {.segments = more, .tokens = 65},
      {.segments = one, .epilogue = Epilogue::residual},
      {.segments = more, .bias = 11},
      {.segments = more, .epilogue = Epilogue::residual, .bias = 2},
      {.segments = one, .softcap = 2, .outputs = true},
      {.segments = {{type, 200}}, .epilogue = Epilogue::swiglu},
      {.segments = {{type, 200}}, .epilogue = Epilogue::gelu_glu},
  };
}

class LibraryRoute : public testing::TestWithParam<QuantType> {
 protected:
  void SetUp() override {
    QUERN_NEED_CUBLASLT();
    std::vector<spec::AnySpec> specs;
    for (const Problem& problem : problems(GetParam())) add_specs(problem, specs);
    precompile(specs);
  }
};

TEST_P(LibraryRoute, gives_the_fused_kernel_s_outputs_but_for_the_order_of_sums) {
  size_t index = 0;
  for (const Problem& problem : problems(GetParam())) {
    SCOPED_TRACE(index++);
    RouteCase c(problem);
    EXPECT_EQ(c.wrong_weights(), 0U);
    const std::vector<std::byte> fused = c.fused();
    EXPECT_EQ(c.apart(c.library(), fused), 0U);
    if (problem.epilogue == Epilogue::residual && !finishes(problem)) {
      EXPECT_EQ(c.apart(c.library(/*in_place=*/true), fused), 0U) << "in place";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LibraryRoute, testing::ValuesIn(types));

/// Rows that end in the middle of a slab: their plain rows are padded with zeros.
TEST(LibraryRouteShapes, widths_that_are_no_whole_slabs) {
  QUERN_NEED_CUBLASLT();
  for (const QuantType type : {QuantType::q4_0, QuantType::q8_0, QuantType::f16}) {
    const Problem problem{.segments = {{type, 136}}, .k = 160, .tokens = 70};
    RouteCase c(problem);
    EXPECT_EQ(c.wrong_weights(), 0U);
    EXPECT_EQ(c.apart(c.library(), c.fused()), 0U);
  }
}

TEST(LibraryRouteMutants, fail_the_comparison) {
  QUERN_NEED_CUBLASLT();
  const Problem problem{.segments = {{QuantType::q4_k, 264}}};
  RouteCase c(problem);
  std::vector<std::byte> off = c.fused();
  for (size_t at = 0; at + 4 <= off.size(); at += 4) {
    float value = 0;
    std::memcpy(&value, off.data() + at, 4);
    value *= 1.0001F;
    std::memcpy(off.data() + at, &value, 4);
  }
  EXPECT_GT(c.apart(off, c.fused()), 0U);
}

}  // namespace
}  // namespace quern::test
