// Probe a (issue 4): causal flash attention on wgmma with the segment fold of DESIGN section 4.5, head dims 128 and
// 256: speed with and without the fold, block and segment sizes. One producer warp, two consumer warpgroups of 64
// queries. Q, K, V come pre-tiled [head][dim / 64][position][64] with 16-byte chunks xored by position & 7, so that a
// block of keys is one contiguous bulk copy for each 64 dims.

#include <cmath>

#include "wgmma.cuh"

namespace {

struct Problem {
  const __half *q, *k, *v;
  float* out;       ///< [token][head][dim]
  float* park;      ///< [SM][warpgroup][register][thread]
  int tokens, heads, kv_heads, segment;
  float scale_log2;
};

constexpr int kThreads = 384;

template <int n>
__device__ __forceinline__ void qk(float (&d)[n / 2], u64 a, u64 b, int accumulate) {
  if constexpr (n == 128) wgmma_m64n128k16_ss(d, a, b, accumulate);
  else wgmma_m64n64k16_ss(d, a, b, accumulate);
}
template <int n>
__device__ __forceinline__ void pv(float (&d)[n / 2], const u32 (&a)[4], u64 b) {
  if constexpr (n == 128) wgmma_m64n128k16_rs_tb(d, a, b, 1);
  else wgmma_m64n256k16_rs_tb(d, a, b, 1);
}
/// V block as an MN-major operand: 64-dim chunks `chunk_bytes` apart, groups of 8 keys 1,024 bytes apart.
__device__ __forceinline__ u64 v_descriptor(u32 address, u32 chunk_bytes) {
  return (static_cast<u64>(address & 0x3ffff) >> 4) | (static_cast<u64>(chunk_bytes >> 4) << 16) | (64ull << 32) |
         (1ull << 62);
}

template <int dim, int keys, bool fold>
__global__ void __launch_bounds__(kThreads, 1) attention(Problem p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  constexpr int chunks = dim / 64, block_bytes = keys * dim * 2, chunk_bytes = keys * 128, stages = 2;
  constexpr int q_chunk_bytes = 128 * 128;
  const u32 bars = smem_address(smem), q_smem = bars + 1024, k_smem = q_smem + 128 * dim * 2,
            v_smem = k_smem + stages * block_bytes;
  const int q_tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, kv_head = head / (p.heads / p.kv_heads);
  const int blocks = (q_tile * 128 + 128 + keys - 1) / keys;
  const u32 full_k = bars + 8, empty_k = bars + 32, full_v = bars + 64, empty_v = bars + 96;
  if (threadIdx.x == 0) {
    mbarrier_init(bars, 1);
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(full_k + i * 8, 1), mbarrier_init(full_v + i * 8, 1);
      mbarrier_init(empty_k + i * 8, 2), mbarrier_init(empty_v + i * 8, 2);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) {
      const char* q = reinterpret_cast<const char*>(p.q) + static_cast<size_t>(head) * chunks * p.tokens * 128;
      mbarrier_expect_tx(bars, 128 * dim * 2);
      for (int c = 0; c < chunks; ++c)
        bulk_copy(q_smem + c * q_chunk_bytes, q + (static_cast<size_t>(c) * p.tokens + q_tile * 128) * 128, q_chunk_bytes, bars);
      const size_t base = static_cast<size_t>(kv_head) * chunks * p.tokens * 128;
      for (int j = 0; j < blocks; ++j) {
        int slot = j % stages, phase = (j / stages) & 1;
        auto load = [&](const __half* source, u32 dst, u32 full, u32 empty) {
          mbarrier_wait(empty + slot * 8, phase ^ 1);
          mbarrier_expect_tx(full + slot * 8, block_bytes);
          for (int c = 0; c < chunks; ++c)
            bulk_copy(dst + slot * block_bytes + c * chunk_bytes,
                      reinterpret_cast<const char*>(source) + base + (static_cast<size_t>(c) * p.tokens + j * keys) * 128,
                      chunk_bytes, full + slot * 8);
        };
        load(p.k, k_smem, full_k, empty_k);
        load(p.v, v_smem, full_v, empty_v);
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const int wg = threadIdx.x / 128 - 1, thread = threadIdx.x & 127, lane = thread & 31, warp = thread / 32;
  const int row = q_tile * 128 + wg * 64 + warp * 16 + (lane >> 2);
  float o[dim / 2], s[keys / 2];
  u32 probs[keys / 16][4];
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0}, big_m[2] = {-INFINITY, -INFINITY}, big_l[2] = {0, 0};
  bool parked = false;
  u32 sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));  // one CTA an SM, so its number is a private slot
  float* park = p.park + (static_cast<size_t>(sm) * 2 + wg) * (dim / 2) * 128 + thread;
#pragma unroll
  for (float& v : o) v = 0;

  auto scores = [&](int j) {
    int slot = j % stages;
    mbarrier_wait(full_k + slot * 8, (j / stages) & 1);
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      u64 a = swizzled_descriptor(q_smem + c * q_chunk_bytes + wg * 64 * 128);
      u64 b = swizzled_descriptor(k_smem + slot * block_bytes + c * chunk_bytes);
#pragma unroll
      for (int i = 0; i < 4; ++i) qk<keys>(s, a + 2 * i, b + 2 * i, c + i > 0);
    }
    wgmma_commit();
  };
  auto values = [&](int j) {
    int slot = j % stages;
    mbarrier_wait(full_v + slot * 8, (j / stages) & 1);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < keys / 16; ++i)
      pv<dim>(o, probs[i], v_descriptor(v_smem + slot * block_bytes + i * 2048, chunk_bytes));
    wgmma_commit();
  };
  /// Softmax of block j in place; returns the factors for the sums so far.
  auto softmax = [&](int j, float (&alpha)[2]) {
    if (j * keys + keys > row - (lane >> 2) - warp * 16 - wg * 64 + 1) {  // the tile's diagonal blocks
#pragma unroll
      for (int i = 0; i < keys / 2; ++i) {
        int key = j * keys + (i / 4) * 8 + (lane & 3) * 2 + (i & 1);
        if (key > row + ((i & 2) ? 8 : 0)) s[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = m[h];
#pragma unroll
      for (int i = 0; i < keys / 8; ++i) top = fmaxf(top, fmaxf(s[i * 4 + h * 2], s[i * 4 + h * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      float safe = top == -INFINITY ? 0 : top;
      alpha[h] = exp2f((m[h] - safe) * p.scale_log2);
      m[h] = top;
      float sum = 0;
#pragma unroll
      for (int i = 0; i < keys / 8; ++i) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& v = s[i * 4 + h * 2 + c];
          v = exp2f(fmaf(v, p.scale_log2, -safe * p.scale_log2));
          sum += v;
        }
      }
      l[h] = fmaf(l[h], alpha[h], sum);
    }
  };
  auto pack = [&] {
#pragma unroll
    for (int i = 0; i < keys / 16; ++i)
#pragma unroll
      for (int r = 0; r < 4; ++r) probs[i][r] = pack_half2(s[i * 8 + r * 2], s[i * 8 + r * 2 + 1]);
  };
  auto park_segment = [&] {
    float a[2], b[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = l[h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      float top = fmaxf(big_m[h], m[h]);
      float safe = top == -INFINITY ? 0 : top;
      a[h] = exp2f((big_m[h] - safe) * p.scale_log2), b[h] = exp2f((m[h] - safe) * p.scale_log2);
      big_l[h] = fmaf(big_l[h], a[h], sum * b[h]);
      big_m[h] = top, m[h] = -INFINITY, l[h] = 0;
    }
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) {
      int h = (i >> 1) & 1;
      float v = o[i] * b[h];
      if (parked) v = fmaf(park[i * 128], a[h], v);
      park[i * 128] = v;
      o[i] = 0;
    }
    parked = true;
  };
  auto release = [&](u32 bar) {
    if (thread == 0) mbarrier_arrive(bar);
  };

  mbarrier_wait(bars, 0);
  float alpha[2];
  scores(0);
  wgmma_wait<0>();
  release(empty_k);
  softmax(0, alpha);
  pack();
  for (int j = 1; j < blocks; ++j) {
    scores(j);
    values(j - 1);
    wgmma_wait<1>();
    asm volatile("bar.sync %0, 128;" ::"r"(wg + 1));
    release(empty_k + (j % stages) * 8);
    const bool boundary = fold && (j * keys) % p.segment == 0;
    if (!boundary) softmax(j, alpha);
    wgmma_wait<0>();
    asm volatile("bar.sync %0, 128;" ::"r"(wg + 1));
    release(empty_v + ((j - 1) % stages) * 8);
    if (boundary) {
      park_segment();
      softmax(j, alpha);
    } else {
#pragma unroll
      for (int i = 0; i < dim / 2; ++i) o[i] *= alpha[(i >> 1) & 1];
    }
    pack();
  }
  values(blocks - 1);
  wgmma_wait<0>();
  if (fold && parked) {
    park_segment();
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) o[i] = park[i * 128];
    l[0] = big_l[0], l[1] = big_l[1];
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      l[h] += __shfl_xor_sync(~0u, l[h], 1);
      l[h] += __shfl_xor_sync(~0u, l[h], 2);
    }
  }
#pragma unroll
  for (int i = 0; i < dim / 8; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float inv = 1.0f / l[h];
      float2* out = reinterpret_cast<float2*>(p.out + (static_cast<size_t>(row + h * 8) * p.heads + head) * dim + i * 8 + (lane & 3) * 2);
      *out = make_float2(o[i * 4 + h * 2] * inv, o[i * 4 + h * 2 + 1] * inv);
    }
}

__device__ size_t tiled(int head, int dims, int tokens, int token, int d) {
  return ((static_cast<size_t>(head) * (dims / 64) + d / 64) * tokens + token) * 64 + (((d % 64) / 8) ^ (token & 7)) * 8 + d % 8;
}
__global__ void fill(__half* x, size_t n, u64 seed) {
  size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (i < n) x[i] = __float2half((hash32(seed + i) / 4294967296.0f + hash32(~seed ^ i) / 4294967296.0f - 1.0f) * 2.4f);
}
/// Double-precision reference of some rows: one block a (row, head).
__global__ void check(Problem p, int dims, int row_step, double* worst) {
  int token = min(p.tokens - 1, static_cast<int>(blockIdx.x) * row_step + 77 % row_step), head = blockIdx.y;
  int kv = head / (p.heads / p.kv_heads);
  if (threadIdx.x) return;
  double m = -1e300, l = 0, o[256];
  for (int d = 0; d < dims; ++d) o[d] = 0;
  for (int key = 0; key <= token; ++key) {
    double s = 0;
    for (int d = 0; d < dims; ++d)
      s += static_cast<double>(__half2float(p.q[tiled(head, dims, p.tokens, token, d)])) * __half2float(p.k[tiled(kv, dims, p.tokens, key, d)]);
    s *= p.scale_log2 * 0.6931471805599453;
    double top = fmax(m, s), a = exp(m - top), b = exp(s - top);
    l = l * a + b, m = top;
    for (int d = 0; d < dims; ++d) o[d] = o[d] * a + b * __half2float(p.v[tiled(kv, dims, p.tokens, key, d)]);
  }
  double error = 0;
  for (int d = 0; d < dims; ++d) {
    double e = fabs(o[d] / l - p.out[(static_cast<size_t>(token) * p.heads + head) * dims + d]);
    error = e == e ? fmax(error, e) : 1e30;
  }
  worst[blockIdx.y * gridDim.x + blockIdx.x] = error;
}

template <int dim, int keys>
void run(int tokens, int heads, int kv_heads) {
  Problem p{};
  p.tokens = tokens, p.heads = heads, p.kv_heads = kv_heads;
  p.scale_log2 = 1.4426950408889634f / sqrtf(static_cast<float>(dim));
  __half *q, *k, *v;
  size_t nq = static_cast<size_t>(tokens) * heads * dim, nk = static_cast<size_t>(tokens) * kv_heads * dim;
  CHECK(cudaMalloc(&q, nq * 2));
  CHECK(cudaMalloc(&k, nk * 2));
  CHECK(cudaMalloc(&v, nk * 2));
  CHECK(cudaMalloc(&p.out, nq * 4));
  CHECK(cudaMalloc(&p.park, static_cast<size_t>(264) * 2 * (dim / 2) * 128 * 4));
  fill<<<static_cast<unsigned>((nq + 255) / 256), 256>>>(q, nq, 1);
  fill<<<static_cast<unsigned>((nk + 255) / 256), 256>>>(k, nk, 2);
  fill<<<static_cast<unsigned>((nk + 255) / 256), 256>>>(v, nk, 3);
  p.q = q, p.k = k, p.v = v;
  constexpr int smem = 1024 + 128 * dim * 2 + 4 * keys * dim * 2;
  dim3 grid(tokens / 128, heads);
  double flop = 2.0 * dim * heads * static_cast<double>(tokens) * tokens;
  for (int segment : {0, 1024, 2048, 4096}) {
    p.segment = segment;
    auto launch = [&](int) {
      if (segment) attention<dim, keys, true><<<grid, kThreads, smem>>>(p);
      else attention<dim, keys, false><<<grid, kThreads, smem>>>(p);
    };
    CHECK(cudaFuncSetAttribute(attention<dim, keys, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    CHECK(cudaFuncSetAttribute(attention<dim, keys, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    CHECK(cudaMemset(p.out, 0xff, nq * 4));
    float us = median_us(12, [](int) {}, launch);
    double worst = 0;
    if (tokens <= 8192) {
      const int rows = 5;
      double* errors;
      CHECK(cudaMalloc(&errors, sizeof(double) * rows * heads));
      check<<<dim3(rows, heads), 32>>>(p, dim, tokens / rows, errors);
      std::vector<double> host(static_cast<size_t>(rows) * heads);
      CHECK(cudaMemcpy(host.data(), errors, sizeof(double) * host.size(), cudaMemcpyDeviceToHost));
      for (double e : host) worst = std::max(worst, e);
      CHECK(cudaFree(errors));
    }
    std::printf(
        "{\"probe\":\"attention\",\"head_dim\":%d,\"block_keys\":%d,\"segment_keys\":%d,\"tokens\":%d,\"us\":%.1f,\"tflops\":%.1f,"
        "\"max_abs_error\":%.2e}\n",
        dim, keys, segment, tokens, us, flop / us * 1e-6, worst);
  }
  CHECK(cudaFree(q));
  CHECK(cudaFree(k));
  CHECK(cudaFree(v));
  CHECK(cudaFree(p.out));
  CHECK(cudaFree(p.park));
}

}  // namespace

int main() {
  for (int tokens : {2048, 8192, 32768}) {
    run<128, 128>(tokens, 32, 8);
    run<128, 64>(tokens, 32, 8);
    run<256, 64>(tokens, 16, 4);
  }
  return 0;
}
