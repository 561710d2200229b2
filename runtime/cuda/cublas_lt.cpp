#include "runtime/cuda/cublas_lt.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "models/error.h"
#include "models/shared_library.h"

namespace quern::cuda {
namespace {

// The types and values of the C interface as cuBLAS's documentation gives them; declared here
// because no CUDA header may be needed.
using Status = int;
struct HandleTag;
struct MatmulTag;
struct LayoutTag;
struct PreferenceTag;
using Handle = HandleTag*;
using Matmul = MatmulTag*;
using Layout = LayoutTag*;
using Preference = PreferenceTag*;

constexpr int real_32f = 0;                  // CUDA_R_32F
constexpr int real_16f = 2;                  // CUDA_R_16F
constexpr int compute_32f = 68;              // CUBLAS_COMPUTE_32F
constexpr int32_t transpose = 1;             // CUBLAS_OP_T
constexpr int matmul_transa = 3;             // CUBLASLT_MATMUL_DESC_TRANSA, an int32_t
constexpr int preference_max_workspace = 1;  // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, a uint64_t
// CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES and those of B, C, D behind it, each a uint32_t
constexpr int preference_alignments[] = {5, 6, 7, 8};
constexpr uint32_t alignment_bytes = 64;
constexpr Status allocation_failed = 3;  // CUBLAS_STATUS_ALLOC_FAILED

struct Algorithm {
  uint64_t data[8];
};
struct HeuristicResult {
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96, "cublasLtMatmulHeuristicResult_t");

constexpr std::string_view remedy =
    "install the CUDA toolkit 12 or 13, or the PyPI package nvidia-cublas and set QUERN_CUBLASLT "
    "to "
    "its libcublasLt.so.13";

}  // namespace

struct CublasLt::Functions {
  size_t (*version)();
  const char* (*status_string)(Status);
  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  Status (*matmul_create)(Matmul*, int compute_type, int scale_type);
  Status (*matmul_destroy)(Matmul);
  Status (*matmul_set)(Matmul, int attribute, const void* value, size_t bytes);
  Status (*layout_create)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t leading);
  Status (*layout_destroy)(Layout);
  Status (*preference_create)(Preference*);
  Status (*preference_destroy)(Preference);
  Status (*preference_set)(Preference, int attribute, const void* value, size_t bytes);
  Status (*heuristic)(Handle, Matmul, Layout a, Layout b, Layout c, Layout d, Preference,
                      int wanted, HeuristicResult* results, int* found);
  Status (*matmul)(Handle, Matmul, const void* alpha, const void* a, Layout, const void* b, Layout,
                   const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*,
                   void* workspace, size_t workspace_bytes, Stream);
};

namespace {

template <class F>
void bind(void* library, const char* symbol, F& function) {
  function = reinterpret_cast<F>(dlsym(library, symbol));
  if (function == nullptr) {
    throw Error(ErrorKind::failed, "cuBLASLt",
                fmt::format("the library has no function {}", symbol), remedy);
  }
}

void check_status(Status status, std::string_view what) {
  if (status == 0) return;
  throw Error(
      status == allocation_failed ? ErrorKind::does_not_fit : ErrorKind::failed, "cuBLASLt",
      fmt::format("{} failed ({})", what, CublasLt::get().functions().status_string(status)));
}

/// What a create function of the library made, destroyed with its own.
template <class T>
class Owned {
 public:
  explicit Owned(Status (*destroy)(T)) : destroy_(destroy) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (value_ != nullptr) destroy_(value_);
  }
  T get() const { return value_; }
  T* out() { return &value_; }

 private:
  Status (*destroy_)(T);
  T value_ = nullptr;
};

}  // namespace

CublasLt CublasLt::load() {
  const auto [library, path] =
      load_library({.thing = "cuBLASLt",
                    .variable = "QUERN_CUBLASLT",
                    .wanted = "libcublasLt",
                    .candidates = cuda_toolkit_candidates("libcublasLt", {"lib64", "lib"}),
                    .remedy = remedy,
                    .remedy_of_given = remedy});
  CublasLt loaded;
  loaded.path_ = path;
  static Functions functions;
  bind(library, "cublasLtGetVersion", functions.version);
  bind(library, "cublasLtGetStatusString", functions.status_string);
  bind(library, "cublasLtCreate", functions.create);
  bind(library, "cublasLtDestroy", functions.destroy);
  bind(library, "cublasLtMatmulDescCreate", functions.matmul_create);
  bind(library, "cublasLtMatmulDescDestroy", functions.matmul_destroy);
  bind(library, "cublasLtMatmulDescSetAttribute", functions.matmul_set);
  bind(library, "cublasLtMatrixLayoutCreate", functions.layout_create);
  bind(library, "cublasLtMatrixLayoutDestroy", functions.layout_destroy);
  bind(library, "cublasLtMatmulPreferenceCreate", functions.preference_create);
  bind(library, "cublasLtMatmulPreferenceDestroy", functions.preference_destroy);
  bind(library, "cublasLtMatmulPreferenceSetAttribute", functions.preference_set);
  bind(library, "cublasLtMatmulAlgoGetHeuristic", functions.heuristic);
  bind(library, "cublasLtMatmul", functions.matmul);
  loaded.functions_ = &functions;
  return loaded;
}

const CublasLt& CublasLt::get() {
  static std::mutex mutex;
  static std::optional<CublasLt> loaded;
  const std::lock_guard lock(mutex);
  if (!loaded) loaded.emplace(load());
  return *loaded;
}

std::string CublasLt::problem() {
  try {
    get();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::string CublasLt::version() const {
  const size_t number = functions_->version();
  return fmt::format("{}.{}.{} ({})", number / 10000, number / 100 % 100, number % 100,
                     path_.filename().string());
}

struct CublasWorkspace::Impl {
  explicit Impl(std::shared_ptr<Device> device)
      : functions(CublasLt::get().functions()),
        memory(device, bytes, "cuBLASLt's workspace"),
        handle(functions.destroy),
        owner(std::move(device)) {}

  const CublasLt::Functions& functions;
  DeviceBuffer memory;
  Owned<Handle> handle;
  std::shared_ptr<Device> owner;
};

CublasWorkspace::CublasWorkspace(std::shared_ptr<Device> device) {
  device->use();
  impl_ = std::make_unique<Impl>(std::move(device));
  check_status(impl_->functions.create(impl_->handle.out()), "its start");
}

CublasWorkspace::~CublasWorkspace() {
  if (impl_ != nullptr) impl_->owner->use_to_release();
}

struct CublasGemm::Impl {
  Impl(const CublasLt::Functions& f, std::shared_ptr<const CublasWorkspace> shared)
      : workspace(std::move(shared)),
        matmul(f.matmul_destroy),
        a(f.layout_destroy),
        b(f.layout_destroy),
        c(f.layout_destroy) {}

  std::shared_ptr<const CublasWorkspace> workspace;
  Owned<Matmul> matmul;
  Owned<Layout> a, b, c;
  Algorithm algorithm{};
};

CublasGemm::CublasGemm(std::shared_ptr<Device> device, uint32_t m, uint32_t n, uint32_t k)
    : CublasGemm(std::make_shared<CublasWorkspace>(std::move(device)), m, n, k) {}

// The library's matrices are columns. A row-major C[m][n] is its n x m matrix, computed as
// B^T (n x k) times A (k x m): B[n][k] lies there as k x n and is transposed, A[m][k] as k x m.
CublasGemm::CublasGemm(std::shared_ptr<const CublasWorkspace> workspace, uint32_t m, uint32_t n,
                       uint32_t k) {
  const CublasWorkspace::Impl& shared = *workspace->impl_;
  const CublasLt::Functions& f = shared.functions;
  shared.owner->use();
  impl_ = std::make_unique<Impl>(f, std::move(workspace));
  check_status(f.matmul_create(impl_->matmul.out(), compute_32f, real_32f), "a description");
  check_status(f.matmul_set(impl_->matmul.get(), matmul_transa, &transpose, sizeof(transpose)),
               "a description");
  check_status(f.layout_create(impl_->b.out(), real_16f, k, n, k), "a layout");
  check_status(f.layout_create(impl_->a.out(), real_16f, k, m, k), "a layout");
  check_status(f.layout_create(impl_->c.out(), real_32f, n, m, n), "a layout");
  Owned<Preference> preference(f.preference_destroy);
  check_status(f.preference_create(preference.out()), "a preference");
  constexpr uint64_t workspace_bytes = CublasWorkspace::bytes;
  check_status(f.preference_set(preference.get(), preference_max_workspace, &workspace_bytes,
                                sizeof(workspace_bytes)),
               "a preference");
  for (const int attribute : preference_alignments) {
    check_status(
        f.preference_set(preference.get(), attribute, &alignment_bytes, sizeof(alignment_bytes)),
        "a preference");
  }
  HeuristicResult result{};
  int found = 0;
  const Status status =
      f.heuristic(shared.handle.get(), impl_->matmul.get(), impl_->b.get(), impl_->a.get(),
                  impl_->c.get(), impl_->c.get(), preference.get(), 1, &result, &found);
  if (status == 0 && found == 0) {
    throw Error(ErrorKind::failed, "cuBLASLt",
                fmt::format("it has no algorithm for {} x {} x {}", m, n, k));
  }
  check_status(status, fmt::format("the choice of an algorithm for {} x {} x {}", m, n, k));
  check_status(result.state, fmt::format("the choice of an algorithm for {} x {} x {}", m, n, k));
  impl_->algorithm = result.algorithm;
}

CublasGemm::~CublasGemm() = default;

void CublasGemm::run(const StreamQueue& stream, const Matrices& matrices) const {
  const CublasWorkspace::Impl& shared = *impl_->workspace->impl_;
  shared.owner->use();
  const auto pointer = [](DevicePointer address) { return std::bit_cast<void*>(address); };
  const float alpha = matrices.alpha, beta = matrices.added == 0 ? 0 : 1;
  void* out = pointer(matrices.c);
  const void* added = matrices.added == 0 ? out : pointer(matrices.added);
  check_status(
      shared.functions.matmul(shared.handle.get(), impl_->matmul.get(), &alpha, pointer(matrices.b),
                              impl_->b.get(), pointer(matrices.a), impl_->a.get(), &beta, added,
                              impl_->c.get(), out, impl_->c.get(), &impl_->algorithm,
                              shared.memory.pointer(), CublasWorkspace::bytes, stream.handle()),
      "a multiplication");
}

}  // namespace quern::cuda
