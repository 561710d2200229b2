#pragma once

#include "templates/cuda/cells.cuh"
#include "templates/cuda/gemm/epilogue.cuh"
#include "templates/cuda/ptx/mbarrier.cuh"
#include "templates/cuda/ptx/memory.cuh"
#include "templates/cuda/ptx/mma.cuh"
#include "templates/spec/gemm_launch.h"

namespace quern::cuda {

/// A warp of a decode block.
struct GemvWarp {
  uint4* x;             ///< Of one token, in shared memory.
  unsigned char* ring;  ///< The warp's memory for cells.
  unsigned char* sums = nullptr;  ///< Of the warps that share its row group, by role.
  u32 turns = 0;                  ///< Their barriers.
  u32 role, lane;
};

/// Decode GEMM (up to 8 tokens): a row group of 16 rows has one mma chain over all of K, in the prefill's order. A warp's cells
/// stream through a ring of its own, so warps never wait for each other's memory. `sharers` warps take turns at the chain: while
/// one multiplies, the others decode their next turns' weights into registers; the sums go on through shared memory. With one,
/// it decodes a slab while it multiplies the one before.
template <spec::GemmSpec s, u32 segment, u32 sharers>
struct GemmVector {
  static constexpr QuantType type = s.segments[segment].type;
  using C = Cell<type>;
  using Scales = typename C::Scales;
  static constexpr u32 bytes = cell_bytes<type>(), cells = (s.k + C::k - 1) / C::k, planes = C::k / 64, slabs = (s.k + 63) / 64;
  static constexpr u32 depth = s.stages, turn_cells = sharers > 1 ? s.turn_slabs / planes : 1;

  /// `wait_for_x` waits for the launch before and brings x; until then only weights are read.
  template <class WaitForX>
  static __device__ __forceinline__ void run(const KernelArgs& args, u32 group, u32 first_row, const GemvWarp& w,
                                             const WaitForX& wait_for_x) {
    Ring ring(args, group, w);
    const u32 n_tokens = rows_of(args);
    float c[4] = {};
    bool last = true;
    if constexpr (sharers > 1) {
      last = take_turns(args, ring, w, n_tokens, c, wait_for_x);
    } else {
      wait_for_x();
      if (n_tokens == 1) {
        decode_and_multiply<true>(args, ring, w, n_tokens, c);
      } else {
        decode_and_multiply<false>(args, ring, w, n_tokens, c);
      }
    }
    if (!last) return;
    const GemmOutput<s> out{args, n_tokens};
    out.template piece<segment>(first_row, group * 16, w.lane, (w.lane & 3) * 2, c);
  }

  /// A warp's cells on their way through shared memory: all of its turns.
  struct Ring {
    const unsigned char* from;  ///< This lane's first 16 bytes of the cell to ask for next.
    const unsigned char* data;
    u32 lane, to, next, slot = 0;

    /// Asks for the first cells.
    __device__ __forceinline__ Ring(const KernelArgs& args, u32 group, const GemvWarp& w)
        : data(w.ring), lane(w.lane), to(ptx::shared_address(w.ring) + w.lane * 16), next(w.role * turn_cells) {
      from = static_cast<const unsigned char*>(args.buffers[3 + segment]) +
             (static_cast<size_t>(group / 8) * cells * 8 + group % 8 + static_cast<size_t>(next) * 8) * bytes + lane * 16;
#pragma unroll
      for (u32 i = 0; i + 1 < depth; ++i) issue(i);
    }
    __device__ __forceinline__ void issue(u32 fill) {
      if (next < cells) {
        const u32 at = to + fill * bytes;
#pragma unroll
        for (u32 i = 0; i + 512 <= bytes; i += 512) ptx::cp_async_cg_16(at + i, from + i);
        constexpr u32 rest = bytes % 512, whole = bytes - rest;
        if (rest != 0 && lane < rest / 16) ptx::cp_async_cg_16(at + whole, from + whole);
      }
      ptx::cp_async_commit_group();
      const u32 step = (next + 1) % turn_cells != 0 ? 1 : (sharers - 1) * turn_cells + 1;
      from += static_cast<size_t>(step) * 8 * bytes;
      next += step;
    }
    /// The oldest cell; the slot of the one before it is asked to take another.
    __device__ __forceinline__ const unsigned char* wait() {
      ptx::cp_async_wait_group<depth - 2>();
      __syncwarp();
      issue(slot == 0 ? depth - 1 : slot - 1);
      return data + slot * bytes;
    }
    __device__ __forceinline__ void release() {
      __syncwarp();
      slot = slot + 1 == depth ? 0 : slot + 1;
    }
  };

  /// B fragments of a slab: of one token from shared memory (every column then holds it), of several from global memory.
  template <bool one_token>
  struct X {
    u32 b[4][2];
    __device__ __forceinline__ void load(const KernelArgs& args, const GemvWarp& w, u32 slab, u32 n_tokens) {
      if constexpr (one_token) {
        const uint4 low = w.x[slab * 8 + (w.lane & 3) * 2], high = w.x[slab * 8 + (w.lane & 3) * 2 + 1];
        b[0][0] = low.x, b[0][1] = low.y, b[1][0] = low.z, b[1][1] = low.w;
        b[2][0] = high.x, b[2][1] = high.y, b[3][0] = high.z, b[3][1] = high.w;
      } else {
        const u32 token = w.lane >> 2;
        const u32* row = reinterpret_cast<const u32*>(static_cast<const char*>(args.buffers[0]) +
                                                      (static_cast<size_t>(slab) * args.operand_rows + token) * 128);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
          b[i][0] = token < n_tokens ? row[((2 * i) ^ (token & 7)) * 4 + (w.lane & 3)] : 0;
          b[i][1] = token < n_tokens ? row[((2 * i + 1) ^ (token & 7)) * 4 + (w.lane & 3)] : 0;
        }
      }
    }
  };

  template <class Columns>
  static __device__ __forceinline__ void chain(float (&c)[4], const Fragments& a, const Columns& x) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) ptx::mma_m16n8k16(c, a[i], x.b[i][0], x.b[i][1]);
  }
  /// Whether a slab of a cell is one of x: all are where K is whole turns.
  static __device__ __forceinline__ bool inside(u32 slab) { return slabs % (turn_cells * planes) == 0 || slab < slabs; }

  /// One warp for everything.
  template <bool one_token>
  static __device__ __forceinline__ void decode_and_multiply(const KernelArgs& args, Ring& ring, const GemvWarp& w, u32 n_tokens,
                                                             float (&c)[4]) {
    Scales scales;
    for (u32 cell = 0; cell < cells; ++cell) {
      const unsigned char* data = ring.wait();
      scales.load(data, w.lane, args.weight_scale);
      Fragments a[2];
      X<one_token> x[2];
      decode_plane<type>(data, scales, 0, w.lane, args.weight_scale, a[0]);
      x[0].load(args, w, cell * planes, n_tokens);
#pragma unroll
      for (u32 p = 0; p < planes; ++p) {
        const u32 slab = cell * planes + p;
        if (p + 1 < planes) {
          decode_plane<type>(data, scales, p + 1, w.lane, args.weight_scale, a[(p + 1) & 1]);
          if (inside(slab + 1)) x[(p + 1) & 1].load(args, w, slab + 1, n_tokens);
        }
        if (inside(slab)) chain(c, a[p & 1], x[p & 1]);
      }
      ring.release();
    }
  }

  static constexpr u32 turn_slabs = turn_cells * planes, turns = (slabs + turn_slabs - 1) / turn_slabs;
  using TurnFragments = Fragments[turn_slabs];

  /// The weights of a turn, in registers.
  static __device__ __forceinline__ void decode_turn(const KernelArgs& args, Ring& ring, const GemvWarp& w, u32 turn,
                                                     TurnFragments& a) {
    Scales scales;
#pragma unroll
    for (u32 i = 0; i < turn_cells; ++i) {
      if (cells % turn_cells != 0 && turn * turn_cells + i >= cells) break;
      const unsigned char* data = ring.wait();
      scales.load(data, w.lane, args.weight_scale);
#pragma unroll
      for (u32 p = 0; p < planes; ++p) decode_plane<type>(data, scales, p, w.lane, args.weight_scale, a[i * planes + p]);
      ring.release();
    }
  }

  /// Takes the sums over when the turn has come, and multiplies.
  template <bool one_token>
  static __device__ __forceinline__ void multiply_turn(const KernelArgs& args, const GemvWarp& w, u32 turn, u32 n_tokens,
                                                       const TurnFragments& a, u32 phase, float (&c)[4]) {
    constexpr u32 ahead = one_token ? 1 : 0;  // several tokens: registers are few
    X<one_token> x[1 + ahead];
    if (ahead != 0) x[0].load(args, w, turn * turn_slabs, n_tokens);
    if (turn > 0) {
      ptx::mbarrier_wait(w.turns + w.role * spec::gemv_turn_bytes, phase);
      const float4 v = reinterpret_cast<const float4*>(w.sums)[w.role * 32 + w.lane];
      c[0] = v.x, c[1] = v.y, c[2] = v.z, c[3] = v.w;
    }
#pragma unroll
    for (u32 i = 0; i < turn_slabs; ++i) {
      const u32 slab = turn * turn_slabs + i;
      if (i + ahead < turn_slabs && inside(slab + ahead)) x[(i + ahead) & ahead].load(args, w, slab + ahead, n_tokens);
      if (inside(slab)) chain(c, a[i], x[i & ahead]);
    }
  }

  /// True for the warp whose turn was the last: it has the sums. A round of the loop multiplies what the round before decoded:
  /// within one round the compiler puts the decoding off until the turn has come.
  template <class WaitForX>
  static __device__ __forceinline__ bool take_turns(const KernelArgs& args, Ring& ring, const GemvWarp& w, u32 n_tokens,
                                                    float (&c)[4], const WaitForX& wait_for_x) {
    static_assert(s.turn_slabs % planes == 0, "a turn is whole cells");
    const u32 after = w.role + 1 == sharers ? 0 : w.role + 1;
    TurnFragments a;
    u32 turn = w.role, phase = 0;
    bool decoded = false, has_x = false;
#pragma unroll 1
    while (true) {
      if (decoded) {
        if (!has_x) wait_for_x(), has_x = true;
        if (n_tokens == 1) {
          multiply_turn<true>(args, w, turn, n_tokens, a, phase, c);
        } else {
          multiply_turn<false>(args, w, turn, n_tokens, a, phase, c);
        }
        if (turn > 0) phase ^= 1;
        if (turn + 1 == turns) return true;
        reinterpret_cast<float4*>(w.sums)[after * 32 + w.lane] = make_float4(c[0], c[1], c[2], c[3]);
        ptx::mbarrier_arrive_warp(w.turns + after * spec::gemv_turn_bytes, w.lane);
        turn += sharers;
      }
      if (turn >= turns) break;
      decode_turn(args, ring, w, turn, a);
      decoded = true;
    }
    if (!has_x) wait_for_x();  // a short K: no turn was left
    return false;
  }
};

}  // namespace quern::cuda
