// What benchmark rows say, and which projection their control multiplies. Nothing is measured here.

#include "tools/bench_controls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/cuda/cuda_compiler.h"
#include "models/model.h"
#include "models/synth/synth.h"
#include "tools/bench_rows.h"

namespace quern::tools {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

Plan plan_of(const char* shape, const Target& target) {
  std::vector<std::byte> image;
  synth::write_synthetic(synth::shape_named(shape), synth::mix_named("q8_0"), {},
                         [&](std::span<const std::byte> piece) {
                           image.insert(image.end(), piece.begin(), piece.end());
                         });
  PlanOptions options;
  options.context = 64;
  return make_plan(build_graph(gguf::File::parse(image, shape)), options, target);
}

TEST(BenchControls, the_largest_gemm_is_gate_and_up_as_one) {
  for (const Target& target : {cpu::resolve_target("x86-64-v3"), cuda::make_target("sm_90a")}) {
    const auto size = largest_gemm(plan_of("llama-tiny", target));
    ASSERT_TRUE(size.has_value()) << target.name;
    EXPECT_EQ(size->rows, 2048U) << target.name;
    EXPECT_EQ(size->k, 512U) << target.name;
  }
}

TEST(BenchControls, of_a_model_of_experts_it_is_qkv_and_never_the_head) {
  const auto size = largest_gemm(plan_of("olmoe-long", cpu::resolve_target("x86-64-v3")));
  ASSERT_TRUE(size.has_value());
  EXPECT_EQ(size->rows, 3 * 512U);
}

TEST(BenchControls, a_cpu_plan_has_none) {
  const Controls controls =
      measure_controls(plan_of("llama-tiny", cpu::resolve_target("x86-64-v3")), 512);
  EXPECT_FALSE(controls.gemm.has_value());
  EXPECT_FALSE(controls.copy_gb_per_s.has_value());
}

ordered_json row_with(const ordered_json& control) {
  ordered_json row = {{"model", "llama \"x\""},    {"model_size", 1 << 20},
                      {"model_n_params", 2000000}, {"backend", "cuda"},
                      {"target", "sm_90a"},        {"n_threads", 1},
                      {"test", "pp512"},           {"avg_ts", 1000.5},
                      {"stddev_ts", 2.25},         {"samples_ts", {1.0, 2.0}}};
  if (!control.is_null()) row["control"] = control;
  return row;
}

const ordered_json load = {{"kernels_compiled", 3},
                           {"kernels_loaded", 4},
                           {"compile_ms", 1500.0},
                           {"load_kernels_ms", 2.0},
                           {"weights_ms", 30.0}};

TEST(BenchRows, show_controls_where_there_are_some) {
  const ordered_json control = {{"gemm_rows", 2048},
                                {"gemm_k", 512},
                                {"gemm_tokens", 512},
                                {"gemm_tflops", 700.4},
                                {"copy_gb_per_s", 4140.0}};
  EXPECT_THAT(markdown_head(row_with(control)),
              HasSubstr("| t/s | cuBLAS TFLOP/s | copy GB/s |\n"));
  EXPECT_THAT(markdown_row(row_with(control)), HasSubstr("1000.50 ± 2.25 | 700 | 4140 |\n"));
  EXPECT_THAT(markdown_head(row_with(nullptr)), HasSubstr("| t/s |\n"));
  EXPECT_THAT(markdown_row(row_with(nullptr)), HasSubstr("1000.50 ± 2.25 |\n"));
}

TEST(BenchRows, csv_columns_do_not_move_when_a_control_is_missing) {
  const ordered_json missing = {{"gemm_rows", nullptr},
                                {"gemm_k", nullptr},
                                {"gemm_tokens", nullptr},
                                {"gemm_tflops", nullptr},
                                {"copy_gb_per_s", 4140.0}};
  const std::string names = csv_line(row_with(missing), load, true);
  const std::string values = csv_line(row_with(missing), load, false);
  EXPECT_EQ(std::count(names.begin(), names.end(), ','),
            std::count(values.begin(), values.end(), ','));
  EXPECT_THAT(names, HasSubstr("\"control_gemm_tflops\",\"control_copy_gb_per_s\",\"kernels_comp"));
  EXPECT_THAT(values, HasSubstr("\"llama \"\"x\"\"\""));
  EXPECT_THAT(values, HasSubstr("\"\",\"4140.0\",\"3\",\"4\",\"1500.0\""));
  EXPECT_THAT(names, ::testing::Not(HasSubstr("samples")));
}

TEST(BenchRows, compilation_and_loading_are_told_apart) {
  EXPECT_THAT(markdown_load(load), HasSubstr("3 kernels compiled in 1500 ms, 4 loaded in 2.0 ms; "
                                             "weights in 30 ms"));
}

}  // namespace
}  // namespace quern::tools
