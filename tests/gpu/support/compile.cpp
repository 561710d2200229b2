#include "tests/gpu/support/compile.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include "compiler/cuda/nvrtc.h"
#include "tests/gpu/support/gpu.h"

namespace quern::test {
namespace {

Target this_target() {
  return cuda::make_target(cuda::target_for_device(gpu()->compute_capability()).name);
}

/// From QUERN_TEST_KERNELS, or compiled and kept there.
CompiledKernel load_or_compile(const spec::AnySpec& spec) {
  const Target target = this_target();
  const char* folder = std::getenv("QUERN_TEST_KERNELS");
  if (folder == nullptr) return cuda::compile_kernel(spec, target, true);
  const KernelKey key = cuda::kernel_key(spec, target);
  const std::filesystem::path path = std::filesystem::path(folder) / (key.digest() + ".cubin");
  if (std::ifstream file(path, std::ios::binary); file) {
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    CompiledKernel kernel;
    kernel.key = key;
    kernel.symbol = "quern_kernel";
    const auto data = std::as_bytes(std::span(bytes));
    kernel.code.assign(data.begin(), data.end());
    return kernel;
  }
  CompiledKernel kernel = cuda::compile_kernel(spec, target, true);
  std::filesystem::create_directories(folder);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(kernel.code.data()),
             static_cast<std::streamsize>(kernel.code.size()));
  return kernel;
}

struct Cache {
  std::mutex mutex;
  std::map<std::string, CompiledKernel> kernels;
};
Cache& cache() {
  static Cache instance;
  return instance;
}

std::string name_of(const spec::AnySpec& spec) {
  return std::string(spec_family(spec)) + " " + spec_to_text(spec);
}

void apply(std::span<const TextChange> changes, std::string& header_text) {
  for (const auto& [from, to] : changes) {
    const size_t at = header_text.find(from);
    EXPECT_NE(at, std::string::npos) << "the header has no \"" << from << "\" to change";
    if (at != std::string::npos) header_text.replace(at, from.size(), to);
  }
}

}  // namespace

const CompiledKernel& compiled(const spec::AnySpec& spec) {
  const std::string name = name_of(spec);
  {
    std::lock_guard lock(cache().mutex);
    if (const auto found = cache().kernels.find(name); found != cache().kernels.end()) {
      return found->second;
    }
  }
  CompiledKernel kernel = load_or_compile(spec);
  std::lock_guard lock(cache().mutex);
  return cache().kernels.try_emplace(name, std::move(kernel)).first->second;
}

void in_parallel(size_t count, const std::function<void(size_t)>& f) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < count; at = next++) f(at);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void precompile(const std::vector<spec::AnySpec>& specs) {
  if (gpu() == nullptr) return;
  std::map<std::string, const spec::AnySpec*> distinct;
  for (const spec::AnySpec& spec : specs) distinct.try_emplace(name_of(spec), &spec);
  std::vector<const spec::AnySpec*> list;
  for (const auto& [name, spec] : distinct) list.push_back(spec);
  in_parallel(list.size(), [&](size_t i) {
    try {
      compiled(*list[i]);
    } catch (const Error&) {
      // The test that needs it compiles it again and fails with the reason.
    }
  });
}

CompiledKernel compile_variant(const spec::AnySpec& spec, std::string_view header,
                               std::span<const TextChange> changes) {
  const Target target = this_target();
  const std::string source = cuda::emit_source(spec);
  std::vector<std::string> names = cuda::header_closure(source), texts;
  EXPECT_EQ(std::ranges::count(names, header), 1) << "the kernel does not include " << header;
  for (const std::string& name : names) {
    std::string text(cuda::header_text(name));
    if (name == header) apply(changes, text);
    texts.push_back(std::move(text));
  }
  std::vector<cuda::Nvrtc::Header> headers;
  for (size_t i = 0; i < names.size(); ++i) headers.push_back({names[i].c_str(), texts[i].c_str()});
  CompiledKernel kernel;
  kernel.key = cuda::kernel_key(spec, target);
  std::vector<std::string> options;
  for (const auto& [name, value] : kernel.key.fields) {
    if (name != "options") continue;
    std::istringstream words(value);
    options.assign(std::istream_iterator<std::string>(words), {});
  }
  cuda::Nvrtc::Result result =
      cuda::Nvrtc::get().compile(source, "variant.cu", headers, options, false);
  EXPECT_TRUE(result.ok) << result.log;
  kernel.symbol = "quern_kernel";
  kernel.code = std::move(result.cubin);
  return kernel;
}

CompiledKernel compile_mutant(const spec::AnySpec& spec, std::string_view header,
                              std::string_view from, std::string_view to) {
  const TextChange change{from, to};
  return compile_variant(spec, header, {&change, 1});
}

}  // namespace quern::test
