// Loading cuBLASLt; no GPU is needed for that. tests/gpu multiplies with it.

#include "runtime/cuda/cublas_lt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "models/error.h"
#include "tests/support/temporary_folder.h"

namespace quern::cuda {
namespace {

using testing::HasSubstr;

/// QUERN_CUBLASLT for one scope.
class Named {
 public:
  explicit Named(const std::string& path) { ::setenv("QUERN_CUBLASLT", path.c_str(), 1); }
  ~Named() { ::unsetenv("QUERN_CUBLASLT"); }
};

// One case, because a library that was loaded once stays.
TEST(CublasLt, a_missing_or_wrong_library_has_its_line_and_a_later_one_is_loaded) {
  {
    const Named named("/nowhere/libcublasLt.so.13");
    const std::string problem = CublasLt::problem();
    EXPECT_THAT(problem, HasSubstr("QUERN_CUBLASLT=/nowhere/libcublasLt.so.13 cannot be loaded"));
    EXPECT_THAT(problem, HasSubstr("PyPI package nvidia-cublas"));
    try {
      CublasLt::get();
      FAIL() << "a missing library was loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::failed);
      EXPECT_EQ(error.what(), problem);
    }
  }
  {
    const test::TemporaryFolder folder;
    test::write_bytes(folder / "libcublasLt.so.13", std::vector<std::byte>(64));
    const Named named((folder / "libcublasLt.so.13").string());
    EXPECT_THAT(CublasLt::problem(), HasSubstr("cannot be loaded"));
  }
  {
    const Named named("libm.so.6");  // a library, but another
    EXPECT_THAT(CublasLt::problem(), HasSubstr("has no function cublasLtGetVersion"));
  }
  if (const std::string problem = CublasLt::problem(); !problem.empty()) {
    GTEST_SKIP() << "no cuBLASLt on this machine: " << problem;
  }
  EXPECT_THAT(CublasLt::get().version(), HasSubstr("libcublasLt.so"));
}

}  // namespace
}  // namespace quern::cuda
