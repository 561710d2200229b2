#pragma once

// What the probes share: checks, event timing with a cold L2, and the fragment-order weight cells of
// DESIGN section 5 for Q4_K, Q6_K and F16 with their one-rounding decoders.

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                        \
  do {                                                                                     \
    cudaError_t status_ = (call);                                                          \
    if (status_ != cudaSuccess) {                                                          \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_)); \
      std::exit(1);                                                                        \
    }                                                                                      \
  } while (0)

using u32 = uint32_t;
using u64 = uint64_t;

/// Median time in microseconds of `runs` calls; `prepare` runs before each, outside the timed region.
template <class Launch, class Prepare>
float median_us(int runs, Prepare prepare, Launch launch) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> samples;
  for (int i = 0; i < runs + 3; ++i) {
    prepare(i);
    CHECK(cudaEventRecord(begin));
    launch(i);
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) samples.push_back(ms * 1000.0f);
  }
  CHECK(cudaGetLastError());
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

__host__ __device__ inline u32 hash32(u64 x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  return static_cast<u32>(x);
}

enum CellType : int { cell_q4_k = 0, cell_q6_k = 1, cell_f16 = 2 };

/// Bytes of a cell of 16 rows x 256 K: exactly the GGUF byte count.
__host__ __device__ constexpr int cell_bytes(int type) {
  return type == cell_q4_k ? 16 * 144 : type == cell_q6_k ? 16 * 210 : 16 * 512;
}
__host__ __device__ constexpr int header_bytes(int type) {
  return type == cell_q4_k ? 256 : type == cell_q6_k ? 288 : 0;
}
/// Bytes of one 64-K plane of a cell.
__host__ __device__ constexpr int plane_bytes(int type) {
  return type == cell_q4_k ? 512 : type == cell_q6_k ? 768 : 2048;
}

// Q4_K header: row r has 16 bytes {d, dmin, 4 x 24 bits}: lane t of a quad owns groups 2t and 2t + 1, whose
// two scales and two minima are its 24 bits. Planes: lane's 16 bytes, one word for each k16 step; nibble i
// and i + 4 of a word are fragment register i (low and high half).
// Q6_K header: 16 rows x 16 int8 scales, then 16 halves d. Planes: 32 x 16 bytes of low nibbles as above,
// then 32 x 8 bytes of high pairs: half-word s holds k16 step s, bits 2n.. of it are nibble n's high bits.

__global__ void fill_random_cells(unsigned char* cells, size_t count, int type, float scale, u64 seed) {
  size_t cell = blockIdx.x;
  if (cell >= count) return;
  unsigned char* c = cells + cell * cell_bytes(type);
  for (int i = threadIdx.x; i < cell_bytes(type) / 2; i += blockDim.x) {
    u32 r = hash32(seed + cell * 65536 + i);
    unsigned short v = static_cast<unsigned short>(r);
    if (type == cell_f16) {
      float f = (static_cast<float>(r & 0xffff) / 32768.0f - 1.0f) * scale * 1.7f;
      v = __half_as_ushort(__float2half(f));
    }
    if (type == cell_q4_k && i < 128 && (i & 7) < 2) {
      float f = (i & 7) == 0 ? scale / 200 : 7.5f * scale / 200;
      v = __half_as_ushort(__float2half(f * (0.75f + (r & 255) / 512.0f)));
    }
    if (type == cell_q6_k && i >= 128 && i < 144) {
      v = __half_as_ushort(__float2half(scale / 1332 * (0.75f + (r & 255) / 512.0f)));
    }
    reinterpret_cast<unsigned short*>(c)[i] = v;
  }
}

__device__ __forceinline__ float magic_byte(u32 bytes, u32 selector) {
  return __uint_as_float(__byte_perm(bytes, 0x4b000000u, selector));  // 2^23 + byte, exact
}
__device__ __forceinline__ u32 pack_half2(float low, float high) {
  u32 out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

/// Scales of one cell as a lane holds them.
template <int type>
struct CellScales;

template <>
struct CellScales<cell_q4_k> {
  float ds[2][2], dm[2][2];  ///< [row g or g + 8][group 2t or 2t + 1]
  __device__ __forceinline__ void load(const unsigned char* cell, int lane) {
    int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const u32* row = reinterpret_cast<const u32*>(cell + (g + 8 * h) * 16);
      u32 dd = row[0];
      float d = __half2float(__ushort_as_half(static_cast<unsigned short>(dd)));
      float dmin = __half2float(__ushort_as_half(static_cast<unsigned short>(dd >> 16)));
      int bit = 24 * t, w = bit >> 5;
      u32 bits = __funnelshift_r(row[1 + w], w < 2 ? row[2 + w] : 0u, bit & 31);
      ds[h][0] = d * static_cast<float>(bits & 63);
      ds[h][1] = d * static_cast<float>((bits >> 6) & 63);
      dm[h][0] = -dmin * static_cast<float>((bits >> 12) & 63);
      dm[h][1] = -dmin * static_cast<float>((bits >> 18) & 63);
#ifndef EXACT_ALWAYS
#pragma unroll
      for (int i = 0; i < 2; ++i) ds[h][i] *= 16, dm[h][i] -= ds[h][i];
#endif
    }
  }
  /// (scale, -min) of group `half` of plane `p` for row g + 8h.
  __device__ __forceinline__ float2 group(int p, int half, int h, int lane) const {
    int src = (lane & ~3) | p;
    return make_float2(__shfl_sync(~0u, ds[h][half], src), __shfl_sync(~0u, dm[h][half], src));
  }
};

/// Four fragment registers of one k16 step of a Q4_K word: `lo`, `hi` = (scale, -min) of rows g and g + 8.
/// v = 1 + q / 16 exactly; (16 scale) v + (-min - 16 scale) has one rounding where that constant is exact in f32, which
/// holds while the exponents of d and dmin are within [-2, 10] of each other; -DEXACT_ALWAYS subtracts first instead.
__device__ __forceinline__ void decode_q4_k(u32 w, float2 lo, float2 hi, u32 (&a)[4]) {
#ifdef EXACT_ALWAYS
  u32 even = w & 0x0f0f0f0fu, odd = (w >> 4) & 0x0f0f0f0fu;  // nibbles 0 2 4 6 / 1 3 5 7
  auto q = [](u32 bytes, u32 sel) { return magic_byte(bytes, sel) - 8388608.0f; };
  a[0] = pack_half2(fmaf(lo.x, q(even, 0x7650), lo.y), fmaf(lo.x, q(even, 0x7652), lo.y));
  a[1] = pack_half2(fmaf(hi.x, q(odd, 0x7650), hi.y), fmaf(hi.x, q(odd, 0x7652), hi.y));
  a[2] = pack_half2(fmaf(lo.x, q(even, 0x7651), lo.y), fmaf(lo.x, q(even, 0x7653), lo.y));
  a[3] = pack_half2(fmaf(hi.x, q(odd, 0x7651), hi.y), fmaf(hi.x, q(odd, 0x7653), hi.y));
#else
  u32 even = ((w << 3) & 0x78787878u) | 0x80808080u, odd = ((w >> 1) & 0x78787878u) | 0x80808080u;
  auto q = [](float2 s, u32 bytes, u32 sel) {
    return fmaf(s.x, __uint_as_float(__byte_perm(bytes, 0x3f000000u, sel)), s.y);
  };
  a[0] = pack_half2(q(lo, even, 0x7044), q(lo, even, 0x7244));
  a[1] = pack_half2(q(hi, odd, 0x7044), q(hi, odd, 0x7244));
  a[2] = pack_half2(q(lo, even, 0x7144), q(lo, even, 0x7344));
  a[3] = pack_half2(q(hi, odd, 0x7144), q(hi, odd, 0x7344));
#endif
}

/// Four fragment registers of one k16 step of Q6_K: low nibbles `w`, high pairs `h` (16 bits).
__device__ __forceinline__ void decode_q6_k(u32 w, u32 h, float lo, float hi, u32 (&a)[4]) {
  // Spread the high pairs: nibble n's pair (bits 2n) goes to bits 4..5 of byte n / 2 of even / odd.
  u32 he = (h & 0x3u) << 4 | (h & 0x30u) << 8 | (h & 0x300u) << 12 | (h & 0x3000u) << 16;
  u32 ho = (h & 0xcu) << 2 | (h & 0xc0u) << 6 | (h & 0xc00u) << 10 | (h & 0xc000u) << 14;
  u32 even = (w & 0x0f0f0f0fu) | he | 0x80808080u, odd = ((w >> 4) & 0x0f0f0f0fu) | ho | 0x80808080u;
  // 1 + q / 128 exactly; (128 s) v - 160 s has one rounding, since 160 s is exact (19 + 3 bits).
  float lo128 = lo * 128.0f, lo160 = lo * -160.0f, hi128 = hi * 128.0f, hi160 = hi * -160.0f;
  auto low = [&](u32 bytes, u32 sel) { return fmaf(lo128, __uint_as_float(__byte_perm(bytes, 0x3f000000u, sel)), lo160); };
  auto high = [&](u32 bytes, u32 sel) { return fmaf(hi128, __uint_as_float(__byte_perm(bytes, 0x3f000000u, sel)), hi160); };
  a[0] = pack_half2(low(even, 0x7044), low(even, 0x7244));
  a[1] = pack_half2(high(odd, 0x7044), high(odd, 0x7244));
  a[2] = pack_half2(low(even, 0x7144), low(even, 0x7344));
  a[3] = pack_half2(high(odd, 0x7144), high(odd, 0x7344));
}

/// Decodes the 16 fragment registers (four k16 steps) of plane p of a cell for this lane. `scales` must
/// have been loaded from the cell for Q4_K.
template <int type, class Scales>
__device__ __forceinline__ void decode_plane(const unsigned char* cell, const Scales& scales, int p, int lane,
                                             u32 (&a)[4][4]) {
  const unsigned char* plane = cell + header_bytes(type) + p * plane_bytes(type);
  if constexpr (type == cell_f16) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint4 v = reinterpret_cast<const uint4*>(plane)[s * 32 + lane];
      a[s][0] = v.x, a[s][1] = v.y, a[s][2] = v.z, a[s][3] = v.w;
    }
  } else if constexpr (type == cell_q4_k) {
    uint4 v = reinterpret_cast<const uint4*>(plane)[lane];
    float2 lo = scales.group(p, 0, 0, lane), hi = scales.group(p, 0, 1, lane);
    decode_q4_k(v.x, lo, hi, a[0]);
    decode_q4_k(v.y, lo, hi, a[1]);
    lo = scales.group(p, 1, 0, lane), hi = scales.group(p, 1, 1, lane);
    decode_q4_k(v.z, lo, hi, a[2]);
    decode_q4_k(v.w, lo, hi, a[3]);
  } else {
    uint4 v = reinterpret_cast<const uint4*>(plane)[lane];
    uint2 h = reinterpret_cast<const uint2*>(plane + 512)[lane];
    int g = lane >> 2;
    const signed char* sc = reinterpret_cast<const signed char*>(cell);
    const __half* d = reinterpret_cast<const __half*>(cell + 256);
    float dl = __half2float(d[g]), dh = __half2float(d[g + 8]);
    char4 sl = *reinterpret_cast<const char4*>(sc + g * 16 + 4 * p);
    char4 sh = *reinterpret_cast<const char4*>(sc + (g + 8) * 16 + 4 * p);
    decode_q6_k(v.x, h.x & 0xffff, dl * sl.x, dh * sh.x, a[0]);
    decode_q6_k(v.y, h.x >> 16, dl * sl.y, dh * sh.y, a[1]);
    decode_q6_k(v.z, h.y & 0xffff, dl * sl.z, dh * sh.z, a[2]);
    decode_q6_k(v.w, h.y >> 16, dl * sl.w, dh * sh.w, a[3]);
  }
}

struct NoScales {
  __device__ __forceinline__ void load(const unsigned char*, int) {}
};
template <>
struct CellScales<cell_q6_k> : NoScales {};
template <>
struct CellScales<cell_f16> : NoScales {};

// ---- PTX, one wrapper an instruction ----

__device__ __forceinline__ u32 smem_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void cp_async_16(u32 dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src));
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;"); }
template <int n>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n));
}
__device__ __forceinline__ void mbarrier_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
__device__ __forceinline__ void mbarrier_expect_tx(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbarrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}"
      ::"r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk_copy(u32 dst, const void* src, u32 bytes, u32 bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int n>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
/// K-major operand with 128-byte swizzle: 8-row groups 1,024 bytes apart.
__device__ __forceinline__ u64 swizzled_descriptor(u32 address) {
  return (static_cast<u64>(address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
