// Probe c (issue 4): decode GEMV in the exact order (one mma.sync chain over ascending k16 for every 16 rows, no
// split-K) at the projections of Llama-3.1-8B; fraction of the measured read bandwidth (4.43 TB/s), weights cold in L2.
// One warp owns 16 rows and streams their cells through its own cp.async ring; no barrier between warps.

#include <cstring>

#include "common.cuh"

namespace {

/// x pre-arranged: [k / 64][lane t of a quad][8 words]: the B fragments of four k16 steps.
struct XFragments {
  uint4 lo, hi;
  __device__ __forceinline__ void load(const uint4* xs, int plane, int lane) {
    const uint4* f = xs + plane * 8 + (lane & 3) * 2;
    lo = f[0], hi = f[1];
  }
};
__device__ __forceinline__ void chain(float (&c)[4], const u32 (&a)[4][4], const XFragments& x) {
  mma_m16n8k16(c, a[0], x.lo.x, x.lo.y);
  mma_m16n8k16(c, a[1], x.lo.z, x.lo.w);
  mma_m16n8k16(c, a[2], x.hi.x, x.hi.y);
  mma_m16n8k16(c, a[3], x.hi.z, x.hi.w);
}

/// A warp's ring of whole cells, each one bulk copy.
template <int type>
struct CellRing {
  u32 data, bars;
  const unsigned char *base, *source;
  int depth, cells, step, next, slot = 0, phase = 0;
  __device__ __forceinline__ void copy(int into, int lane) {
    if (next < cells && lane == 0) {
      mbarrier_expect_tx(bars + into * 8, cell_bytes(type));
      bulk_copy(data + into * cell_bytes(type), source + static_cast<size_t>(next) * 8 * cell_bytes(type), cell_bytes(type),
                bars + into * 8);
    }
    next += step;
  }
  __device__ __forceinline__ const unsigned char* wait() {
    mbarrier_wait(bars + slot * 8, phase);
    return base + slot * cell_bytes(type);
  }
  /// The slot has been read by the whole warp: fill it again.
  __device__ __forceinline__ void release(int lane) {
    __syncwarp();
    copy(slot, lane);
    if (++slot == depth) slot = 0, phase ^= 1;
  }
};

/// `decoders` warps decode a row group's cells in turn into fragments in shared memory, one warp runs the chain;
/// with 0 decoders one warp does both.
template <int type, int decoders>
__global__ void gemv(const unsigned char* weights, int row_groups, int block_groups, const uint4* x, float* y, int k,
                     int depth) {
  extern __shared__ __align__(128) unsigned char smem[];
  constexpr int bytes = cell_bytes(type), roles = decoders + 1, rings = decoders ? decoders : 1;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, local = warp / roles, role = warp % roles;
  const int group = blockIdx.x * block_groups + local, cells = k / 256;
  unsigned char* group_smem = smem + k * 2 + static_cast<size_t>(local) * rings * (256 + depth * bytes + (decoders ? 8192 : 0));
  const uint4* xs = reinterpret_cast<const uint4*>(smem);
  const int ring_index = role ? role - 1 : 0;
  unsigned char* mine = group_smem + ring_index * 256;
  unsigned char* fragments = group_smem + rings * 256;
  unsigned char* raw = fragments + (decoders ? rings * 8192 : 0) + ring_index * depth * bytes;
  CellRing<type> ring{smem_address(raw), smem_address(mine), raw, weights + (static_cast<size_t>(group / 8) * cells * 8 + group % 8) * bytes,
                      depth, group < row_groups ? cells : 0, rings, ring_index};
  const bool loads = decoders == 0 || role > 0;
  if (loads && lane == 0) {
    for (int i = 0; i < depth; ++i) mbarrier_init(ring.bars + i * 8, 1);
    for (int i = 0; i < 8; ++i) mbarrier_init(ring.bars + 128 + i * 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncwarp();
  if (loads)
    for (int i = 0; i < depth; ++i) ring.copy(i, lane);
  for (int i = threadIdx.x; i < k / 8; i += blockDim.x) const_cast<uint4*>(xs)[i] = x[i];
  __syncthreads();
  if (group >= row_groups) return;
  float c[4] = {};
  if constexpr (decoders == 0) {
    CellScales<type> scales;
    u32 a[2][4][4];
    XFragments f[2];
    for (int cell = 0; cell < cells; ++cell) {
      const unsigned char* data = ring.wait();
      scales.load(data, lane);
      decode_plane<type>(data, scales, 0, lane, a[0]);
      f[0].load(xs, cell * 4, lane);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        if (p < 3) {
          decode_plane<type>(data, scales, p + 1, lane, a[(p + 1) & 1]);
          f[(p + 1) & 1].load(xs, cell * 4 + p + 1, lane);
        }
        if (p == 3) ring.release(lane);
        chain(c, a[p & 1], f[p & 1]);
      }
    }
  } else if (role > 0) {
    CellScales<type> scales;
    uint4* out = reinterpret_cast<uint4*>(fragments + ring_index * 8192) + lane;
    const u32 full = ring.bars + 128, empty = full + 32;
    int phase = 0;
    for (int cell = ring_index; cell < cells; cell += decoders) {
      const unsigned char* data = ring.wait();
      scales.load(data, lane);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        u32 a[4][4];
        decode_plane<type>(data, scales, p, lane, a);
        if (p == 0) mbarrier_wait(empty, phase ^ 1);
#pragma unroll
        for (int s = 0; s < 4; ++s) out[(p * 4 + s) * 32] = make_uint4(a[s][0], a[s][1], a[s][2], a[s][3]);
      }
      __syncwarp();
      if (lane == 0) mbarrier_arrive(full);
      ring.release(lane);
      phase ^= 1;
    }
    return;
  } else {
    const u32 bars = smem_address(group_smem);
    const uint4* in = reinterpret_cast<const uint4*>(fragments) + lane;
    u32 a[2][4][4];
    XFragments f[2];
    int decoder = 0, phase = 0;
    auto fetch = [&](int plane, u32 (&to)[4][4], XFragments& xf) {
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        uint4 v = in[decoder * 512 + ((plane & 3) * 4 + s) * 32];
        to[s][0] = v.x, to[s][1] = v.y, to[s][2] = v.z, to[s][3] = v.w;
      }
      xf.load(xs, plane, lane);
    };
    mbarrier_wait(bars + 128, 0);
    fetch(0, a[0], f[0]);
    for (int cell = 0; cell < cells; ++cell) {
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        if (p < 3) {
          fetch(cell * 4 + p + 1, a[(p + 1) & 1], f[(p + 1) & 1]);
        } else {
          __syncwarp();
          if (lane == 0) mbarrier_arrive(bars + decoder * 256 + 160);
          if (cell + 1 < cells) {
            if (++decoder == decoders) decoder = 0, phase ^= 1;
            mbarrier_wait(bars + decoder * 256 + 128, phase);
            fetch(cell * 4 + 4, a[0], f[0]);
          }
        }
        chain(c, a[p & 1], f[p & 1]);
      }
    }
  }
  if ((lane & 3) == 0) {
    y[group * 16 + (lane >> 2)] = c[0];
    y[group * 16 + 8 + (lane >> 2)] = c[2];
  }
}

__global__ void fill_x(__half* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = __float2half((hash32(i * 7919ull + 5) / 4294967296.0f - 0.5f) * 3.4f);
}

template <int type, int decoders>
void run(const char* name, const char* type_name, int rows, int k, int block_groups, int depth) {
  const int groups = rows / 16, cells = k / 256, rings = decoders ? decoders : 1;
  const size_t bytes = static_cast<size_t>(groups) * cells * cell_bytes(type);
  const int copies = static_cast<int>(std::max<size_t>(2, (400ull << 20) / bytes));
  const int smem = k * 2 + block_groups * rings * (256 + depth * cell_bytes(type) + (decoders ? 8192 : 0));
  if (smem > 227 * 1024 || depth > 16 || (decoders == 1 && block_groups == 14)) return;
  unsigned char* w;
  uint4* x;
  float* y;
  CHECK(cudaMalloc(&w, bytes * copies));
  CHECK(cudaMalloc(&x, k * 2));
  CHECK(cudaMalloc(&y, rows * 4));
  size_t all = static_cast<size_t>(groups) * cells * copies;
  fill_random_cells<<<static_cast<unsigned>(all), 128>>>(w, all, type, 1.0f / sqrtf(static_cast<float>(k)), 9);
  fill_x<<<(k + 255) / 256, 256>>>(reinterpret_cast<__half*>(x), k);
  CHECK(cudaFuncSetAttribute(gemv<type, decoders>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  const int launches = 60, threads = block_groups * (decoders + 1) * 32, blocks = (groups + block_groups - 1) / block_groups;
  for (int i = 0; i < launches; ++i)
    gemv<type, decoders><<<blocks, threads, smem, stream>>>(w + bytes * (i % copies), groups, block_groups, x, y, k, depth);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  float us = median_us(15, [](int) {}, [&](int) { CHECK(cudaGraphLaunch(exec, 0)); }) / launches;
  std::vector<float> host(rows);
  CHECK(cudaMemcpy(host.data(), y, rows * 4, cudaMemcpyDeviceToHost));
  u32 bits = 0;
  for (float v : host) bits = bits * 31 + reinterpret_cast<u32&>(v);
  std::printf(
      "{\"probe\":\"gemv\",\"projection\":\"%s\",\"type\":\"%s\",\"rows\":%d,\"k\":%d,\"decoders\":%d,\"block_groups\":%d,"
      "\"depth\":%d,\"us\":%.2f,\"tb_per_s\":%.3f,\"fraction_of_4.43\":%.3f,\"bits\":\"%08x\"}\n",
      name, type_name, rows, k, decoders, block_groups, depth, us, bytes / us * 1e-6, bytes / us * 1e-6 / 4.43, bits);
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(w));
  CHECK(cudaFree(x));
  CHECK(cudaFree(y));
}

template <int type>
void projection(const char* name, const char* type_name, int rows, int k) {
  for (int depth : {2, 4, 8}) {
    for (int groups : {1, 2, 3, 4, 7, 14}) {
      int per_sm = (rows / 16 + 131) / 132;
      if (groups > per_sm || (per_sm >= 4 && groups < 4)) continue;
      run<type, 0>(name, type_name, rows, k, groups, depth);
      run<type, 1>(name, type_name, rows, k, groups, depth);
      if (groups < 14) run<type, 2>(name, type_name, rows, k, groups, depth);
      if (groups < 7) run<type, 4>(name, type_name, rows, k, groups, depth);
      if (groups < 4) run<type, 7>(name, type_name, rows, k, groups, depth);
    }
  }
}

}  // namespace

int main(int argc, char**) {
  if (argc > 1) {  // one configuration, for a profiler
    run<cell_q4_k, 7>("down", "q4_k", 4096, 14336, 2, 2);
    run<cell_q4_k, 0>("gate_up", "q4_k", 28672, 4096, 14, 2);
    return 0;
  }
  projection<cell_q4_k>("qkv", "q4_k", 6144, 4096);
  projection<cell_q4_k>("o", "q4_k", 4096, 4096);
  projection<cell_q4_k>("gate_up", "q4_k", 28672, 4096);
  projection<cell_q4_k>("down", "q4_k", 4096, 14336);
  projection<cell_q6_k>("down", "q6_k", 4096, 14336);
  projection<cell_q6_k>("head", "q6_k", 128256, 4096);
  return 0;
}
