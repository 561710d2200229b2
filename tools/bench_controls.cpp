#include "tools/bench_controls.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <variant>
#include <vector>

#include <spdlog/spdlog.h>

#include "models/error.h"
#include "models/quant/quant_type.h"
#include "models/synth/values.h"
#include "runtime/cuda/cublas_lt.h"

namespace quern::tools {
namespace {

constexpr int rounds = 5;

/// Fills device memory with random halves of standard deviation near 1: zeros would draw less power
/// and run at higher clocks.
void fill_random(const cuda::StreamQueue& stream, const cuda::DeviceBuffer& buffer) {
  std::vector<std::byte> piece(std::min<uint64_t>(buffer.bytes(), uint64_t{4} << 20));
  const synth::SynthTensor values{.name = "control", .shape = {1}, .type = QuantType::f16};
  synth::fill_blocks(values, synth::tensor_key(1, values.name), 0, piece);
  stream.copy_to_device(buffer.address(), piece);
  for (uint64_t filled = piece.size(); filled < buffer.bytes();) {
    const uint64_t bytes = std::min(filled, buffer.bytes() - filled);
    stream.copy_on_device(buffer.address() + filled, buffer.address(), bytes);
    filled += bytes;
  }
  stream.synchronize();
}

/// Microseconds of one launch: the median of `rounds` rounds of `launches`, after one uncounted.
template <typename Launch>
double median_us(const std::shared_ptr<cuda::Device>& device, const cuda::StreamQueue& stream,
                 int launches, Launch launch) {
  cuda::Stopwatch watch(device);
  std::array<double, rounds> times{};
  launch();
  for (double& time : times) {
    watch.start(stream);
    for (int i = 0; i < launches; ++i) launch();
    time = watch.stop_us(stream) / launches;
  }
  std::ranges::sort(times);
  return times[rounds / 2];
}

/// The device that a plan's options name: "cuda" or "cuda:I".
int device_index(const Plan& plan) {
  const std::string_view name = plan.options.device;
  int index = 0;
  if (const size_t colon = name.find(':'); colon != std::string_view::npos) {
    std::from_chars(name.data() + colon + 1, name.data() + name.size(), index);
  }
  return index;
}

template <typename Measure>
auto attempt(const char* what, Measure measure) -> std::optional<decltype(measure())> {
  try {
    return measure();
  } catch (const Error& error) {
    spdlog::warn("the control of {} is left out: {}", what, error.what());
    return std::nullopt;
  }
}

}  // namespace

std::optional<GemmSize> largest_gemm(const Plan& plan) {
  std::optional<GemmSize> largest;
  uint64_t most = 0;
  for (const Step& step : plan.steps) {
    const auto* gemm = std::get_if<spec::GemmSpec>(&plan.kernels[step.kernel].spec);
    if (gemm == nullptr || step.layer < 0 || step.rows != StepRows::tokens) continue;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < gemm->n_segments; ++i) rows += gemm->segments[i].rows;
    const uint64_t size = uint64_t{rows} * gemm->k;
    if (size <= most) continue;
    most = size;
    largest = GemmSize{rows, gemm->k};
  }
  return largest;
}

GemmControl measure_gemm(const std::shared_ptr<cuda::Device>& device, GemmSize size,
                         uint32_t tokens) {
  constexpr std::string_view what = "the benchmark's control";
  const cuda::DeviceBuffer x(device, uint64_t{tokens} * size.k * 2, what);
  const cuda::DeviceBuffer weights(device, uint64_t{size.rows} * size.k * 2, what);
  const cuda::DeviceBuffer y(device, uint64_t{tokens} * size.rows * 4, what);
  const cuda::CublasGemm gemm(device, tokens, size.rows, size.k);
  const cuda::StreamQueue stream(device);
  fill_random(stream, x);
  fill_random(stream, weights);
  const double us = median_us(
      device, stream, 4, [&] { gemm.run(stream, x.address(), weights.address(), y.address()); });
  return {size, tokens, 2e-6 * size.rows * size.k * tokens / us};
}

double measure_copy(const std::shared_ptr<cuda::Device>& device) {
  constexpr uint64_t bytes = uint64_t{512} << 20;
  constexpr std::string_view what = "the benchmark's control";
  const cuda::DeviceBuffer from(device, bytes, what), to(device, bytes, what);
  const cuda::StreamQueue stream(device);
  fill_random(stream, from);
  const double us = median_us(device, stream, 4,
                              [&] { stream.copy_on_device(to.address(), from.address(), bytes); });
  return 2e-3 * bytes / us;
}

Controls measure_controls(const Plan& plan, uint32_t tokens) {
  if (plan.target.kind != "cuda") return {};
  Controls controls;
  const auto device = attempt("the device", [&] { return cuda::Device::open(device_index(plan)); });
  if (!device) return controls;
  const std::optional<GemmSize> size = largest_gemm(plan);
  if (size && tokens > 0) {
    controls.gemm = attempt("cuBLASLt", [&] {
      return measure_gemm(*device, *size, std::min(tokens, plan.options.chunk));
    });
  }
  controls.copy_gb_per_s = attempt("copies", [&] { return measure_copy(*device); });
  return controls;
}

}  // namespace quern::tools
