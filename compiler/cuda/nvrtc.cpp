#include "compiler/cuda/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <optional>

#include "models/error.h"
#include "models/shared_library.h"

namespace quern::cuda {

// NVRTC's C interface as its documentation gives it; declared here because no CUDA header may be
// needed.
struct Nvrtc::Functions {
  using Program = void*;
  int (*version)(int*, int*);
  const char* (*error_string)(int);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int, const char* const*);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
  int (*ptx_size)(Program, size_t*);
  int (*ptx)(Program, char*);
};

namespace {

constexpr std::string_view remedy =
    "install the CUDA toolkit 12 or 13, or the PyPI package nvidia-cuda-nvrtc and set QUERN_NVRTC "
    "to its libnvrtc.so.13";

template <class F>
void bind(void* library, const std::filesystem::path& path, const char* symbol, F& function) {
  function = reinterpret_cast<F>(dlsym(library, symbol));
  if (function == nullptr) {
    throw Error(ErrorKind::failed, "NVRTC",
                fmt::format("{} has no function {}", path.string(), symbol), remedy);
  }
}

template <class Size, class Get>
std::string text_of(void* program, Size size_of, Get get) {
  size_t size = 0;
  if (size_of(program, &size) != 0 || size <= 1) return {};
  std::string text(size, '\0');
  if (get(program, text.data()) != 0) return {};
  // The size counts a zero at the end, and logs have a second one.
  text.resize(text.find_last_not_of('\0') + 1);
  return text;
}

}  // namespace

Nvrtc Nvrtc::load() {
  const LoadedLibrary library =
      load_library({.thing = "NVRTC",
                    .variable = "QUERN_NVRTC",
                    .wanted = "libnvrtc",
                    .candidates = cuda_toolkit_candidates("libnvrtc", {"lib64"}),
                    .remedy = remedy,
                    .remedy_of_given = remedy});
  Nvrtc nvrtc;
  nvrtc.path_ = library.path;
  static Functions functions;
  const auto get = [&](const char* symbol, auto& function) {
    bind(library.handle, nvrtc.path_, symbol, function);
  };
  // First, because a library of long ago lacks functions: its version is the better reason.
  get("nvrtcVersion", functions.version);
  functions.version(&nvrtc.major_, &nvrtc.minor_);
  if (nvrtc.major_ < 12) {
    throw Error(ErrorKind::failed, "NVRTC",
                fmt::format("{} is version {}.{}, Quern needs 12.0 or newer", nvrtc.path_.string(),
                            nvrtc.major_, nvrtc.minor_),
                remedy);
  }
  get("nvrtcGetErrorString", functions.error_string);
  get("nvrtcCreateProgram", functions.create);
  get("nvrtcDestroyProgram", functions.destroy);
  get("nvrtcCompileProgram", functions.compile);
  get("nvrtcGetProgramLogSize", functions.log_size);
  get("nvrtcGetProgramLog", functions.log);
  get("nvrtcGetCUBINSize", functions.cubin_size);
  get("nvrtcGetCUBIN", functions.cubin);
  get("nvrtcGetPTXSize", functions.ptx_size);
  get("nvrtcGetPTX", functions.ptx);
  nvrtc.functions_ = &functions;
  return nvrtc;
}

const Nvrtc& Nvrtc::get() {
  static std::mutex mutex;
  static std::optional<Nvrtc> loaded;
  std::lock_guard lock(mutex);
  if (!loaded) loaded.emplace(load());
  return *loaded;
}

std::string Nvrtc::problem() {
  try {
    get();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::string Nvrtc::version() const {
  return fmt::format("{}.{}", major_, minor_);
}

Nvrtc::Result Nvrtc::compile(const std::string& source, const std::string& name,
                             const std::vector<Header>& headers,
                             const std::vector<std::string>& options, bool want_ptx) const {
  std::vector<const char*> header_texts, header_names, option_texts;
  for (const Header& header : headers) {
    header_texts.push_back(header.text);
    header_names.push_back(header.name);
  }
  for (const std::string& option : options) option_texts.push_back(option.c_str());
  Functions::Program program = nullptr;
  Result result;
  int status =
      functions_->create(&program, source.c_str(), name.c_str(), static_cast<int>(headers.size()),
                         header_texts.data(), header_names.data());
  if (status != 0) {
    result.problem = functions_->error_string(status);
    return result;
  }
  status = functions_->compile(program, static_cast<int>(option_texts.size()), option_texts.data());
  result.log = text_of(program, functions_->log_size, functions_->log);
  if (status != 0) {
    result.problem = functions_->error_string(status);
  } else {
    size_t size = 0;
    if (functions_->cubin_size(program, &size) == 0 && size > 0) {
      result.cubin.resize(size);
      functions_->cubin(program, reinterpret_cast<char*>(result.cubin.data()));
    }
    if (want_ptx) result.ptx = text_of(program, functions_->ptx_size, functions_->ptx);
    result.ok = true;
  }
  functions_->destroy(&program);
  return result;
}

}  // namespace quern::cuda
