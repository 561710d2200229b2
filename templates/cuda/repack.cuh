#pragma once

#include "templates/cuda/abi.h"
#include "templates/cuda/cells.cuh"
#include "templates/cuda/raw_blocks.cuh"
#include "templates/spec/gemm_launch.h"
#include "templates/spec/repack.h"

namespace quern::cuda {

/// Rows as the file has them into GPU cells (docs/gpu.md, "Layouts"), one block a cell; types without a cell of their own decode to
/// f16 cells. Buffers: 0 raw rows; 1 cells; 2 raw rows of the up half of a glu (rows 8-15 of each cell) or null. n_tokens = output
/// rows. params: {block_rows, stride_rows} of the slice (spec/repack.h); a glu's halves are whole slices alike.
template <spec::RepackSpec s>
struct Kernel {
  static constexpr u32 threads = 128, min_blocks = 1;
  static constexpr QuantType out_type = spec::gpu_resident_type(s.type);
  using C = Cell<out_type>;
  using R = Raw<s.type>;
  static constexpr u32 cells = (s.k + C::k - 1) / C::k;
  static constexpr size_t row_bytes = static_cast<size_t>(s.k / R::values) * R::bytes;

  const KernelArgs& args;
  u32 row0, k0;
  Byte* cell;

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    const u32 index = blockIdx.x, in_tile = index % 8, k_cell = index / 8 % cells, tile = index / 8 / cells;
    Byte* cell = static_cast<Byte*>(args.buffers[1]) + static_cast<size_t>(index) * cell_bytes<out_type>();
    Kernel{args, tile * 128 + in_tile * 16, k_cell * C::k, cell}.pack();
  }

  /// Source row of row r of the cell, or null past the end.
  __device__ __forceinline__ const Byte* source(u32 r) const {
    u32 row = row0 + r;
    if (row >= args.state->n_tokens) return nullptr;
    const Byte* base = static_cast<const Byte*>(args.buffers[0]);
    if (args.buffers[2] != nullptr) {
      row = row0 / 2 + (r & 7);
      if (r >= 8) base = static_cast<const Byte*>(args.buffers[2]);
    }
    row = row / args.params[0] * args.params[1] + row % args.params[0];
    return base + row * row_bytes;
  }
  __device__ __forceinline__ const Byte* block(const Byte* row, u32 k) const { return row + k / R::values * R::bytes; }

  /// Row and k, within the cell's plane, of half `half` of register `reg` of step `step` of a lane.
  static __device__ __forceinline__ u32 fragment_row(u32 lane, u32 reg) { return (lane >> 2) + 8 * (reg & 1); }
  static __device__ __forceinline__ u32 fragment_k(u32 lane, u32 step, u32 reg, u32 half) {
    return step * 16 + (lane & 3) * 2 + half + 8 * (reg >> 1);
  }
  __device__ __forceinline__ u32 code(u32 r, u32 k) const {
    const Byte* row = source(r);
    if (row == nullptr || k >= s.k) return zero_code;
    if constexpr (out_type == QuantType::f16) {
      const float v = raw_value<s.type>(row, k) * args.weight_scale;
      return ptx::cvt_rn_f16_f32(v);
    } else if constexpr (out_type == QuantType::q8_0) {
      return static_cast<u32>(R::code(block(row, k), k % R::values) + 128);
    } else {
      return R::code(block(row, k), k % R::values);
    }
  }
  static constexpr u32 zero_code = out_type == QuantType::q8_0 ? 128 : 0;

  __device__ __forceinline__ void pack() const {
    header();
    const u32 lane = threadIdx.x % 32;
    for (u32 plane = threadIdx.x / 32; plane < C::k / 64; plane += threads / 32) {
      Byte* data = cell + C::header_bytes + plane * C::plane_bytes;
      u32 high[2] = {};
      for (u32 step = 0; step < 4; ++step) pack_step(data, plane, step, lane, high);
      if constexpr (high_bits != 0) {
        for (u32 i = 0; i < high_bits; ++i) reinterpret_cast<u32*>(data + 512)[lane * high_bits + i] = high[i];
      }
    }
  }

  /// Bits of a code beyond its nibble; `high` collects those of a lane's plane in the order that cells.cuh gives.
  static constexpr u32 high_bits = out_type == QuantType::q5_k ? 1 : out_type == QuantType::q6_k ? 2 : 0;

  __device__ __forceinline__ void pack_step(Byte* data, u32 plane, u32 step, u32 lane, u32 (&high)[2]) const {
    u32 codes[4][2];
    for (u32 reg = 0; reg < 4; ++reg) {
      for (u32 half = 0; half < 2; ++half) {
        codes[reg][half] = code(fragment_row(lane, reg), k0 + plane * 64 + fragment_k(lane, step, reg, half));
      }
    }
    if constexpr (out_type == QuantType::f16) {
      u32* out = reinterpret_cast<u32*>(data + (step * 32 + lane) * 16);
      for (u32 reg = 0; reg < 4; ++reg) out[reg] = codes[reg][0] | codes[reg][1] << 16;
    } else if constexpr (out_type == QuantType::q8_0) {
      u32* out = reinterpret_cast<u32*>(data + step / 2 * 512 + lane * 16 + step % 2 * 8);
      out[0] = codes[0][0] | codes[2][0] << 8 | codes[0][1] << 16 | codes[2][1] << 24;
      out[1] = codes[1][0] | codes[3][0] << 8 | codes[1][1] << 16 | codes[3][1] << 24;
    } else {
      u32 low = 0;
      for (u32 reg = 0; reg < 4; ++reg) {
        for (u32 half = 0; half < 2; ++half) {
          const u32 nibble = reg + 4 * half;
          low |= (codes[reg][half] & 15) << (4 * nibble);
          const u32 place = 4 * reg + 16 * half;
          if constexpr (high_bits == 1) high[0] |= (codes[reg][half] >> 4) << (place + step);
          if constexpr (high_bits == 2) high[step / 2] |= (codes[reg][half] >> 4) << (place + step % 2 * 2);
        }
      }
      reinterpret_cast<u32*>(data + lane * 16)[step] = low;
    }
  }

  /// Scales of each row.
  __device__ __forceinline__ void header() const {
    const u32 r = threadIdx.x;
    if (r >= 16 || C::header_bytes == 0) return;
    const Byte* row = source(r);
    const Byte* b = row == nullptr ? nullptr : block(row, k0);
    if constexpr (out_type == QuantType::q4_k || out_type == QuantType::q5_k) {
      u32* out = reinterpret_cast<u32*>(cell + r * 16);
      out[0] = b == nullptr ? 0 : load_u32(b);
      Byte packed[12] = {};
      for (u32 t = 0; b != nullptr && t < 4; ++t) {
        u32 scale[2], minimum[2];
        k_scale(b + 4, 2 * t, scale[0], minimum[0]);
        k_scale(b + 4, 2 * t + 1, scale[1], minimum[1]);
        const u32 bits = scale[0] | scale[1] << 6 | minimum[0] << 12 | minimum[1] << 18;
        for (u32 i = 0; i < 3; ++i) packed[3 * t + i] = static_cast<Byte>(bits >> (8 * i));
      }
      for (u32 i = 0; i < 12; ++i) cell[r * 16 + 4 + i] = packed[i];
    } else if constexpr (out_type == QuantType::q6_k) {
      for (u32 i = 0; i < 16; ++i) cell[r * 16 + i] = b == nullptr ? 0 : b[192 + i];
      reinterpret_cast<unsigned short*>(cell + 256)[r] = b == nullptr ? 0 : load_u16(b + 208);
    } else {  // Q4_0, Q8_0: two blocks of 32
      for (u32 i = 0; i < 2; ++i) {
        const bool inside = b != nullptr && k0 + i * 32 < s.k;
        reinterpret_cast<unsigned short*>(cell)[r * 2 + i] = inside ? load_u16(b + i * R::bytes) : 0;
      }
    }
  }
};

}  // namespace quern::cuda
