// A stand-in for cuBLASLt, loaded with QUERN_CUBLASLT: it multiplies nothing, and tells what it was
// asked for (cublas_lt.h).

#include "tests/support/fake_cuda/cublas_lt.h"

#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

namespace {

struct Object {
  uint64_t rows, columns;
};

std::atomic<int64_t> live{0};
std::atomic<int64_t> fail_in{-1};
std::mutex mutex;
std::vector<FakeMatmul> matmuls;

int make(Object** out, uint64_t rows = 0, uint64_t columns = 0) {
  *out = new Object{rows, columns};
  ++live;
  return 0;
}

int drop(Object* object) {
  delete object;
  --live;
  return 0;
}

}  // namespace

// The C interface, as runtime/cuda/cublas_lt.cpp declares it.
#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT size_t cublasLtGetVersion() {
  return 130000;
}
EXPORT const char* cublasLtGetStatusString(int status) {
  return status == 0 ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_EXECUTION_FAILED";
}
EXPORT int cublasLtCreate(Object** out) {
  return make(out);
}
EXPORT int cublasLtDestroy(Object* object) {
  return drop(object);
}
EXPORT int cublasLtMatmulDescCreate(Object** out, int, int) {
  return make(out);
}
EXPORT int cublasLtMatmulDescDestroy(Object* object) {
  return drop(object);
}
EXPORT int cublasLtMatmulDescSetAttribute(Object*, int, const void*, size_t) {
  return 0;
}
EXPORT int cublasLtMatrixLayoutCreate(Object** out, int, uint64_t rows, uint64_t columns, int64_t) {
  return make(out, rows, columns);
}
EXPORT int cublasLtMatrixLayoutDestroy(Object* object) {
  return drop(object);
}
EXPORT int cublasLtMatmulPreferenceCreate(Object** out) {
  return make(out);
}
EXPORT int cublasLtMatmulPreferenceDestroy(Object* object) {
  return drop(object);
}
EXPORT int cublasLtMatmulPreferenceSetAttribute(Object*, int, const void*, size_t) {
  return 0;
}
EXPORT int cublasLtMatmulAlgoGetHeuristic(Object*, Object*, Object*, Object*, Object*, Object*,
                                          Object*, int, void*, int* found) {
  *found = 1;  // the result's state is 0 already: success
  return 0;
}
EXPORT int cublasLtMatmul(Object*, Object*, const void* alpha, const void* a, Object* a_layout,
                          const void* b, Object* b_layout, const void* beta, const void* c, Object*,
                          void* d, Object*, const void*, void*, size_t, void*) {
  if (fail_in >= 0 && fail_in-- == 0) return 13;
  const std::lock_guard lock(mutex);
  // Row-major C[m][n] is the library's n x m matrix: its first factor is our second.
  matmuls.push_back({.m = static_cast<uint32_t>(b_layout->columns),
                     .n = static_cast<uint32_t>(a_layout->columns),
                     .k = static_cast<uint32_t>(a_layout->rows),
                     .alpha = *static_cast<const float*>(alpha),
                     .beta = *static_cast<const float*>(beta),
                     .a = b,
                     .b = a,
                     .added = c,
                     .c = d});
  return 0;
}

EXPORT uint64_t fake_cublas_lt_matmuls(FakeMatmul* out, uint64_t most) {
  const std::lock_guard lock(mutex);
  for (uint64_t i = 0; i < most && i < matmuls.size(); ++i) out[i] = matmuls[i];
  return matmuls.size();
}
EXPORT void fake_cublas_lt_reset(int64_t fail) {
  const std::lock_guard lock(mutex);
  matmuls.clear();
  fail_in = fail;
}
EXPORT int64_t fake_cublas_lt_live() {
  return live;
}
