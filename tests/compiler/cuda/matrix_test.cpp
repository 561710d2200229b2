// The matrix of GPU kernels: types x classes of tokens x families x targets, as plans choose them,
// with the resources that the compiler reports. In CI one kernel in so many is compiled; with
// QUERN_FULL_MATRIX=1 all of them (CONTRIBUTING.md says how long that takes).

#include <gtest/gtest.h>

#include "models/error.h"
#include "tests/compiler/cuda/compile_support.h"
#include "tests/compiler/cuda/matrix_specs.h"

namespace quern::test {
namespace {

/// Of which CI compiles one, another for each target.
constexpr size_t sample_of = 24;

bool full_matrix() {
  const char* text = std::getenv("QUERN_FULL_MATRIX");
  return text != nullptr && std::string_view(text) == "1";
}

std::vector<NamedSpec> part_of_matrix(const std::string& part, const cuda::TargetTraits& target) {
  MatrixSpecs matrix(target);
  if (part == "attention") return matrix.attention();
  if (part == "wave") return matrix.wave();
  if (part == "rows") return matrix.rows();
  for (const auto& [name, type] : cell_types) {
    if (name == part) return matrix.gemm(type);
  }
  return {};
}

using Part = std::tuple<std::string, std::string>;

class Matrix : public testing::TestWithParam<Part> {
 protected:
  void expect_resources(const NamedSpec& named) const {
    SCOPED_TRACE(named.name + " " + spec_to_text(named.spec));
    EXPECT_LE(named.shared_bytes, traits_.shared_bytes_block);
    try {
      // Strict: spills and serialised wgmma instructions are errors.
      const CompiledKernel kernel =
          cuda::compile_kernel(named.spec, cuda::make_target(traits_.name), true);
      EXPECT_EQ(record_number(kernel, "spill_bytes"), 0u);
      const uint64_t registers = record_number(kernel, "registers");
      EXPECT_GT(registers, 0u);
      EXPECT_LE(registers, 255u);
      // In whole units of 8 a thread, a block must fit a multiprocessor.
      EXPECT_LE((registers + 7) / 8 * 8 * named.threads, traits_.registers_sm);
      EXPECT_LE(record_number(kernel, "shared_bytes") + named.shared_bytes,
                traits_.shared_bytes_block);
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }

  const cuda::TargetTraits& traits_ = cuda::target_traits(std::get<0>(GetParam()));
};

TEST_P(Matrix, compiles_within_the_resources_of_its_target) {
  QUERN_NEED_NVRTC();
  const std::vector<NamedSpec> specs = part_of_matrix(std::get<1>(GetParam()), traits_);
  ASSERT_GT(specs.size(), sample_of);
  const size_t step = full_matrix() ? 1 : sample_of;
  size_t compiled = 0;
  for (size_t i = full_matrix() ? 0 : traits_.compute_capability % sample_of; i < specs.size();
       i += step) {
    expect_resources(specs[i]);
    ++compiled;
  }
  RecordProperty("kernels", static_cast<int>(compiled));
  std::printf("%zu of %zu kernels compiled\n", compiled, specs.size());
}

INSTANTIATE_TEST_SUITE_P(All, Matrix,
                         testing::Combine(testing::Values("sm_80", "sm_89", "sm_90a", "sm_120"),
                                          testing::Values("q4_k", "q5_k", "q6_k", "q4_0", "q8_0",
                                                          "f16", "attention", "wave", "rows")),
                         [](const auto& part) {
                           return std::get<0>(part.param) + "_" + std::get<1>(part.param);
                         });

}  // namespace
}  // namespace quern::test
