#include "templates/spec/gemm.h"

#include "templates/cpu/abi.h"
#include "templates/cpu/gemm_tile.h"
#include "templates/cpu/work.h"

extern "C" const quern::spec::GemmSpec quern_spec;

namespace quern::cpu {
namespace {

QUERN_INLINE u32 cells_of(u32 rows) {
  return (rows + cell_rows - 1) / cell_rows;
}

QUERN_INLINE bool glu() {
  return quern_spec.epilogue == Epilogue::swiglu || quern_spec.epilogue == Epilogue::gelu_glu;
}

/// Values in a row of y.
QUERN_INLINE u32 out_rows() {
  if (glu()) return quern_spec.segments[0].rows;
  u32 rows = 0;
  for (u32 s = 0; s < quern_spec.n_segments; ++s) rows += quern_spec.segments[s].rows;
  return rows;
}

struct Rows {
  const float* x_;
  float* y_;
  const float* residual_;
  QUERN_INLINE const float* x(u32 t) const { return x_ + static_cast<u64>(t) * quern_spec.k; }
  QUERN_INLINE float* y(u32 t) const { return y_ + static_cast<u64>(t) * out_rows(); }
  QUERN_INLINE const float* residual(u32 t) const {
    return residual_ + static_cast<u64>(t) * out_rows();
  }
};

template <u32 segment>
QUERN_INLINE u64 cell_bytes() {
  u64 bytes = 0;
  with_type(quern_spec.segments[segment].type, [&]<QuantType T>() QUERN_INLINE_LAMBDA {
    bytes = cell_format(T).cell_bytes(quern_spec.k);
  });
  return bytes;
}

/// Cell `cell` of a segment's packed matrix.
template <u32 segment>
QUERN_INLINE const u8* cell_at(const KernelArgs* args, u32 cell) {
  return static_cast<const u8*>(args->buffers[3 + segment]) + cell * cell_bytes<segment>();
}

/// Cells `first` and following of a segment; `ahead` is the cell of the launch that this worker
/// does next, where that lies in the same segment.
template <u32 segment>
QUERN_INLINE CellView cells_at(const KernelArgs* args, u32 first, u32 ahead) {
  const bool inside = ahead < cells_of(quern_spec.segments[segment].rows);
  return {cell_at<segment>(args, first), cell_bytes<segment>(),
          cell_at<segment>(args, inside ? ahead : first)};
}

template <u32 segment>
QUERN_INLINE const float* bias_at(const KernelArgs* args, u32 first) {
  if ((quern_spec.bias >> segment & 1) == 0) return nullptr;
  return static_cast<const float*>(args->buffers[3 + quern_spec.n_segments + segment]) +
         first * cell_rows;
}

/// Does the part of `range` that lies in this segment, whose first cell has number `start`; `ahead`
/// is the first cell of this worker's next range.
template <u32 segment>
QUERN_INLINE void run_segment(const KernelArgs* args, Range range, u32 ahead, u32 start,
                              u32 y_start) {
  using T = Tile<quern_spec, segment, Rows>;
  const u32 rows = quern_spec.segments[segment].rows;
  const u32 end = range.end < start + cells_of(rows) ? range.end : start + cells_of(rows);
  u32 cell = range.begin > start ? range.begin : start;
  while (cell < end) {
    const u32 n = power_below(end - cell);
    const u32 first = cell - start;
    TileArgs<Rows> tile = {
        .rows = {static_cast<const float*>(args->buffers[0]), static_cast<float*>(args->buffers[1]),
                 static_cast<const float*>(args->buffers[2])},
        .n_tokens = args->n_tokens,
        .cells = {cells_at<segment>(args, first, ahead - start), {}},
        .bias = {bias_at<segment>(args, first), nullptr},
        .y_offset = y_start + first * cell_rows,
        .n_rows = rows - first * cell_rows,
        .scratch = static_cast<float*>(args->scratch),
        .decoded = args->params[0] != 0
                       ? static_cast<u64*>(args->buffers[3 + 2 * quern_spec.n_segments])
                       : nullptr,
    };
    if (glu()) {
      tile.cells[1] = cells_at<T::up>(args, first, ahead - start);
      tile.bias[1] = bias_at<T::up>(args, first);
    }
    T::run(tile, n);
    cell += n;
  }
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const auto& s = quern_spec.segments;
  const u32 n_segments = glu() ? 1 : quern_spec.n_segments;
  u32 total = 0;
  for (u32 i = 0; i < n_segments; ++i) total += cells_of(s[i].rows);
  const u32 most = Tile<quern_spec, 0, Rows>::most_cells(args->n_tokens);
  // The next range is taken before the current one is done, so that its weights can be asked for.
  for (Range r = take(args, total, most), next; !r.empty(); r = next) {
    next = take(args, total, most);
    const u32 ahead = next.begin;
    u32 start = 0, y = 0;
    run_segment<0>(args, r, ahead, start, y);
    if (n_segments > 1)
      run_segment<1>(args, r, ahead, start += cells_of(s[0].rows), y += s[0].rows);
    if (n_segments > 2)
      run_segment<2>(args, r, ahead, start += cells_of(s[1].rows), y += s[1].rows);
    if (n_segments > 3)
      run_segment<3>(args, r, ahead, start += cells_of(s[2].rows), y += s[2].rows);
  }
}
