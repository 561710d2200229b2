// Speed of the CPU's projections at the shapes of SmolLM2 135M (and others), one worker:
//   gemm_bench --benchmark_filter=q4_1
// "GFLOP/s" counts a multiply and an add for each weight and token; "weights/s" is what a decode
// step streams. BM_FmaPeak is the machine's ceiling for both vector widths' code.

#include <benchmark/benchmark.h>

#include <fmt/format.h>

#include <memory>
#include <string>

#include "tests/compiler/cpu/gemm_case.h"

namespace quern::cpu {
namespace {

struct Shape {
  uint32_t rows, k;
  bool glu;
};

GemmCase make_case(const Shape& shape, spec::QuantType type) {
  GemmCase c;
  c.spec.k = shape.k;
  c.spec.epilogue = shape.glu ? spec::Epilogue::swiglu : spec::Epilogue::store;
  const GemmTile tile = choose_gemm_tile(resolve_target("native"), shape.k, c.spec.epilogue);
  c.spec.tile_tokens = tile.tile_tokens;
  c.spec.tile_cells = tile.tile_cells;
  c.spec.k_block = tile.k_block;
  c.spec.gemv_max_tokens = tile.gemv_max_tokens;
  c.add(type, shape.rows, 1);
  if (shape.glu) c.add(type, shape.rows, 2);
  return c;
}

void run_gemm(benchmark::State& state, const Shape& shape, spec::QuantType type, uint32_t tokens,
              uint32_t workers) {
  GemmCase c = make_case(shape, type);
  TestKernel kernel(c.spec);
  std::vector<float> x = random_floats(static_cast<size_t>(tokens) * shape.k, 3);
  std::vector<float> y(static_cast<size_t>(tokens) * shape.rows);
  std::vector<void*> buffers = {x.data(), y.data(), nullptr};
  for (const auto& p : c.packed) buffers.push_back(p.data());
  for (size_t s = 0; s < c.packed.size(); ++s) buffers.push_back(nullptr);
  for (auto _ : state) kernel.run({.n_tokens = tokens}, buffers, workers);
  const double weights = static_cast<double>(shape.rows) * shape.k * (shape.glu ? 2 : 1);
  using benchmark::Counter;
  state.counters["GFLOP/s"] = Counter(2e-9 * weights * tokens, Counter::kIsIterationInvariantRate);
  state.counters["Gweights/s"] = Counter(1e-9 * weights, Counter::kIsIterationInvariantRate);
}

/// 24 independent chains of 16-lane multiply-adds, nothing else: f32 x f32 with k = 1 block in L1.
void BM_FmaPeak(benchmark::State& state) {
  run_gemm(state, {64, 64, false}, spec::QuantType::f32, 600, 1);
}
BENCHMARK(BM_FmaPeak);

void register_all() {
  const Shape shapes[] = {{960, 576, false},  {576, 576, false},   {1536, 576, true},
                          {576, 1536, false}, {49152, 576, false}, {2048, 2048, false}};
  for (const spec::QuantType type : all_types()) {
    for (const Shape& shape : shapes) {
      if (shape.k % quant_traits(model_type(type)).block_values != 0) continue;
      for (const uint32_t tokens : {1u, 512u}) {
        const std::string name =
            fmt::format("{}/{}x{}{}/tokens:{}", quant_traits(model_type(type)).name, shape.rows,
                        shape.k, shape.glu ? "_glu" : "", tokens);
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
          run_gemm(state, shape, type, tokens, 1);
        })->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace
}  // namespace quern::cpu

int main(int argc, char** argv) {
  quern::cpu::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
