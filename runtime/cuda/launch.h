#pragma once

#include <cstdint>
#include <string>

#include "compiler/plan.h"
#include "templates/spec/gemm_launch.h"

namespace quern::cuda {

/// Threads of a repack launch: a block a cell.
inline constexpr uint32_t threads_of_repack = 128;

/// Grid, threads and dynamic shared memory of a kernel's launch over `rows` rows of a plan. Throws
/// Error (`failed`) for a family that the GPU has no kernel of.
spec::LaunchShape launch_shape_of(const spec::AnySpec& spec, uint32_t rows, const Plan& plan);

/// What a launch of the kernel counts as: "gemm decode", "gemm tile 64", "cublasLt gemm",
/// "attention flash decode", "attention wave", "norm" ...
std::string launch_name(const spec::AnySpec& spec);

}  // namespace quern::cuda
