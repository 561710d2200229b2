// cuBLASLt as the control of benchmarks: it must compute the product that it is timed on.

#include "runtime/cuda/cublas_lt.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/quant/quant_type.h"
#include "tests/gpu/support/gpu.h"

namespace quern::test {
namespace {

TEST(CublasGemm, multiplies_rows_of_a_by_rows_of_b) {
  QUERN_NEED_GPU();
  if (const std::string problem = cuda::CublasLt::problem(); !problem.empty()) {
    GTEST_SKIP() << problem;
  }
  for (const auto& [m, n, k] :
       {std::array<uint32_t, 3>{1, 64, 32}, {17, 72, 256}, {40, 200, 1032}}) {
    std::mt19937 random(m);  // integers of -4 … 4: products and sums are exact in f32
    const auto draw = [&](size_t count) {
      std::vector<float> values(count);
      for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 9) - 4);
      return values;
    };
    const std::vector<float> a = draw(size_t{m} * k), b = draw(size_t{n} * k);
    const auto halves = [](const std::vector<float>& values) {
      std::vector<uint16_t> out;
      for (const float value : values) out.push_back(f32_to_f16(value));
      return out;
    };
    const Array<uint16_t> a_gpu(halves(a)), b_gpu(halves(b));
    Array<float> c_gpu(size_t{m} * n);
    c_gpu.poison();
    const cuda::CublasGemm gemm(gpu(), m, n, k);
    const cuda::StreamQueue stream(gpu());
    gemm.run(stream, std::bit_cast<cuda::DevicePointer>(a_gpu.pointer()),
             std::bit_cast<cuda::DevicePointer>(b_gpu.pointer()),
             std::bit_cast<cuda::DevicePointer>(c_gpu.pointer()));
    stream.synchronize();
    const std::vector<float> c = c_gpu.download();
    for (uint32_t i = 0; i < m; ++i) {
      for (uint32_t j = 0; j < n; ++j) {
        float expected = 0;
        for (uint32_t x = 0; x < k; ++x) expected += a[size_t{i} * k + x] * b[size_t{j} * k + x];
        ASSERT_EQ(c[size_t{i} * n + j], expected) << m << " x " << n << " x " << k;
      }
    }
  }
}

}  // namespace
}  // namespace quern::test
