#include "runtime/cuda/gpu_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <variant>

#include "models/error.h"

namespace quern::cuda {
namespace {

static_assert(CublasWorkspace::bytes == library_workspace_bytes, "the plan counts it");

uint32_t most_rows(const Plan& plan, const Step& step) {
  return step.rows == StepRows::outputs ? plan.max_outputs : plan.options.chunk;
}

/// Sizes of launches lie so far apart: at most 32 of them have an algorithm of their own.
uint32_t granule(uint32_t most) {
  constexpr uint32_t least = 64, sizes = 32;
  return std::max(least, (most / sizes + least - 1) / least * least);
}

DevicePointer address(const void* pointer) {
  return std::bit_cast<DevicePointer>(pointer);
}

}  // namespace

void check_library(const Plan& plan) {
  if (!needs_library(plan)) return;
  try {
    CublasLt::get();
  } catch (const Error& error) {
    throw Error(error.kind(), error.thing(),
                fmt::format("the plan, made with --numerics fast, needs it: {}", error.reason()),
                fmt::format("use --numerics exact, or {}", error.remedy()));
  }
}

GpuLibrary::GpuLibrary(const std::shared_ptr<Device>& device, const Plan& plan) : plan_(plan) {
  const auto workspace = std::make_shared<CublasWorkspace>(device);
  for (const Step& step : plan.steps) {
    if (!is_library(plan.kernels[step.kernel].spec)) continue;
    const spec::MatmulSpec& s = spec_of(step);
    const uint32_t most = most_rows(plan, step);
    for (uint32_t rows = plan.few_rows + 1; rows <= most;) {
      const uint32_t m = size_of(step, rows);
      gemms_.try_emplace(std::make_tuple(m, s.rows, s.k), workspace, m, s.rows, s.k);
      rows = m + 1;
    }
  }
}

const spec::MatmulSpec& GpuLibrary::spec_of(const Step& step) const {
  return std::get<spec::MatmulSpec>(plan_.kernels[step.kernel].spec);
}

uint32_t GpuLibrary::size_of(const Step& step, uint32_t rows) const {
  const uint32_t most = most_rows(plan_, step), unit = granule(most);
  return std::min((rows + unit - 1) / unit * unit, most);
}

void GpuLibrary::run(const StreamQueue& stream, const Step& step, uint32_t rows,
                     const KernelArgs& args) const {
  const spec::MatmulSpec& s = spec_of(step);
  gemms_.at({size_of(step, rows), s.rows, s.k})
      .run(stream, {.a = address(args.buffers[0]),
                    .b = address(args.buffers[3]),
                    .c = address(args.buffers[1]),
                    .added = address(args.buffers[2]),
                    .alpha = args.out_scale});
}

}  // namespace quern::cuda
