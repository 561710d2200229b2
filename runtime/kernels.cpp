#include "runtime/kernels.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "compiler/compile_kernel.h"
#include "models/error.h"
#include "runtime/clock.h"

namespace quern {
namespace {

/// The stored kernel that the plan lists, or nothing.
std::optional<CompiledKernel> look_up(const PlanKernel& wanted, KernelStore& store) {
  if (wanted.key_digest.empty()) return std::nullopt;
  auto kernel = store.find_digest(wanted.key_digest);
  if (kernel && !wanted.entry_digest.empty() && entry_digest(*kernel) != wanted.entry_digest) {
    throw Error(
        ErrorKind::failed,
        fmt::format("kernel {} ({})", spec_to_text(wanted.spec), wanted.key_digest.substr(0, 12)),
        "the entry in the store is not the one that the plan lists", "run `quern compile` again");
  }
  return kernel;
}

/// Calls job(i) for i in [0, n) on several threads; throws the first exception when all have ended.
template <class Job>
void in_parallel(size_t n, uint32_t threads, Job&& job) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < n;) {
      try {
        job(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = n;
      }
    }
  };
  std::vector<std::thread> helpers;
  for (size_t t = 1; t < std::min<size_t>(threads, n); ++t) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

std::vector<CompiledKernel> fetch_kernels(const Plan& plan, KernelStore& store,
                                          const KernelCompiler& compile, uint32_t threads,
                                          const Progress& progress, LoadStats& stats) {
  const auto start = Clock::now();
  const uint64_t compiled_before = store.stats().compiled;
  std::vector<CompiledKernel> kernels(plan.kernels.size());
  std::vector<size_t> missing;
  uint32_t libraries = 0;
  for (size_t i = 0; i < kernels.size(); ++i) {
    if (is_library(plan.kernels[i].spec)) {
      ++libraries;
    } else if (auto found = look_up(plan.kernels[i], store)) {
      kernels[i] = std::move(*found);
    } else {
      missing.push_back(i);
    }
  }
  stats.load_kernels_ms = milliseconds_since(start);

  const auto compile_start = Clock::now();
  std::mutex progress_mutex;
  uint64_t done = 0;
  in_parallel(missing.size(), threads, [&](size_t i) {
    const PlanKernel& wanted = plan.kernels[missing[i]];
    const KernelKey key = kernel_key(wanted.spec, plan.target);
    kernels[missing[i]] = store.get(key, wanted.spec, plan.target, compile);
    if (!wanted.key_digest.empty() && wanted.key_digest != key.digest()) {
      spdlog::debug("kernel {} has another key than in the plan: made by another build",
                    spec_to_text(wanted.spec));
    }
    const std::lock_guard lock(progress_mutex);
    ++done;
    if (progress) progress("compile", done, missing.size());
  });
  if (!missing.empty()) stats.compile_ms = milliseconds_since(compile_start);
  stats.kernels_compiled = static_cast<uint32_t>(store.stats().compiled - compiled_before);
  stats.kernels_loaded = static_cast<uint32_t>(kernels.size()) - stats.kernels_compiled - libraries;
  return kernels;
}

}  // namespace quern
