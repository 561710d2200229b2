#include "templates/spec/embed.h"

#include "templates/cpu/abi.h"
#include "templates/cpu/decode.h"
#include "templates/cpu/decode_file.h"
#include "templates/cpu/decode_types.h"
#include "templates/cpu/work.h"

extern "C" const quern::spec::EmbedSpec quern_spec;

namespace quern::cpu {
namespace {

/// 16 values of a block from value j on, which share their sub-scales.
template <QuantType T>
QUERN_INLINE f32x16 decode_16(const BlockParts& parts, u32 j) {
  constexpr CellFormat format = cell_format(T);
  const f32x16 d = scale_to_f32<T>(u16x16(parts.d));
  const f32x16 m = to_f32(__builtin_bit_cast(f16x16, u16x16(parts.m)));
  const u32 sub = j / format.sub;
  const i32 scale_byte =
      T == QuantType::q2_k ? parts.scales[sub] : static_cast<i8>(parts.scales[sub]);
  const Scale scale = make_scale<T>(d, m, i32x16(scale_byte), i32x16(parts.mins[sub]));
  const u8x16 codes = load<u8x16>(parts.codes + j);
  if constexpr (has_table<T>) return weight<T>(look_up<T>(codes), scale);
  if constexpr (T == QuantType::q8_0)
    return weight<T>(widen(__builtin_bit_cast(i8x16, codes)), scale);
  return weight<T>(widen(codes), scale);
}

template <QuantType T>
void decode_row(const u8* row, float* y) {
  constexpr CellFormat format = cell_format(T);
  if constexpr (format.is_float()) {
    for (u32 i = 0; i < quern_spec.width; ++i) {
      if constexpr (T == QuantType::f32) {
        y[i] = quern_spec.scale * load<float>(row + 4ul * i);
      } else {
        y[i] = quern_spec.scale * widen_float<T>(u16x16(load_u16(row + 2ul * i))).x;
      }
    }
  } else {
    for (u32 b = 0; b < quern_spec.width / format.file_values; ++b) {
      BlockParts parts;
      split_block<T>(row + b * format.file_bytes, parts);
      for (u32 j = 0; j < format.file_values; j += lanes) {
        const f32x16 w = decode_16<T>(parts, j);
        store_f32(y + b * format.file_values + j, splat(quern_spec.scale) * w);
      }
    }
  }
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const int* ids = static_cast<const int*>(args->buffers[0]);
  const u8* table = static_cast<const u8*>(args->buffers[1]);
  float* y = static_cast<float*>(args->buffers[2]);
  with_type(quern_spec.type, [&]<QuantType T>() {
    constexpr CellFormat format = cell_format(T);
    const u64 row_bytes =
        static_cast<u64>(quern_spec.width / format.file_values) * format.file_bytes;
    for (Range r = take(args, args->n_tokens, 1); !r.empty(); r = take(args, args->n_tokens, 1)) {
      decode_row<T>(table + row_bytes * static_cast<u64>(ids[r.begin]),
                    y + static_cast<u64>(r.begin) * quern_spec.width);
    }
  });
}
