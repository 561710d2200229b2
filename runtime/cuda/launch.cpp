#include "runtime/cuda/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "compiler/cuda/cuda_compiler.h"
#include "models/error.h"
#include "templates/spec/attention_launch.h"

namespace quern::cuda {
namespace {

using spec::LaunchShape;

constexpr uint32_t threads_of_rows = 256;
/// Dynamic shared memory that no two blocks of a multiprocessor can have: it has 1 KiB more than a
/// block may ask for, and keeps 1 KiB of each block's. 115 KiB on sm_90, as measured.
uint32_t more_than_half_of_shared_bytes(const TargetTraits& target) {
  return target.shared_bytes_block / 2 + 1536;
}

/// Finds the shape of each family; whatever has no overload of its own has no kernel.
struct Shape {
  uint32_t rows;
  const Plan& plan;

  LaunchShape per_row(uint32_t grid_y = 1) const {
    return {.threads = threads_of_rows, .grid_x = rows, .grid_y = grid_y};
  }
  LaunchShape operator()(const spec::EmbedSpec&) const { return per_row(); }
  LaunchShape operator()(const spec::NormSpec&) const { return per_row(); }
  LaunchShape operator()(const spec::GatherSpec&) const { return per_row(); }
  LaunchShape operator()(const spec::AddSpec&) const { return per_row(); }
  LaunchShape operator()(const spec::QkvPostSpec& s) const {
    constexpr uint32_t heads_of_a_block = threads_of_rows / 32;
    return per_row((s.n_head + 2 * s.n_head_kv + heads_of_a_block - 1) / heads_of_a_block);
  }
  LaunchShape operator()(const spec::GemmSpec& s) const {
    LaunchShape shape = spec::launch_shape(s, rows);
    // A decode kernel that may begin early must not put two blocks on a multiprocessor that is
    // still half taken: its slowest block is what the next launch waits for.
    if (s.shared_groups == 0) return shape;
    const TargetTraits& target = target_traits(plan.target.name);
    if (target.compute_capability >= 90) {
      shape.shared_bytes = std::max(shape.shared_bytes, more_than_half_of_shared_bytes(target));
    }
    return shape;
  }
  LaunchShape operator()(const spec::AttentionSpec& s) const {
    if (s.path == spec::AttentionPath::wave) {
      return spec::attention_wave_shape(s, rows, kv_capacity(plan.options.context));
    }
    return s.decode != 0 ? spec::attention_decode_shape(s, plan.options.context)
                         : spec::attention_prefill_shape(s, rows);
  }
  LaunchShape operator()(const spec::UnpackSpec& s) const { return spec::launch_shape(s); }
  LaunchShape operator()(const spec::FlattenSpec& s) const { return spec::launch_shape(s, rows); }
  LaunchShape operator()(const spec::FinishSpec& s) const { return spec::launch_shape(s, rows); }
  LaunchShape operator()(const spec::RepackSpec&) const { return {.threads = threads_of_repack}; }
  LaunchShape operator()(const spec::SelectSpec& s) const {
    return {.threads = spec::select_threads, .grid_x = spec::select_blocks(s.vocabulary)};
  }
  template <class Other>
  LaunchShape operator()(const Other&) const {
    throw Error(ErrorKind::failed, fmt::format("kernel family {}", Other::family),
                "this build cannot launch it on a GPU", "compile the plan again");
  }
};

}  // namespace

LaunchShape launch_shape_of(const spec::AnySpec& spec, uint32_t rows, const Plan& plan) {
  return std::visit(Shape{rows, plan}, spec);
}

std::string launch_name(const spec::AnySpec& spec) {
  std::string family(spec_family(spec));
  if (const auto* gemm = std::get_if<spec::GemmSpec>(&spec)) {
    return gemm->tile_tokens == 8 ? family + " decode"
                                  : fmt::format("{} tile {}", family, gemm->tile_tokens);
  }
  if (is_library(spec)) return "cublasLt gemm";
  if (const auto* attention = std::get_if<spec::AttentionSpec>(&spec)) {
    if (attention->path == spec::AttentionPath::wave) return family + " wave";
    return family + (attention->decode != 0 ? " flash decode" : " flash");
  }
  return family;
}

}  // namespace quern::cuda
