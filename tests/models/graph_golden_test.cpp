// Graphs against the fixtures' logits, through the naive interpreter of tests/support.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "models/model.h"
#include "tests/support/fixtures.h"
#include "tests/support/graph_error.h"

namespace quern {
namespace {

using test::load_golden;
using test::shared_file;

/// DESIGN section 9: the largest error over the standard deviation of the logits.
constexpr double bar = 1e-4;

class GraphGolden : public testing::TestWithParam<const char*> {};

TEST_P(GraphGolden, logits_meet_the_fixture) {
  const std::string model = std::string("fixtures/") + GetParam() + ".gguf";
  const std::string golden = std::string("fixtures/") + GetParam() + ".golden.gguf";
  const auto model_path = shared_file(model);
  const auto golden_path = shared_file(golden);
  if (!model_path || !golden_path) GTEST_SKIP() << test::missing_shared(model);
  const gguf::File file = gguf::File::open(*model_path);
  const ModelGraph graph = build_graph(file);
  EXPECT_TRUE(graph.unused_tensors.empty()) << graph.unused_tensors.front();
  const double error = test::graph_error(file, graph, load_golden(*golden_path));
  RecordProperty("error_over_deviation", std::to_string(error * 1e6) + "e-6");
  EXPECT_LE(error, bar);
}

std::string case_name(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::ranges::replace_if(name, [](char c) { return c == '/' || c == '-'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(families, GraphGolden,
                         testing::Values("llama", "llama3", "qwen2", "qwen3", "qwen3moe", "olmoe",
                                         "gemma3", "qwen3next", "qwen35", "qwen35moe"),
                         case_name);
INSTANTIATE_TEST_SUITE_P(quantised, GraphGolden,
                         testing::Values("quant/llama-q4_0", "quant/llama-q8_0",
                                         "quant/llama-q4_k_m", "quant/olmoe-q4_k_m",
                                         "quant/qwen35-q4_k_m"),
                         case_name);
INSTANTIATE_TEST_SUITE_P(variants, GraphGolden,
                         testing::Values("variants/llama-linear", "variants/llama-yarn",
                                         "variants/llama-moe", "variants/qwen3-fused-qkv"),
                         case_name);
INSTANTIATE_TEST_SUITE_P(wide, GraphGolden,
                         testing::Values("wide/llama", "wide/qwen3", "wide/qwen3moe", "wide/olmoe",
                                         "wide/qwen35", "wide/qwen35moe"),
                         case_name);

}  // namespace
}  // namespace quern
