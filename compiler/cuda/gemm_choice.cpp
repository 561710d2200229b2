#include "compiler/cuda/gemm_choice.h"

#include <fmt/format.h>

#include "models/error.h"

namespace quern::cuda {
namespace {

/// Below this many row groups there are too few warps to hide decoding: groups get decoders of
/// their own.
constexpr uint32_t few_row_groups = 4 * 132;

uint32_t row_groups(const spec::GemmSpec& s) {
  uint32_t tiles = 0;
  for (uint32_t i = 0; i < s.n_segments; ++i) tiles += spec::gpu_row_tiles(s.segments[i].rows);
  return tiles * 8;
}

Error nothing_fits(const spec::GemmSpec& s, const TargetTraits& target) {
  return {ErrorKind::does_not_fit, fmt::format("a projection of {} inputs on {}", s.k, target.name),
          fmt::format("its kernels need more than the {} bytes of shared memory a block may have",
                      target.shared_bytes_block),
          "use --device cpu"};
}

/// Smaller and smaller forms of the decode kernel until one fits.
bool fit_decode(spec::GemmSpec& s, uint32_t limit) {
  while (spec::gemv_shared_bytes(s) > limit) {
    if (s.stages > 2) {
      --s.stages;
    } else if (s.tile_cells > 1) {
      --s.tile_cells;
    } else if (s.decoders > 1) {
      s.decoders /= 2;
    } else {
      return false;
    }
  }
  return true;
}

void choose_decode(spec::GemmSpec& s, const TargetTraits& target, std::string& why) {
  const uint32_t groups = row_groups(s), limit = target.shared_bytes_block;
  s.tile_tokens = 8;
  const bool few = groups <= few_row_groups;
  s.decoders = few ? 4 : 0;
  s.tile_cells = few ? 2 : 7;
  s.stages = few ? 2 : 4;
  if (!fit_decode(s, limit)) throw nothing_fits(s, target);
  why = fmt::format("{} row groups of 16: {}, {} groups a block, ring of {} cells", groups,
                    few ? fmt::format("{} decoding warps each", s.decoders)
                        : std::string("one warp decodes and multiplies"),
                    s.tile_cells, s.stages);
}

void choose_prefill(spec::GemmSpec& s, uint32_t token_class, const TargetTraits& target,
                    std::string& why) {
  s.decoders = 0;
  s.tile_cells = 8;
  for (uint32_t tokens = token_class; tokens >= 64; tokens /= 2) {
    s.tile_tokens = tokens;
    for (s.stages = 4; s.stages >= 2; --s.stages) {
      const uint32_t bytes = spec::gemm_tile_shared_bytes(s);
      if (bytes > target.shared_bytes_block) continue;
      why = fmt::format("tiles of 128 rows x {} tokens, {} slabs in flight: {} of {} bytes shared",
                        tokens, s.stages, bytes, target.shared_bytes_block);
      return;
    }
  }
  throw nothing_fits(s, target);
}

}  // namespace

spec::GemmSpec choose_gemm_tile(spec::GemmSpec math, uint32_t token_class,
                                const TargetTraits& target, std::string* reason) {
  std::string why;
  if (token_class == 8) {
    choose_decode(math, target, why);
  } else if (token_class == 64 || token_class == 128 || token_class == 256) {
    choose_prefill(math, token_class, target, why);
  } else {
    throw Error(ErrorKind::usage, fmt::format("token class {}", token_class),
                "GEMM kernels come in the classes 8, 64, 128 and 256");
  }
  if (reason != nullptr) *reason = why;
  return math;
}

}  // namespace quern::cuda
