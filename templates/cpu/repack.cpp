#include "templates/spec/repack.h"

#include "templates/cpu/abi.h"
#include "templates/cpu/cell_format.h"
#include "templates/cpu/decode_file.h"
#include "templates/cpu/decode_types.h"
#include "templates/cpu/transpose.h"
#include "templates/cpu/work.h"

extern "C" const quern::spec::RepackSpec quern_spec;

namespace quern::cpu {
namespace {

/// The file's rows that become one cell; null where the matrix has ended.
struct SourceRows {
  const u8* row[cell_rows];
};

/// Writes one plane of an octet: `bits` bits of each of 8 codes from bit `shift` on.
template <u32 bits, u32 shift>
QUERN_INLINE void write_plane(u8* out, const u8x16* codes) {
  constexpr u32 per_byte = 8 / bits;
  for (u32 i = 0; i < bits; ++i) {
    u8x16 packed = 0;
    for (u32 v = 0; v < per_byte; ++v) {
      const u8x16 field = (codes[i * per_byte + v] >> u8x16(shift)) & u8x16((1u << bits) - 1);
      packed |= field << u8x16(static_cast<u8>(bits * v));
    }
    store(out + 16 * i, packed);
  }
}

template <QuantType T>
QUERN_INLINE void write_octet(u8* out, const u8x16* codes) {
  constexpr u32 bits = cell_format(T).bits;
  if constexpr (bits == 8) {
    for (u32 j = 0; j < 8; ++j) store(out + 16 * j, codes[j]);
  } else {
    constexpr u32 low = bits >= 4 ? 4 : 2;
    write_plane<low, 0>(out, codes);
    if constexpr (bits > low) write_plane<bits - low, low>(out + 16 * low, codes);
  }
}

template <QuantType T>
void pack_block(const SourceRows& source, u64 at, u8* out) {
  constexpr CellFormat format = cell_format(T);
  BlockParts parts[cell_rows];
  for (u32 r = 0; r < cell_rows; ++r) {
    if (source.row[r] != nullptr) split_block<T>(source.row[r] + at, parts[r]);
  }
  for (u32 r = 0; r < cell_rows; ++r) {
    if constexpr (format.d_bytes == 1) {
      out[r] = static_cast<u8>(parts[r].d);
    } else {
      store(out + 2 * r, parts[r].d);
    }
  }
  out += cell_rows * format.d_bytes;
  if constexpr (format.second) {
    for (u32 r = 0; r < cell_rows; ++r) store(out + 2 * r, parts[r].m);
    out += cell_rows * 2;
  }
  if constexpr (format.scales) {
    for (u32 s = 0; s < format.sub_blocks(); ++s, out += cell_rows) {
      for (u32 r = 0; r < cell_rows; ++r) out[r] = parts[r].scales[s];
    }
  }
  if constexpr (format.mins) {
    for (u32 s = 0; s < format.sub_blocks(); ++s, out += cell_rows) {
      for (u32 r = 0; r < cell_rows; ++r) out[r] = parts[r].mins[s];
    }
  }
  for (u32 j = 0; j < format.values; j += 16) {
    u8x16 codes[16];
    for (u32 r = 0; r < cell_rows; ++r) codes[r] = load<u8x16>(parts[r].codes + j);
    transpose(codes);
    write_octet<T>(out, codes);
    write_octet<T>(out + format.octet_bytes(), codes + 8);
    out += 2 * format.octet_bytes();
  }
}

/// f32, f16 and bf16: element by element, zeros after the last.
template <QuantType T>
void pack_floats(const SourceRows& source, u8* out) {
  constexpr u32 bytes = cell_format(T).file_bytes;
  const u32 padded = (quern_spec.k + 7) / 8 * 8;
  for (u32 k = 0; k < padded; ++k) {
    for (u32 r = 0; r < cell_rows; ++r) {
      const bool real = k < quern_spec.k && source.row[r] != nullptr;
      if constexpr (bytes == 4) {
        store<u32>(out, real ? load<u32>(source.row[r] + 4ul * k) : 0u);
      } else {
        store<u16>(out, real ? load_u16(source.row[r] + 2ul * k) : u16{0});
      }
      out += bytes;
    }
  }
}

template <QuantType T>
void pack_cell(const KernelArgs* args, u32 cell) {
  constexpr CellFormat format = cell_format(T);
  const u64 row_bytes = static_cast<u64>(quern_spec.k / format.file_values) * format.file_bytes;
  const u8* raw = static_cast<const u8*>(args->buffers[0]);
  u8* out = static_cast<u8*>(args->buffers[1]) + cell * format.cell_bytes(quern_spec.k);
  const u64 offset = args->params[0];
  const u32 block = args->params[1];
  const u32 stride = args->params[2];
  SourceRows source = {};
  for (u32 r = 0; r < cell_rows; ++r) {
    const u32 row = cell * cell_rows + r;
    if (row >= args->n_tokens) break;
    const u64 from = offset + static_cast<u64>(row / block) * stride + row % block;
    source.row[r] = raw + from * row_bytes;
  }
  if constexpr (format.is_float()) {
    pack_floats<T>(source, out);
  } else {
    for (u32 b = 0; b < quern_spec.k / format.values; ++b, out += format.block_bytes()) {
      pack_block<T>(source, static_cast<u64>(b) * format.file_bytes, out);
    }
  }
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const u32 cells = (args->n_tokens + cell_rows - 1) / cell_rows;
  with_type(quern_spec.type, [&]<QuantType T>() {
    for (Range r = take(args, cells, 4); !r.empty(); r = take(args, cells, 4)) {
      for (u32 cell = r.begin; cell < r.end; ++cell) pack_cell<T>(args, cell);
    }
  });
}
