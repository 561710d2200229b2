// Probe c (issue 4): decode GEMV in the exact order (one mma.sync chain over ascending k16 for every 16 rows, no
// split-K) at the projections of Llama-3.1-8B; fraction of the measured read bandwidth (4.43 TB/s), weights cold in L2.
// One warp owns 16 rows and streams their cells through its own cp.async ring; no barrier between warps.

#include <cstring>

#include "common.cuh"

namespace {

/// x pre-arranged: [k / 64][lane t of a quad][8 words]: the B fragments of four k16 steps.
template <int type>
__global__ void gemv(const unsigned char* weights, int row_groups, const uint4* x, float* y, int k, int depth) {
  extern __shared__ __align__(128) unsigned char smem[];
  constexpr int bytes = cell_bytes(type), pieces = bytes / 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, warps = blockDim.x / 32;
  uint4* xs = reinterpret_cast<uint4*>(smem);
  unsigned char* ring = smem + k * 2 + warp * depth * bytes;
  const u32 ring_address = smem_address(ring);
  const int group = blockIdx.x * warps + warp, cells = k / 256;
  const bool live = group < row_groups;
  const unsigned char* source =
      weights + (static_cast<size_t>(group / 8) * cells * 8 + group % 8) * bytes;  // tiles of 8 cells
  int issued = 0;
  auto issue = [&](int slot) {
    if (live && issued < cells) {
      const unsigned char* s = source + static_cast<size_t>(issued) * 8 * bytes;
      for (int i = lane; i < pieces; i += 32) cp_async_16(ring_address + slot * bytes + i * 16, s + i * 16);
    }
    ++issued;
    cp_async_commit();
  };
  for (int i = 0; i < depth - 1; ++i) issue(i);
  for (int i = threadIdx.x; i < k / 8; i += blockDim.x) xs[i] = x[i];
  __syncthreads();
  if (!live) return;
  float c[4] = {};
  CellScales<type> scales;
  int slot = 0, fill = depth - 1;
  for (int cell = 0; cell < cells; ++cell) {
    // The groups still allowed in flight: all but the oldest.
    switch (depth) {
      case 4: cp_async_wait<2>(); break;
      case 8: cp_async_wait<6>(); break;
      default: cp_async_wait<14>(); break;
    }
    __syncwarp();
    issue(fill);
    const unsigned char* data = ring + slot * bytes;
    scales.load(data, lane);
    u32 a[2][4][4];
    decode_plane<type>(data, scales, 0, lane, a[0]);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      if (p < 3) decode_plane<type>(data, scales, p + 1, lane, a[(p + 1) & 1]);
      const uint4* f = xs + (cell * 4 + p) * 8 + (lane & 3) * 2;
      uint4 lo = f[0], hi = f[1];
      mma_m16n8k16(c, a[p & 1][0], lo.x, lo.y);
      mma_m16n8k16(c, a[p & 1][1], lo.z, lo.w);
      mma_m16n8k16(c, a[p & 1][2], hi.x, hi.y);
      mma_m16n8k16(c, a[p & 1][3], hi.z, hi.w);
    }
    __syncwarp();
    slot = slot + 1 == depth ? 0 : slot + 1;
    fill = fill + 1 == depth ? 0 : fill + 1;
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

template <int type>
void run(const char* name, const char* type_name, int rows, int k) {
  const int groups = rows / 16, cells = k / 256;
  const size_t bytes = static_cast<size_t>(groups) * cells * cell_bytes(type);
  const int copies = static_cast<int>(std::max<size_t>(2, (400ull << 20) / bytes));
  unsigned char* w;
  uint4* x;
  float* y;
  CHECK(cudaMalloc(&w, bytes * copies));
  CHECK(cudaMalloc(&x, k * 2));
  CHECK(cudaMalloc(&y, rows * 4));
  size_t all = static_cast<size_t>(groups) * cells * copies;
  fill_random_cells<<<static_cast<unsigned>(all), 128>>>(w, all, type, 1.0f / sqrtf(static_cast<float>(k)), 9);
  fill_x<<<(k + 255) / 256, 256>>>(reinterpret_cast<__half*>(x), k);
  int sms = 132;
  int warps = std::min(16, (groups + sms - 1) / sms);
  int depth = 16;
  while (depth > 4 && k * 2 + warps * depth * cell_bytes(type) > 220 * 1024) depth /= 2;
  int smem = k * 2 + warps * depth * cell_bytes(type);
  CHECK(cudaFuncSetAttribute(gemv<type>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  const int launches = 60;
  for (int i = 0; i < launches; ++i)
    gemv<type><<<(groups + warps - 1) / warps, warps * 32, smem, stream>>>(w + bytes * (i % copies), groups, x, y, k, depth);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  float us = median_us(15, [](int) {}, [&](int) { CHECK(cudaGraphLaunch(exec, 0)); }) / launches;
  std::printf(
      "{\"probe\":\"gemv\",\"projection\":\"%s\",\"type\":\"%s\",\"rows\":%d,\"k\":%d,\"warps\":%d,\"depth\":%d,\"us\":%.2f,"
      "\"tb_per_s\":%.3f,\"fraction_of_4.43\":%.3f}\n",
      name, type_name, rows, k, warps, depth, us, bytes / us * 1e-6, bytes / us * 1e-6 / 4.43);
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(w));
  CHECK(cudaFree(x));
  CHECK(cudaFree(y));
}

}  // namespace

int main() {
  run<cell_q4_k>("qkv", "q4_k", 6144, 4096);
  run<cell_q4_k>("o", "q4_k", 4096, 4096);
  run<cell_q4_k>("gate_up", "q4_k", 28672, 4096);
  run<cell_q4_k>("down", "q4_k", 4096, 14336);
  run<cell_q6_k>("down", "q6_k", 4096, 14336);
  run<cell_q6_k>("head", "q6_k", 128256, 4096);
  run<cell_f16>("gate_up", "f16", 28672, 4096);
  return 0;
}
