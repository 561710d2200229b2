#include "compiler/cuda/gemm_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"

namespace quern::cuda {
namespace {

/// Multiprocessors of the large cards (H200: 132): blocks are shaped so that all of them work.
constexpr uint32_t multiprocessors = 132;
/// Row groups of 16 that a block's warps serve one each, at most.
constexpr uint32_t most_groups = 14;

uint32_t ceil_div(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

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

/// Tokens of a prefill tile at most. With 256, ptxas runs out of registers where several segments
/// have biases, for sm_80, and where Q4_0 is decoded: for sm_120 always, for sm_89 beside other
/// types. With more than 64 it does where the loop over k is so short that it unrolls it.
uint32_t widest_tile(const spec::GemmSpec& s, const TargetTraits& target) {
  if (s.k <= 512) return 64;
  bool q4_0 = false, mixed = false;
  for (uint32_t i = 0; i < s.n_segments; ++i) {
    q4_0 |= s.segments[i].type == spec::QuantType::q4_0;
    mixed |= s.segments[i].type != s.segments[0].type;
  }
  const uint32_t capability = target.compute_capability;
  const bool scarce =
      capability < 89 || (q4_0 && (capability >= 120 || (capability < 90 && mixed)));
  const bool crowded = s.n_segments > 1 && s.bias != 0;
  return scarce || crowded ? 128 : 256;
}

/// Smaller and smaller forms of the decode kernel until one fits.
bool fit_decode(spec::GemmSpec& s, uint32_t limit) {
  while (spec::gemv_shared_bytes(s) > limit) {
    if (s.stages > 2) {
      --s.stages;
    } else if (s.shared_groups > 0) {
      s.shared_groups = s.sharers = s.turn_slabs = 0;
    } else if (s.tile_cells > 1) {
      --s.tile_cells;
    } else {
      return false;
    }
  }
  return true;
}

/// Lets `n` warps take turns at each of a block's last `groups` row groups, unless K has fewer
/// turns.
void share_groups(spec::GemmSpec& s, uint32_t groups, uint32_t n, uint32_t turn_slabs) {
  const uint32_t turns = ceil_div(ceil_div(s.k, 64), turn_slabs);
  if (groups == 0 || turns < 2 || n < 2) return;
  s.shared_groups = groups;
  s.sharers = std::min(n, turns);
  s.turn_slabs = turn_slabs;
}

/// Whether a segment's cells are of 64 K, not 256.
bool has_small_cells(const spec::GemmSpec& s) {
  for (uint32_t i = 0; i < s.n_segments; ++i) {
    if (spec::gpu_cell_k(s.segments[i].type) == 64) return true;
  }
  return false;
}

/// What the registers allow; the matrix of kernels shows it. Blocks with warps that share have at
/// most eight unless said otherwise.
struct DecodeRoom {
  bool long_turns, twelve_warps, more_warps;
};

DecodeRoom decode_room(const spec::GemmSpec& s, const TargetTraits& target) {
  const bool roomy = target.compute_capability / 10 == 9;
  return {.long_turns = roomy && !has_small_cells(s),
          .twelve_warps = roomy,
          .more_warps = roomy && s.k <= 8192 && s.n_segments == 1};
}

/// Warps that share each row group of a block that has so many.
uint32_t sharers_of(uint32_t row_groups, const DecodeRoom& room) {
  if (row_groups <= 2) return 4;
  if (!room.twelve_warps) return row_groups <= 4 ? 2 : 0;
  if (row_groups == 3) return 4;
  if (row_groups == 4 || (row_groups == 5 && room.more_warps)) return 3;
  return row_groups <= 6 ? 2 : 0;
}

/// Measured on an H200 (docs/measurements-gpu.md): one block a multiprocessor, and its warps spread
/// evenly over the four sub-cores. With few row groups there, several warps share each and take
/// turns; with many, each has a warp and the odd one or two are halved. Far more groups than
/// multiprocessors run in small blocks, several on a multiprocessor.
void choose_decode(spec::GemmSpec& s, const TargetTraits& target, std::string& why) {
  const uint32_t groups = row_groups(s), share = std::max(1U, ceil_div(groups, multiprocessors));
  const DecodeRoom room = decode_room(s, target);
  s.tile_tokens = 8;
  s.shared_groups = s.sharers = s.turn_slabs = 0;
  s.tile_cells = share > 2 * most_groups ? 8 : ceil_div(share, ceil_div(share, most_groups));
  if (s.tile_cells > 8 && s.tile_cells % 4 <= 2 && room.more_warps) {
    share_groups(s, s.tile_cells % 4, 2, 4);
  } else {
    const bool long_turns = s.tile_cells <= 2 && s.k > 8192 && room.long_turns;
    share_groups(s, s.tile_cells, sharers_of(s.tile_cells, room), long_turns ? 8 : 4);
  }
  s.stages = has_small_cells(s) ? 4 : 2;  // more of them in flight
  if (!fit_decode(s, target.shared_bytes_block)) throw nothing_fits(s, target);
  why = fmt::format("{} row groups of 16, {} a block, {}; rings of {} cells", groups, s.tile_cells,
                    s.shared_groups == 0
                        ? std::string("a warp each")
                        : fmt::format("{} of them with {} warps that take turns of {} K",
                                      s.shared_groups, s.sharers, s.turn_slabs * 64),
                    s.stages);
}

/// Microseconds of a wave of blocks of 128 rows, K = 4096, on an H200 (docs/measurements-gpu.md),
/// by tokens of the tile.
double wave_cost(const spec::GemmSpec& s, uint32_t tile_tokens) {
  const bool decoding = spec::gpu_cell_k(s.segments[0].type) == 256;
  switch (tile_tokens) {
    case 64:
      return decoding ? 53 : 38;
    case 128:
      return decoding ? 86 : 80;
    default:
      return decoding ? 138 : 142;
  }
}

/// The deepest pipeline of a tile that fits, or 0.
uint32_t deepest_pipeline(spec::GemmSpec s, uint32_t limit) {
  for (s.stages = 4; s.stages >= 2; --s.stages) {
    if (spec::gemm_tile_shared_bytes(s) <= limit) return s.stages;
  }
  return 0;
}

/// The tile whose waves of blocks take the least time at the class's number of tokens.
void choose_prefill(spec::GemmSpec& s, uint32_t token_class, const TargetTraits& target,
                    std::string& why) {
  s.shared_groups = s.sharers = s.turn_slabs = 0;
  s.tile_cells = 8;
  const uint32_t tiles = row_groups(s) / 8;
  double best = 0;
  spec::GemmSpec chosen = s;
  for (s.tile_tokens = 64; s.tile_tokens <= widest_tile(s, target); s.tile_tokens *= 2) {
    if (s.tile_tokens > 64 && s.tile_tokens >= 2 * token_class) break;
    s.stages = deepest_pipeline(s, target.shared_bytes_block);
    if (s.stages == 0) break;
    const uint32_t blocks = tiles * ceil_div(token_class, s.tile_tokens);
    const double cost = ceil_div(blocks, multiprocessors) * wave_cost(s, s.tile_tokens);
    if (best != 0 && cost > best) continue;
    best = cost;
    chosen = s;
    why = fmt::format(
        "tiles of 128 rows x {} tokens: {} blocks for {} tokens, {} slabs in flight, {} of {} "
        "bytes shared",
        s.tile_tokens, blocks, token_class, s.stages, spec::gemm_tile_shared_bytes(s),
        target.shared_bytes_block);
  }
  if (best == 0) throw nothing_fits(s, target);
  s = chosen;
}

}  // namespace

spec::GemmSpec choose_gemm_tile(spec::GemmSpec math, uint32_t token_class,
                                const TargetTraits& target, std::string* reason) {
  std::string why;
  if (token_class < 8) {
    throw Error(ErrorKind::usage, fmt::format("token class {}", token_class),
                "GEMM kernels are made for at least 8 tokens");
  }
  if (token_class == 8) {
    choose_decode(math, target, why);
  } else {
    choose_prefill(math, token_class, target, why);
  }
  if (reason != nullptr) *reason = why;
  return math;
}

}  // namespace quern::cuda
