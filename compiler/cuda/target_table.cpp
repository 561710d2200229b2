#include <fmt/format.h>

#include <array>

#include "compiler/cuda/cuda_compiler.h"
#include "models/error.h"

namespace quern::cuda {
namespace {

// Shared memory a block and registers: CUDA C++ Programming Guide, "Technical Specifications per
// Compute Capability".
constexpr std::array<TargetTraits, 4> table = {{
    {"sm_80", 80, false, 163 * 1024, 65536, "A100, A30"},
    {"sm_89", 89, false, 99 * 1024, 65536, "RTX 40, L4, L40S"},
    {"sm_90a", 90, true, 227 * 1024, 65536, "H100, H200"},
    {"sm_120", 120, false, 99 * 1024, 65536, "RTX 50, RTX PRO 6000"},
}};

std::string known_names() {
  std::string names;
  for (const TargetTraits& row : table) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

}  // namespace

std::span<const TargetTraits> target_table() {
  return table;
}

const TargetTraits& target_traits(std::string_view name) {
  for (const TargetTraits& row : table) {
    if (row.name == name) return row;
  }
  throw Error(ErrorKind::usage, fmt::format("target '{}'", name), "Quern has no such GPU target",
              "use one of " + known_names());
}

const TargetTraits& target_for_device(uint32_t compute_capability) {
  const TargetTraits* best = nullptr;
  for (const TargetTraits& row : table) {
    // Machine code runs on its own minor version and later ones of the same major version; the "a"
    // targets on their own alone.
    const bool exact = row.compute_capability == compute_capability;
    const bool earlier = row.compute_capability / 10 == compute_capability / 10 &&
                         row.compute_capability < compute_capability && !row.name.ends_with('a');
    if (exact ||
        (earlier && (best == nullptr || best->compute_capability < row.compute_capability)))
      best = &row;
    if (exact) break;
  }
  if (best != nullptr) return *best;
  throw Error(ErrorKind::failed,
              fmt::format("device of compute capability {}.{}", compute_capability / 10,
                          compute_capability % 10),
              "no GPU target of Quern runs on it",
              "use --device cpu; the targets are " + known_names());
}

Target make_target(std::string_view name) {
  return {.kind = "cuda", .name = std::string(target_traits(name).name), .features = {}};
}

}  // namespace quern::cuda
