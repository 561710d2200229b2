// What one step costs where a decode kernel waits: chains of mma.sync and wgmma, sums that go from warp to warp, launches and
// grid barriers, and the pipes that decode weights. One warp or block unless said; cycles of clock64.

#include "common.cuh"

#include <functional>

__device__ u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

__device__ void mma(float (&c)[4], u32 a, u32 b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a), "r"(b));
}

constexpr int chain = 4096;

__global__ void mma_chain(float* out, long long* cycles) {
  float c[4] = {};
  const long long begin = clock64();
#pragma unroll 16
  for (int i = 0; i < chain; ++i) mma(c, threadIdx.x, threadIdx.x * 3);
  const long long end = clock64();
  out[threadIdx.x] = c[0] + c[1];
  if (threadIdx.x == 0) *cycles = end - begin;
}

/// Dependent m64n8k16 steps of one warpgroup, `batch` a group, one group under way while the next is issued.
template <bool a_in_registers, int batch>
__global__ void wgmma_chain(float* out, long long* cycles) {
  __shared__ __align__(1024) u32 memory[4096];
  for (int i = threadIdx.x; i < 4096; i += 128) memory[i] = 0;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  const auto descriptor = [](u32 address) {  // K-major, no swizzle: 128 bytes along K, 256 along rows
    return static_cast<u64>((address & 0x3ffff) >> 4) | u64{8} << 16 | u64{16} << 32;
  };
  const u64 a = descriptor(shared_address(memory)), b = descriptor(shared_address(memory) + 8192);
  float c[4] = {};
  const u32 r = threadIdx.x;
  const long long begin = clock64();
  for (int i = 0; i < chain / batch; ++i) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      if constexpr (a_in_registers) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, {%4,%4,%4,%4}, %5, 1, 1, 1, 0;"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(r), "l"(b + j * 16));
      } else {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "l"(a + j % 4 * 128), "l"(b + j * 16));
      }
    }
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  const long long end = clock64();
  out[threadIdx.x] = c[0] + c[1];
  if (threadIdx.x == 0) *cycles = end - begin;
}

/// Warps take turns of `steps` mma at one chain; the sums go on through shared memory and an mbarrier.
template <int steps>
__global__ void relay(float* out, long long* cycles, int warps, int turns) {
  __shared__ u64 barriers[8];
  __shared__ float2 sums[8][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, next = (warp + 1) % warps;
  const auto arrive = [](u32 barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
  };
  if (lane == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&barriers[warp])) : "memory");
  sums[warp][lane] = make_float2(0, 0);
  __syncthreads();
  if (threadIdx.x == 0) arrive(shared_address(&barriers[0]));
  const long long begin = clock64();
  float c[4];
  u32 phase = 0;
  for (int turn = 0; turn < turns; ++turn, phase ^= 1) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(
                     shared_address(&barriers[warp])),
                 "r"(phase)
                 : "memory");
    const float2 sum = sums[warp][lane];
    c[0] = c[1] = sum.x, c[2] = c[3] = sum.y;
#pragma unroll
    for (int i = 0; i < steps; ++i) mma(c, lane, lane * 3);
    sums[next][lane] = make_float2(c[0], c[2]);
    __syncwarp();
    if (lane == 0) arrive(shared_address(&barriers[next]));
  }
  const long long end = clock64();
  out[threadIdx.x] = c[0];
  if (threadIdx.x == 0) *cycles = end - begin;
}

/// One of a chain of launches that begin early: waits, brings x to shared memory, writes a little.
__global__ void link(const float4* x, float* y, int x_bytes) {
  extern __shared__ float4 memory[];
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
  for (int i = threadIdx.x; i < x_bytes / 16; i += blockDim.x) memory[i] = x[i];
  __syncthreads();
  if (threadIdx.x < 32) y[blockIdx.x * 32 + threadIdx.x] = reinterpret_cast<float*>(memory)[threadIdx.x] + 1;
}

/// The same steps in one launch with barriers of the grid between them.
__global__ void grid_steps(float* a, float* b, u32* barrier, int steps, int x_bytes) {
  extern __shared__ float4 memory[];
  for (int step = 0; step < steps; ++step) {
    const float4* x = reinterpret_cast<const float4*>(step % 2 != 0 ? b : a);
    float* y = step % 2 != 0 ? a : b;
    for (int i = threadIdx.x; i < x_bytes / 16; i += blockDim.x) memory[i] = __ldcg(x + i);
    __syncthreads();
    if (threadIdx.x < 32) y[blockIdx.x * 32 + threadIdx.x] = reinterpret_cast<float*>(memory)[threadIdx.x] + 1;
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(barrier) : "memory");
      u32 arrived;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(barrier) : "memory");
      } while (arrived < (step + 1) * gridDim.x);
    }
    __syncthreads();
  }
}

enum class Pipe { f16_to_f32, f32_to_f16x2, fma, logic, logic_and_fma, two_weights };

template <Pipe pipe>
__global__ void pipes(u32* out, long long* cycles, u32 mask) {
  u32 a[8];
  float f[8];
  for (int i = 0; i < 8; ++i) a[i] = mask + i * threadIdx.x, f[i] = static_cast<float>(a[i]);
  const auto to_f32 = [](u32 v) {
    float o;
    asm volatile("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, l;\n}" : "=f"(o) : "r"(v));
    return o;
  };
  const auto to_halves = [](float x, float y) {
    u32 o;
    asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(o) : "f"(x), "f"(y));
    return o;
  };
  const auto fma = [](float& x, float scale) { asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(scale), "f"(0.5f)); };
  const auto logic = [mask](u32& x) { asm volatile("lop3.b32 %0, %0, %1, %2, 0x6a;" : "+r"(x) : "r"(0x000f000f), "r"(mask)); };
  __syncthreads();
  const long long begin = clock64();
#pragma unroll 4
  for (int round = 0; round < 512; ++round) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (pipe == Pipe::f16_to_f32) f[i] = to_f32(__float_as_uint(f[i]));
      if constexpr (pipe == Pipe::f32_to_f16x2) a[i] = to_halves(__uint_as_float(a[i]), f[i]);
      if constexpr (pipe == Pipe::fma || pipe == Pipe::logic_and_fma) fma(f[i], 1.5f);
      if constexpr (pipe == Pipe::logic || pipe == Pipe::logic_and_fma) logic(a[i]);
      if constexpr (pipe == Pipe::two_weights) {
        u32 codes = a[i];
        logic(codes);
        float x = to_f32(codes), y = to_f32(codes >> 16);
        fma(x, f[i]), fma(y, f[i]);
        a[i] = to_halves(x, y);
      }
    }
  }
  const long long end = clock64();
  u32 sum = 0;
  for (int i = 0; i < 8; ++i) sum += a[i] + __float_as_uint(f[i]);
  out[threadIdx.x] = sum;
  if (threadIdx.x == 0) *cycles = end - begin;
}

/// Cycles that the second run of `launch` took.
double cycles_of(long long* cycles, const std::function<void()>& launch) {
  for (int i = 0; i < 2; ++i) {
    launch();
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
  }
  long long value;
  CHECK(cudaMemcpy(&value, cycles, sizeof value, cudaMemcpyDeviceToHost));
  return static_cast<double>(value);
}

template <Pipe pipe>
void print_pipe(const char* name, u32* out, long long* cycles) {
  for (const int warps : {1, 4, 7}) {
    const double n = cycles_of(cycles, [&] { pipes<pipe><<<1, warps * 128>>>(out, cycles, 5); });
    std::printf("{\"probe\":\"pipe\",\"what\":\"%s\",\"warps_a_subcore\":%d,\"cycles\":%.2f}\n", name, warps, n / (512 * 8 * warps));
  }
}

void print_launches(float* a, float* b) {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaFuncSetAttribute(link, cudaFuncAttributeMaxDynamicSharedMemorySize, 120000));
  for (const auto& [x_bytes, threads, shared] : {std::tuple{1024, 256, 20000}, {16384, 256, 20000}, {16384, 256, 120000},
                                                 {16384, 1024, 120000}, {28672, 448, 120000}}) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 256; ++i) {
      cudaLaunchAttribute early{};
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t config{};
      config.gridDim = 132, config.blockDim = threads, config.dynamicSmemBytes = shared, config.stream = stream;
      config.attrs = &early, config.numAttrs = 1;
      CHECK(cudaLaunchKernelEx(&config, link, reinterpret_cast<const float4*>(i % 2 != 0 ? b : a), i % 2 != 0 ? a : b, x_bytes));
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    std::vector<float> times;
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    for (int i = 0; i < 30; ++i) {
      CHECK(cudaEventRecord(begin, stream));
      CHECK(cudaGraphLaunch(executable, stream));
      CHECK(cudaEventRecord(end, stream));
      CHECK(cudaEventSynchronize(end));
      float ms;
      CHECK(cudaEventElapsedTime(&ms, begin, end));
      times.push_back(ms * 1000 / 256);
    }
    std::sort(times.begin(), times.end());
    std::printf("{\"probe\":\"launch\",\"x_bytes\":%d,\"threads\":%d,\"shared\":%d,\"us\":%.2f}\n", x_bytes, threads, shared, times[15]);
  }
}

void print_grid_barriers(float* a, float* b, u32* barrier) {
  constexpr int steps = 1000;
  CHECK(cudaFuncSetAttribute(grid_steps, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
  for (const int x_bytes : {1024, 16384, 57344}) {
    const float us = median_us(
        5, [&](int) { CHECK(cudaMemset(barrier, 0, sizeof(u32))); }, [&](int) { grid_steps<<<132, 512, 65536>>>(a, b, barrier, steps, x_bytes); });
    std::printf("{\"probe\":\"grid barrier\",\"x_bytes\":%d,\"us\":%.2f}\n", x_bytes, us / steps);
  }
}

int main() {
  long long* cycles;
  float *a, *b;
  u32* barrier;
  CHECK(cudaMalloc(&cycles, sizeof *cycles));
  CHECK(cudaMalloc(&barrier, sizeof *barrier));
  for (float** buffer : {&a, &b}) {
    CHECK(cudaMalloc(buffer, 1 << 20));
    CHECK(cudaMemset(*buffer, 0, 1 << 20));
  }
  const auto print_chain = [](const char* what, double n) { std::printf("{\"probe\":\"chain\",\"what\":\"%s\",\"cycles\":%.2f}\n", what, n / chain); };
  print_chain("mma.sync m16n8k16", cycles_of(cycles, [&] { mma_chain<<<1, 32>>>(a, cycles); }));
  print_chain("wgmma m64n8k16, A in registers", cycles_of(cycles, [&] { wgmma_chain<true, 16><<<1, 128>>>(a, cycles); }));
  print_chain("wgmma m64n8k16, A in shared memory", cycles_of(cycles, [&] { wgmma_chain<false, 16><<<1, 128>>>(a, cycles); }));
  for (const int warps : {2, 4, 8}) {
    const double n = 512.0 * warps;
    std::printf("{\"probe\":\"relay\",\"warps\":%d,\"cycles_of_0\":%.1f,\"cycles_of_4\":%.1f,\"cycles_of_16\":%.1f}\n", warps,
                cycles_of(cycles, [&] { relay<0><<<1, warps * 32>>>(a, cycles, warps, 512); }) / n,
                cycles_of(cycles, [&] { relay<4><<<1, warps * 32>>>(a, cycles, warps, 512); }) / n,
                cycles_of(cycles, [&] { relay<16><<<1, warps * 32>>>(a, cycles, warps, 512); }) / n);
  }
  print_launches(a, b);
  print_grid_barriers(a, b, barrier);
  u32* out = reinterpret_cast<u32*>(a);
  print_pipe<Pipe::f16_to_f32>("cvt.f32.f16", out, cycles);
  print_pipe<Pipe::f32_to_f16x2>("cvt.rn.f16x2.f32", out, cycles);
  print_pipe<Pipe::fma>("fma.f32", out, cycles);
  print_pipe<Pipe::logic>("lop3", out, cycles);
  print_pipe<Pipe::logic_and_fma>("lop3 and fma", out, cycles);
  print_pipe<Pipe::two_weights>("two weights: lop3, 2 cvt, 2 fma, cvt", out, cycles);
  return 0;
}
