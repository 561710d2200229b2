// Every family for every target through NVRTC: no GPU needed. Without NVRTC the cases skip with its
// line.

#include <gtest/gtest.h>

#include <set>

#include "tests/compiler/cuda/compile_support.h"
#include "tests/compiler/cuda/field_changer.h"
#include "tests/compiler/cuda/sample_specs.h"

namespace quern::test {
namespace {

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
    EXPECT_LE(record_number(kernel, "registers"), 255u);
    EXPECT_EQ(record_number(kernel, "spill_bytes"), 0u);
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

TEST(Key, every_field_of_every_spec_changes_it_and_so_does_the_target) {
  QUERN_NEED_NVRTC();
  const Target target = cuda::make_target("sm_90a");
  for (const NamedSpec& sample : sample_specs()) {
    const std::string key = cuda::kernel_key(sample.spec, target).digest();
    EXPECT_EQ(key, cuda::kernel_key(sample.spec, target).digest());
    std::set<std::string> keys{key};
    EXPECT_TRUE(
        keys.insert(cuda::kernel_key(sample.spec, cuda::make_target("sm_80")).digest()).second);
    const std::vector<spec::AnySpec> changed = every_field_changed(sample.spec);
    for (size_t field = 0; field < changed.size(); ++field) {
      EXPECT_TRUE(keys.insert(cuda::kernel_key(changed[field], target).digest()).second)
          << sample.name << ", field " << field;
    }
  }
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
