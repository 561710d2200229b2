#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/kernel.h"

namespace quern::cuda {

/// One row of the GPU target table: what the planner and NVRTC must know of an architecture.
struct TargetTraits {
  std::string_view name;        ///< As users write it: "sm_90a".
  uint32_t compute_capability;  ///< 90 for 9.0.
  bool wgmma;                   ///< The wgmma tier runs here.
  uint32_t shared_bytes_block;  ///< Shared memory a block may have at most.
  uint32_t registers_sm;        ///< 32-bit registers of a multiprocessor.
  std::string_view cards;       ///< For people.
};

/// All targets that kernels can be compiled for.
std::span<const TargetTraits> target_table();
/// The row of a target. Throws Error (`usage`) naming those known.
const TargetTraits& target_traits(std::string_view name);
/// The target that runs on a device of this compute capability (90 for 9.0): its own row, else the
/// newest row before it of the same major version. Throws Error (`failed`) where none runs there.
const TargetTraits& target_for_device(uint32_t compute_capability);
Target make_target(std::string_view name);

/// The kernel's translation unit: includes, the spec as named designated initialisers, one entry.
/// Pure.
std::string emit_source(const spec::AnySpec& spec);
/// Names of the embedded headers that a source includes, directly or through another; sorted.
std::vector<std::string> header_closure(std::string_view source);
/// An embedded header's text; Error (`failed`) where there is none of that name.
std::string_view header_text(std::string_view name);

/// The key for the NVRTC that is loaded. Throws what Nvrtc::get throws.
KernelKey kernel_key(const spec::AnySpec& spec, const Target& target);

/// What ptxas said of a kernel.
struct Resources {
  uint32_t registers = 0;
  uint32_t spill_store_bytes = 0, spill_load_bytes = 0, stack_bytes = 0;
  uint32_t static_shared_bytes = 0;
  bool wgmma_serialized = false;  ///< A warning C7510 to C7519: wgmma instructions were serialised.
};
/// Reads ptxas's report out of a compiler log.
Resources parse_resources(std::string_view log);

/// Shared memory that a launch of the kernel asks for, however many tokens it has; what the kernel
/// declares itself is not in it.
uint32_t launch_shared_bytes(const spec::AnySpec& spec);

/// Compiles a kernel to a cubin. The log is read also on success: spills and serialised wgmma are
/// recorded, and with `strict` they are an Error (`failed`).
CompiledKernel compile_kernel(const spec::AnySpec& spec, const Target& target, bool strict = false);
/// Its PTX, for `quern cache show --ptx`.
std::string kernel_ptx(const spec::AnySpec& spec, const Target& target);

}  // namespace quern::cuda
