// Every family for every target through NVRTC: no GPU needed. Without NVRTC the cases skip with its
// line.

#include <gtest/gtest.h>

#include "compiler/cuda/cuda_compiler.h"
#include "compiler/cuda/nvrtc.h"
#include "models/error.h"
#include "tests/compiler/cuda/sample_specs.h"

namespace quern::test {
namespace {

#define QUERN_NEED_NVRTC()                                               \
  do {                                                                   \
    const std::string problem = cuda::Nvrtc::problem();                  \
    if (!problem.empty()) {                                              \
      ASSERT_EQ(std::getenv("QUERN_REQUIRE_NVRTC"), nullptr) << problem; \
      GTEST_SKIP() << problem;                                           \
    }                                                                    \
  } while (0)

uint64_t number(const CompiledKernel& kernel, std::string_view name) {
  for (const auto& [key, value] : kernel.record) {
    if (key == name) return std::stoull(value);
  }
  ADD_FAILURE() << "no " << name << " in the record";
  return 0;
}

class CompileTarget : public testing::TestWithParam<std::string> {};

TEST_P(CompileTarget, every_family_compiles_within_its_resources) {
  QUERN_NEED_NVRTC();
  const cuda::TargetTraits& traits = cuda::target_traits(GetParam());
  for (const NamedSpec& sample : sample_specs()) {
    SCOPED_TRACE(sample.name);
    // What the planner must not choose there is not compiled there: the shape asks for more shared
    // memory than a block may have.
    if (sample.shared_bytes > traits.shared_bytes_block) continue;
    const CompiledKernel kernel =
        cuda::compile_kernel(sample.spec, cuda::make_target(GetParam()), true);
    EXPECT_GT(kernel.code.size(), 500u);
    EXPECT_LE(number(kernel, "registers"), 255u);
    EXPECT_EQ(number(kernel, "spill_bytes"), 0u);
    EXPECT_EQ(kernel.symbol, "quern_kernel");
  }
}

INSTANTIATE_TEST_SUITE_P(All, CompileTarget, testing::Values("sm_80", "sm_89", "sm_90a", "sm_120"),
                         [](const auto& target) { return target.param; });

TEST(Compile, the_same_spec_gives_the_same_machine_code) {
  QUERN_NEED_NVRTC();
  const spec::AnySpec norm =
      spec::NormSpec{.width = 576, .group = 576, .eps = 1e-5f, .tier = spec::Tier::mma};
  const Target target = cuda::make_target("sm_80");
  EXPECT_EQ(cuda::compile_kernel(norm, target).code, cuda::compile_kernel(norm, target).code);
  EXPECT_EQ(cuda::kernel_key(norm, target).digest(), cuda::kernel_key(norm, target).digest());
  EXPECT_NE(cuda::kernel_key(norm, target).digest(),
            cuda::kernel_key(norm, cuda::make_target("sm_90a")).digest());
}

TEST(Compile, ptx_can_be_had) {
  QUERN_NEED_NVRTC();
  const std::string ptx = cuda::kernel_ptx(sample_gemm(64), cuda::make_target("sm_90a"));
  EXPECT_NE(ptx.find("mma.sync.aligned.m16n8k16"), std::string::npos);
  EXPECT_NE(ptx.find("quern_kernel"), std::string::npos);
}

TEST(Nvrtc, a_library_that_is_none_is_named_with_a_remedy) {
  testing::FLAGS_gtest_death_test_style =
      "threadsafe";  // a fresh process: this one may have loaded NVRTC already
  EXPECT_EXIT(
      {
        setenv("QUERN_NVRTC", "/nowhere/libnvrtc.so.13", 1);
        const std::string problem = cuda::Nvrtc::problem();
        const bool told = problem.find("/nowhere/libnvrtc.so.13") != std::string::npos &&
                          problem.find("install the CUDA toolkit") != std::string::npos;
        _exit(told ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace quern::test
