#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "runtime/cuda/device.h"

namespace quern::cuda {

/// cuBLASLt, loaded when it is first needed: for the GEMMs of many rows of fast plans, and as the
/// control that benchmarks measure beside Quern's own kernels. Looked for at QUERN_CUBLASLT (a
/// file), then by the names libcublasLt.so.13, .12 and libcublasLt.so where the loader finds them,
/// then in /usr/local/cuda*/lib64 and lib.
class CublasLt {
 public:
  /// The loaded library. Throws Error (`failed`) with a remedy where there is none or it lacks a
  /// function; the same error every time, until a library can be loaded. Needs no GPU.
  static const CublasLt& get();
  /// What is wrong, or empty where `get` succeeds: for `quern doctor`.
  static std::string problem();

  /// "13.1.0 (libcublasLt.so.13)".
  std::string version() const;
  const std::filesystem::path& path() const { return path_; }

  struct Functions;  ///< Its C interface (cublas_lt.cpp).
  const Functions& functions() const { return *functions_; }

 private:
  CublasLt() = default;
  static CublasLt load();
  const Functions* functions_ = nullptr;
  std::filesystem::path path_;
};

/// What products on one stream share: cuBLASLt's handle and workspace.
class CublasWorkspace {
 public:
  static constexpr uint64_t bytes = uint64_t{32} << 20;

  /// Throws Error: `failed` where the library is missing, `does_not_fit` without memory.
  explicit CublasWorkspace(std::shared_ptr<Device> device);
  ~CublasWorkspace();
  CublasWorkspace(const CublasWorkspace&) = delete;
  CublasWorkspace& operator=(const CublasWorkspace&) = delete;

 private:
  friend class CublasGemm;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// One size of C[m][n] = sum over k of A[m][k] * B[n][k], A and B f16 and C f32, all in rows
/// without padding, summed in f32: what a projection of m tokens by a weight of n rows computes.
/// The algorithm is the first that cuBLASLt's heuristic names for it with that workspace.
class CublasGemm {
 public:
  /// k and n multiples of 8. Throws Error (`failed`) where the library has no algorithm for the
  /// size.
  CublasGemm(std::shared_ptr<const CublasWorkspace> workspace, uint32_t m, uint32_t n, uint32_t k);
  /// With a workspace of its own.
  CublasGemm(std::shared_ptr<Device> device, uint32_t m, uint32_t n, uint32_t k);
  ~CublasGemm();
  CublasGemm(const CublasGemm&) = delete;
  CublasGemm& operator=(const CublasGemm&) = delete;

  /// Addresses are multiples of 64.
  struct Matrices {
    DevicePointer a, b, c;
    DevicePointer added = 0;  ///< As C, and may be C itself: added to the products. 0: nothing is.
    float alpha = 1;          ///< The products are multiplied by it first.
  };
  /// Launches it on the stream. Calls share the workspace: use one stream.
  void run(const StreamQueue& stream, const Matrices& matrices) const;
  void run(const StreamQueue& stream, DevicePointer a, DevicePointer b, DevicePointer c) const {
    run(stream, {.a = a, .b = b, .c = c});
  }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quern::cuda
