// Probe b (issue 4): GEMM with weights from registers, Q4_K and Q6_K rows in one launch, decoded by the
// one-rounding formula of DESIGN section 4.2; fraction of the speed of the same pipeline with F16 weights.
// y[token][row]; a tile is 128 rows x kTokens tokens; one producer warp, two consumer warpgroups.
// Activations come pre-tiled: [k / 64][token][64] halves, 16-byte chunks of a row xored with token & 7, so that a
// tile is one contiguous bulk copy and needs no tensor map.

#include "wgmma.cuh"

namespace {

constexpr int kConsumers = 2;
constexpr int kThreads = 128 * (1 + kConsumers);

struct Problem {
  const unsigned char* weights[2];  ///< Segments: Q4_K or F16 rows first, Q6_K rows after.
  int rows[2];
  const __half* x;
  float* y;
  int k, tokens, total_rows;
};

template <int type, int tokens>
struct Shape {
  static constexpr int weight_stage = 8 * cell_bytes(type);
  static constexpr int weight_stages = type == cell_f16 ? 2 : 3;
  static constexpr int x_stage = tokens * 128;
  static constexpr int x_stages = tokens == 256 ? (type == cell_f16 ? 3 : 4) : 6;
};

template <int n>
__device__ __forceinline__ void wgmma_rs(float (&d)[n / 2], const u32 (&a)[4], u64 b) {
  if constexpr (n == 256) wgmma_m64n256k16_rs(d, a, b);
  else if constexpr (n == 128) wgmma_m64n128k16_rs(d, a, b);
  else wgmma_m64n64k16_rs(d, a, b);
}

struct Ring {
  u32 slot = 0, phase = 0;
  __device__ __forceinline__ void next(u32 stages) {
    if (++slot == stages) slot = 0, phase ^= 1;
  }
};

template <int type, int tokens>
__device__ __forceinline__ void produce(const Problem& p, const unsigned char* w, u32 w_smem, u32 x_smem, u32 bars,
                                        int token0) {
  using S = Shape<type, tokens>;
  Ring wr, xr;
  const char* x = reinterpret_cast<const char*>(p.x);
  for (int k64 = 0; k64 < p.k / 64; ++k64) {
    if ((k64 & 3) == 0) {
      u32 full = bars + wr.slot * 8, empty = bars + 64 + wr.slot * 8;
      mbarrier_wait(empty, wr.phase ^ 1);
      mbarrier_expect_tx(full, S::weight_stage);
      bulk_copy(w_smem + wr.slot * S::weight_stage, w + static_cast<size_t>(k64 / 4) * S::weight_stage, S::weight_stage,
                full);
      wr.next(S::weight_stages);
    }
    u32 full = bars + 128 + xr.slot * 8, empty = bars + 192 + xr.slot * 8;
    mbarrier_wait(empty, xr.phase ^ 1);
    mbarrier_expect_tx(full, S::x_stage);
    bulk_copy(x_smem + xr.slot * S::x_stage, x + (static_cast<size_t>(k64) * p.tokens + token0) * 128, S::x_stage, full);
    xr.next(S::x_stages);
  }
}

template <int type, int tokens>
__device__ __forceinline__ void consume(const Problem& p, const unsigned char* w_smem, u32 x_smem, u32 bars, int row0,
                                        int token0) {
  using S = Shape<type, tokens>;
  const int warp = threadIdx.x / 32 - 4, lane = threadIdx.x & 31;  // warp 0..7 = cell of the tile
  float acc[tokens / 2];
#pragma unroll
  for (float& v : acc) v = 0;
  Ring wr, xr;
  CellScales<type> scales;
  u32 a[2][4][4];
  const int planes = p.k / 64;
  const unsigned char* cell = w_smem + warp * cell_bytes(type);
  mbarrier_wait(bars, 0);
  scales.load(cell, lane);
  decode_plane<type>(cell, scales, 0, lane, a[0]);
  u32 previous = 0;
  auto step = [&](int i, u32 (&now)[4][4], u32 (&then)[4][4]) {
    mbarrier_wait(bars + 128 + xr.slot * 8, xr.phase);
    wgmma_fence();
    u64 b = swizzled_descriptor(x_smem + xr.slot * S::x_stage);
#pragma unroll
    for (int s = 0; s < 4; ++s) wgmma_rs<tokens>(acc, now[s], b + 2 * s);
    wgmma_commit();
    // While the tensor cores work: decode the next plane.
    int next = i + 1;
    if (next < planes) {
      if ((next & 3) == 0) {
        if (lane == 0) mbarrier_arrive(bars + 64 + wr.slot * 8);
        wr.next(S::weight_stages);
        mbarrier_wait(bars + wr.slot * 8, wr.phase);
        cell = w_smem + wr.slot * S::weight_stage + warp * cell_bytes(type);
        scales.load(cell, lane);
      }
      decode_plane<type>(cell, scales, next & 3, lane, then);
    }
    wgmma_wait<0>();
    previous = bars + 192 + xr.slot * 8;
    if (lane == 0) mbarrier_arrive(previous);
    xr.next(S::x_stages);
  };
  for (int i = 0; i < planes; i += 2) {
    step(i, a[0], a[1]);
    step(i + 1, a[1], a[0]);
  }
  const int row = row0 + warp * 16 + (lane >> 2), column = token0 + (lane & 3) * 2;
#pragma unroll
  for (int j = 0; j < tokens / 8; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float* out = p.y + static_cast<size_t>(column + j * 8 + c) * p.total_rows + row;
      out[0] = acc[j * 4 + c];
      out[8] = acc[j * 4 + 2 + c];
    }
  }
}

template <int type, int tokens>
__device__ __forceinline__ void tile(const Problem& p, int segment, int row_in_segment, int row0, unsigned char* smem) {
  using S = Shape<type, tokens>;
  const u32 bars = smem_address(smem);
  unsigned char* w_smem = smem + 1024 + S::x_stages * S::x_stage;
  const u32 x_smem = bars + 1024;
  const int token0 = blockIdx.x * tokens;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 8; ++i) {
      mbarrier_init(bars + i * 8, 1);
      mbarrier_init(bars + 64 + i * 8, 8);
      mbarrier_init(bars + 128 + i * 8, 1);
      mbarrier_init(bars + 192 + i * 8, 8);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      const unsigned char* w = p.weights[segment] + static_cast<size_t>(row_in_segment / 128) * (p.k / 256) * S::weight_stage;
      produce<type, tokens>(p, w, smem_address(w_smem), x_smem, bars, token0);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    consume<type, tokens>(p, w_smem, x_smem, bars, row0, token0);
  }
}

template <int first, int tokens>
__global__ void __launch_bounds__(kThreads, 1) gemm(Problem p) {
  extern __shared__ __align__(1024) unsigned char smem[];
  int row0 = blockIdx.y * 128;
  if (row0 < p.rows[0]) {
    tile<first, tokens>(p, 0, row0, row0, smem);
  } else if constexpr (first != cell_f16) {
    tile<cell_q6_k, tokens>(p, 1, row0 - p.rows[0], row0, smem);
  }
}

// The reference: the same chain on mma.sync, one warp a 16 x 8 piece, straight from global memory.
template <int type>
__global__ void reference(const unsigned char* weights, int row_base, int total_rows, const __half* x, float* y, int k,
                          int tokens) {
  int lane = threadIdx.x, cell_row = blockIdx.x, token0 = blockIdx.y * 8;
  float c[4] = {};
  CellScales<type> scales;
  u32 a[4][4];
  for (int k64 = 0; k64 < k / 64; ++k64) {
    const unsigned char* cell = weights + (static_cast<size_t>(cell_row / 8) * (k / 256) + k64 / 4) * 8 * cell_bytes(type) +
                                (cell_row % 8) * cell_bytes(type);
    scales.load(cell, lane);
    decode_plane<type>(cell, scales, k64 & 3, lane, a);
    int token = token0 + (lane >> 2);
    const u32* row = reinterpret_cast<const u32*>(x + (static_cast<size_t>(k64) * tokens + token) * 64);
    for (int s = 0; s < 4; ++s) {
      int t = lane & 3;
      u32 b0 = row[(((2 * s) ^ (token & 7)) * 4) + t], b1 = row[(((2 * s + 1) ^ (token & 7)) * 4) + t];
      mma_m16n8k16(c, a[s], b0, b1);
    }
  }
  int row = row_base + cell_row * 16 + (lane >> 2), token = token0 + (lane & 3) * 2;
  y[static_cast<size_t>(token) * total_rows + row] = c[0];
  y[static_cast<size_t>(token + 1) * total_rows + row] = c[1];
  y[static_cast<size_t>(token) * total_rows + row + 8] = c[2];
  y[static_cast<size_t>(token + 1) * total_rows + row + 8] = c[3];
}

__global__ void fill_x(__half* x, size_t n, u64 seed) {
  size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  float u = hash32(seed + i) / 4294967296.0f + hash32(~seed + i) / 4294967296.0f + hash32(seed * 3 + i) / 4294967296.0f;
  x[i] = __float2half((u - 1.5f) * 2.0f);
}
__global__ void count_different(const u32* a, const u32* b, size_t n, unsigned long long* different) {
  size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (i < n && a[i] != b[i]) atomicAdd(different, 1ull);
}

template <int first, int tokens>
float run(Problem p, const char* name, bool check) {
  using S = Shape<first, tokens>;
  using S6 = Shape<cell_q6_k, tokens>;
  int smem = 1024 + S::x_stages * S::x_stage + S::weight_stages * S::weight_stage;
  if (first != cell_f16) smem = std::max(smem, 1024 + S6::x_stages * S6::x_stage + S6::weight_stages * S6::weight_stage);
  CHECK(cudaFuncSetAttribute(gemm<first, tokens>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
  dim3 grid(p.tokens / tokens, p.total_rows / 128);
  float us = median_us(30, [](int) {}, [&](int) { gemm<first, tokens><<<grid, kThreads, smem>>>(p); });
  double flop = 2.0 * p.total_rows * p.k * p.tokens;
  unsigned long long different = 0;
  if (check) {
    float* y = p.y;
    size_t n = static_cast<size_t>(p.tokens) * p.total_rows;
    CHECK(cudaMalloc(&p.y, n * 4));
    CHECK(cudaMemset(p.y, 0xff, n * 4));
    reference<first><<<dim3(p.rows[0] / 16, p.tokens / 8), 32>>>(p.weights[0], 0, p.total_rows, p.x, p.y, p.k, p.tokens);
    if (p.rows[1])
      reference<cell_q6_k><<<dim3(p.rows[1] / 16, p.tokens / 8), 32>>>(p.weights[1], p.rows[0], p.total_rows, p.x, p.y, p.k,
                                                                      p.tokens);
    unsigned long long* counter;
    CHECK(cudaMalloc(&counter, 8));
    CHECK(cudaMemset(counter, 0, 8));
    count_different<<<static_cast<unsigned>((n + 255) / 256), 256>>>(reinterpret_cast<u32*>(y),
                                                                     reinterpret_cast<u32*>(p.y), n, counter);
    CHECK(cudaMemcpy(&different, counter, 8, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(p.y));
    CHECK(cudaFree(counter));
  }
  std::printf("{\"probe\":\"gemm\",\"case\":\"%s\",\"rows\":%d,\"k\":%d,\"tokens\":%d,\"tile_tokens\":%d,\"us\":%.1f,\"tflops\":%.1f%s",
              name, p.total_rows, p.k, p.tokens, tokens, us, flop / us * 1e-6, check ? "" : "}\n");
  if (check) std::printf(",\"bits_differing_from_mma\":%llu}\n", different);
  return us;
}

}  // namespace

int main() {
  for (auto [rows, k] : {std::pair{28672, 4096}, std::pair{6144, 4096}, std::pair{4096, 14336}}) {
    for (int tokens : {64, 512, 2048, 8192}) {
      int q6 = rows == 6144 ? 1024 : rows == 4096 ? 2048 : 0;
      Problem p{};
      p.k = k, p.tokens = tokens, p.total_rows = rows;
      unsigned char *w4, *w6, *wf;
      size_t cells = static_cast<size_t>(rows) / 16 * (k / 256);
      __half* x;
      CHECK(cudaMalloc(&w4, cells * cell_bytes(cell_q4_k)));
      CHECK(cudaMalloc(&w6, cells * cell_bytes(cell_q6_k)));
      CHECK(cudaMalloc(&wf, cells * cell_bytes(cell_f16)));
      CHECK(cudaMalloc(&x, static_cast<size_t>(tokens) * k * 2));
      CHECK(cudaMalloc(&p.y, static_cast<size_t>(tokens) * rows * 4));
      float scale = 1.0f / sqrtf(static_cast<float>(k));
      fill_random_cells<<<static_cast<unsigned>(cells), 128>>>(w4, cells, cell_q4_k, scale, 1);
      fill_random_cells<<<static_cast<unsigned>(cells), 128>>>(w6, cells, cell_q6_k, scale, 2);
      fill_random_cells<<<static_cast<unsigned>(cells), 128>>>(wf, cells, cell_f16, scale, 3);
      size_t n = static_cast<size_t>(tokens) * k;
      fill_x<<<static_cast<unsigned>((n + 255) / 256), 256>>>(x, n, 4);
      CHECK(cudaDeviceSynchronize());
      p.x = x;
      auto all = [&](auto tile_tokens) {
        constexpr int t = decltype(tile_tokens)::value;
        if (tokens % t) return;
        bool check = tokens <= 512;
        Problem f = p;
        f.weights[0] = wf, f.rows[0] = rows;
        float plain = run<cell_f16, t>(f, "f16 registers", check);
        Problem q = p;
        q.weights[0] = w4, q.rows[0] = rows;
        float q4 = run<cell_q4_k, t>(q, "q4_k", check);
        q.weights[0] = w4, q.weights[1] = w6, q.rows[0] = 0, q.rows[1] = rows;
        float all6 = run<cell_q4_k, t>(q, "q6_k", check);
        std::printf("{\"probe\":\"gemm\",\"fraction_of_f16\":{\"q4_k\":%.3f,\"q6_k\":%.3f}}\n", plain / q4, plain / all6);
        if (q6) {
          q.rows[0] = rows - q6, q.rows[1] = q6;
          float mixed = run<cell_q4_k, t>(q, "q4_k + q6_k", false);
          std::printf("{\"probe\":\"gemm\",\"fraction_mixed\":%.3f}\n", plain / mixed);
        }
      };
      all(std::integral_constant<int, 64>{});
      all(std::integral_constant<int, 128>{});
      all(std::integral_constant<int, 256>{});
      CHECK(cudaFree(w4));
      CHECK(cudaFree(w6));
      CHECK(cudaFree(wf));
      CHECK(cudaFree(x));
      CHECK(cudaFree(p.y));
    }
  }
  return 0;
}
