#pragma once

// Shared by the kernel tests: random data, comparison against double, splits of a chunk, and native
// builds of the templates (right and deliberately wrong ones) beside the compiled kernels.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compiler/cpu/cpu_compiler.h"
#include "templates/cpu/mutants.h"
#include "tests/compiler/cpu/launch.h"

namespace quern::cpu {

inline std::vector<float> random_floats(size_t n, uint32_t seed, float scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(generator);
  return x;
}

/// Outputs start as NaN, so that a value that is never written shows.
inline std::vector<float> poisoned(size_t n) {
  return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN());
}

/// Largest |x - reference| over the root mean square of the reference; infinite where x is not
/// finite.
inline double relative_error(const std::vector<float>& x, const std::vector<double>& reference) {
  if (x.size() != reference.size()) return std::numeric_limits<double>::infinity();
  double worst = 0, square = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(x[i] - reference[i]));
    square += reference[i] * reference[i];
  }
  const double rms = std::sqrt(square / static_cast<double>(x.size()));
  return worst / (rms > 0 ? rms : 1);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Ways to feed n tokens: at once, one at a time, unevenly.
inline std::vector<std::vector<uint32_t>> splits_of(uint32_t n) {
  std::vector<std::vector<uint32_t>> splits = {{n}, std::vector<uint32_t>(n, 1)};
  std::vector<uint32_t> uneven;
  for (uint32_t left = n, size = 1; left > 0; size = size * 3 + 1) {
    uneven.push_back(std::min(size, left));
    left -= uneven.back();
  }
  splits.push_back(uneven);
  return splits;
}

/// Runs a launch; the kernels of one spec that ought to agree share this shape.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual void run(KernelArgs args, const std::vector<void*>& buffers, uint32_t workers) = 0;
};

class CompiledLauncher : public Launcher {
 public:
  CompiledLauncher(const spec::AnySpec& spec, const std::string& target)
      : kernel_(spec, resolve_target(target)) {}
  void run(KernelArgs args, const std::vector<void*>& buffers, uint32_t workers) override {
    kernel_.run(args, buffers, workers);
  }

 private:
  TestKernel kernel_;
};

/// A template compiled to an object by clang, its spec read when it runs.
template <class Spec>
class NativeLauncher : public Launcher {
 public:
  NativeLauncher(KernelFunction function, Spec& slot, const Spec& spec)
      : function_(function), slot_(slot), spec_(spec) {}
  void run(KernelArgs args, const std::vector<void*>& buffers, uint32_t workers) override {
    slot_ = spec_;
    const uint64_t slice = (scratch_bytes(spec_, args.n_tokens) + 63) / 64 * 64;
    const Aligned<std::byte> scratch(slice * workers + 64);
    uint32_t next = 0;
    args.buffers = buffers.data();
    args.n_workers = workers;
    args.next_tile = &next;
    args.scratch_bytes = slice;
    // One after the other: whatever worker 0 leaves, the others must find done or do.
    for (uint32_t w = 0; w < workers; ++w) {
      args.worker = w;
      args.scratch = scratch.data() + slice * w;
      function_(&args);
    }
  }

 private:
  KernelFunction function_;
  Spec& slot_;
  Spec spec_;
};

/// Declares the native build of a family with a mutant (tests/compiler/cpu/CMakeLists.txt builds
/// it).
#define QUERN_NATIVE_TEMPLATE(Spec, name)   \
  extern "C" {                              \
  void name(const quern::cpu::KernelArgs*); \
  extern Spec name##_spec;                  \
  Spec name##_spec;                         \
  extern const uint32_t name##_registers;   \
  const uint32_t name##_registers = 16;     \
  }

inline const std::vector<std::string>& runnable_targets() {
  static const std::vector<std::string> targets = [] {
    std::vector<std::string> names = {"native"};
    for (const char* name : {"x86-64-v3", "x86-64-v4"}) {
      if (can_run(resolve_target(name))) names.push_back(name);
    }
    return names;
  }();
  return targets;
}

/// The spec's kernel for a target, compiled once.
inline Launcher& compiled(const spec::AnySpec& spec, const std::string& target = "native") {
  static std::map<std::string, std::unique_ptr<Launcher>> kernels;
  auto& kernel = kernels[target + spec_to_text(spec)];
  if (kernel == nullptr) kernel = std::make_unique<CompiledLauncher>(spec, target);
  return *kernel;
}

/// Which targets a test compiles for: all that this machine runs, or its own alone (for sweeps over
/// specs, where compilation is the cost).
enum class Targets { all, native };

/// run(launcher, split, workers) -> output. The output must have the same bits for every split of n
/// tokens, 1 and 3 workers and every target that this machine runs. Returns it.
template <class Run>
std::vector<float> expect_bits_independent(const spec::AnySpec& spec, uint32_t n_tokens, Run run,
                                           Targets targets = Targets::all) {
  std::vector<float> first;
  for (const std::string& target : runnable_targets()) {
    if (targets == Targets::native && target != "native") continue;
    Launcher& launcher = compiled(spec, target);
    for (const auto& split : splits_of(n_tokens)) {
      for (uint32_t workers : {1u, 3u}) {
        std::vector<float> output = run(launcher, split, workers);
        if (first.empty()) first = output;
        EXPECT_TRUE(same_bits(output, first)) << target << ", " << split.size() << " chunks, "
                                              << workers << " workers, " << spec_to_text(spec);
      }
    }
  }
  return first;
}

}  // namespace quern::cpu
