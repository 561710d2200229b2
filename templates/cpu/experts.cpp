#include "templates/cpu/abi.h"
#include "templates/cpu/gemm_tile.h"
#include "templates/cpu/work.h"
#include "templates/spec/moe.h"

extern "C" const quern::spec::ExpertsSpec quern_spec;

namespace quern::cpu {
namespace {

QUERN_INLINE u32 out_rows() {
  return quern_spec.segments[0].rows;
}
QUERN_INLINE u32 out_cells() {
  return (out_rows() + cell_rows - 1) / cell_rows;
}

/// Rows of one expert's pairs: pair p reads its token's row or its own, and writes row p.
struct Rows {
  const int* pairs;
  const float* x_;
  float* y_;
  QUERN_INLINE const float* x(u32 t) const {
    const u32 pair = static_cast<u32>(pairs[t]);
    const u32 row = quern_spec.in_per_pair != 0 ? pair : pair / quern_spec.n_used;
    return x_ + static_cast<u64>(row) * quern_spec.k;
  }
  QUERN_INLINE float* y(u32 t) const {
    return y_ + static_cast<u64>(static_cast<u32>(pairs[t])) * out_rows();
  }
  QUERN_INLINE const float* residual(u32) const { return nullptr; }
};

using ExpertTile = Tile<quern_spec, 0, Rows>;

/// A cell of an expert's matrix; every expert's is packed alike.
struct CellName {
  u32 expert, cell;
};

/// Cells `first` and following; `ahead` is the one that this worker does next.
template <u32 segment>
QUERN_INLINE CellView cells_at(const KernelArgs* args, CellName first, CellName ahead) {
  u64 bytes = 0;
  with_type(quern_spec.segments[segment].type, [&]<QuantType T>() QUERN_INLINE_LAMBDA {
    bytes = cell_format(T).cell_bytes(quern_spec.k);
  });
  const u8* matrix = static_cast<const u8*>(args->buffers[4 + segment]);
  const auto at = [&](CellName name) QUERN_INLINE_LAMBDA {
    return matrix + (static_cast<u64>(name.expert) * out_cells() + name.cell) * bytes;
  };
  return {at(first), bytes, at(ahead)};
}

/// Output cells `first` to `end` of an expert; `ahead` is what this worker does next.
void run_cells(const KernelArgs* args, u32 expert, u32 first, u32 end, CellName ahead) {
  const int* offsets = static_cast<const int*>(args->buffers[2]);
  const u32 begin = static_cast<u32>(offsets[expert]);
  const u32 n_pairs = static_cast<u32>(offsets[expert + 1]) - begin;
  const u32 most = ExpertTile::most_cells(n_pairs);
  while (first < end) {
    const u32 n = power_below(end - first < most ? end - first : most);
    const TileArgs<Rows> tile = {
        .rows = {static_cast<const int*>(args->buffers[3]) + begin,
                 static_cast<const float*>(args->buffers[0]),
                 static_cast<float*>(args->buffers[1])},
        .n_tokens = n_pairs,
        .cells = {cells_at<0>(args, {expert, first}, ahead),
                  cells_at<1>(args, {expert, first}, ahead)},
        .bias = {nullptr, nullptr},
        .y_offset = first * cell_rows,
        .n_rows = out_rows() - first * cell_rows,
        .scratch = static_cast<float*>(args->scratch) + list_values(quern_spec.n_expert),
        .decoded = args->params[0] != 0
                       ? static_cast<u64*>(args->buffers[4 + quern_spec.n_segments])
                       : nullptr,
    };
    ExpertTile::run(tile, n);
    first += n;
  }
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  // Used experts in order: the work is their cells alone, so that a decode step over many experts
  // does not walk through those that it leaves out.
  const int* offsets = static_cast<const int*>(args->buffers[2]);
  u32* used = static_cast<u32*>(args->scratch);  // list_values of it; the tile's scratch follows.
  u32 n_used = 0;
  for (u32 e = 0; e < quern_spec.n_expert; ++e) {
    if (offsets[e + 1] > offsets[e]) used[n_used++] = e;
  }
  const u32 cells = out_cells();
  constexpr u32 most = 4;
  // The next range is taken before the current one is done, so that its weights can be asked for.
  for (Range r = take(args, n_used * cells, most), next; !r.empty(); r = next) {
    next = take(args, n_used * cells, most);
    const u32 first_ahead = next.empty() ? r.begin : next.begin;
    const CellName ahead = {used[first_ahead / cells], first_ahead % cells};
    while (!r.empty()) {
      const u32 first = r.begin % cells;
      const u32 end = first + (r.end - r.begin) < cells ? first + (r.end - r.begin) : cells;
      run_cells(args, used[r.begin / cells], first, end, ahead);
      r.begin += end - first;
    }
  }
}
