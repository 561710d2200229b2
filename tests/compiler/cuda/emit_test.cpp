// Emission: golden sources, and what a source depends on.

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "compiler/cuda/cuda_compiler.h"
#include "models/error.h"
#include "tests/compiler/cuda/field_changer.h"
#include "tests/compiler/cuda/sample_specs.h"

namespace quern::test {
namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Emit, sources_are_the_golden_ones) {
  // A deliberate change: run with QUERN_WRITE_GOLDEN=1 and review the difference.
  for (const NamedSpec& sample : sample_specs()) {
    const std::string path =
        std::string(QUERN_TEST_SOURCES) + "/compiler/cuda/golden/" + sample.name + ".cu";
    const std::string source = cuda::emit_source(sample.spec);
    if (std::getenv("QUERN_WRITE_GOLDEN") != nullptr)
      std::ofstream(path, std::ios::binary) << source;
    EXPECT_EQ(source, read(path)) << path;
  }
}

TEST(Emit, the_same_spec_gives_the_same_bytes) {
  for (const NamedSpec& sample : sample_specs()) {
    EXPECT_EQ(cuda::emit_source(sample.spec),
              cuda::emit_source(spec_from_text(spec_to_text(sample.spec))))
        << sample.name;
  }
}

TEST(Emit, every_field_of_every_spec_changes_the_source) {
  for (const NamedSpec& sample : sample_specs()) {
    std::set<std::string> sources{cuda::emit_source(sample.spec)};
    const std::vector<spec::AnySpec> changed = every_field_changed(sample.spec);
    EXPECT_GE(changed.size(), 1u);
    for (size_t field = 0; field < changed.size(); ++field) {
      EXPECT_TRUE(sources.insert(cuda::emit_source(changed[field])).second)
          << sample.name << ", field " << field;
    }
  }
}

TEST(Emit, the_closure_holds_every_header_and_no_other_family) {
  const std::vector<std::string> norm =
      cuda::header_closure(cuda::emit_source(spec::NormSpec{.width = 64, .group = 64}));
  EXPECT_TRUE(std::binary_search(norm.begin(), norm.end(), "templates/cuda/norm.cuh"));
  EXPECT_TRUE(std::binary_search(norm.begin(), norm.end(), "templates/spec/types.h"));
  EXPECT_FALSE(std::binary_search(norm.begin(), norm.end(), "templates/cuda/gemm.cuh"));
}

TEST(Targets, the_table_answers_by_name_and_by_device) {
  EXPECT_EQ(cuda::target_for_device(90).name, "sm_90a");
  EXPECT_EQ(cuda::target_for_device(80).name, "sm_80");
  EXPECT_EQ(cuda::target_for_device(86).name, "sm_80");
  EXPECT_EQ(cuda::target_for_device(89).name, "sm_89");
  EXPECT_EQ(cuda::target_for_device(120).name, "sm_120");
  EXPECT_THROW(cuda::target_for_device(70), Error);
  EXPECT_THROW(cuda::target_for_device(100), Error);  // nothing of another major version runs there
  EXPECT_THROW(cuda::target_traits("sm_99"), Error);
}

TEST(Resources, are_read_from_the_log) {
  const cuda::Resources r = cuda::parse_resources(
      "ptxas info    : 0 bytes gmem\nptxas info    : Function properties for quern_kernel\n    168 "
      "bytes stack frame, 486 bytes spill "
      "stores, 204 bytes spill loads\nptxas info    : Used 255 registers, used 1 barriers, 1024 "
      "bytes smem\n");
  EXPECT_EQ(r.registers, 255u);
  EXPECT_EQ(r.spill_store_bytes, 486u);
  EXPECT_EQ(r.spill_load_bytes, 204u);
  EXPECT_EQ(r.stack_bytes, 168u);
  EXPECT_EQ(r.static_shared_bytes, 1024u);
  EXPECT_FALSE(r.wgmma_serialized);
  EXPECT_TRUE(
      cuda::parse_resources(
          "ptxas warning : (C7514) Potential Performance Loss: wgmma.mma_async instructions are "
          "serialized due to ...")
          .wgmma_serialized);
}

}  // namespace
}  // namespace quern::test
