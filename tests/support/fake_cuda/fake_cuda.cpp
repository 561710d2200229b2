#include "tests/support/fake_cuda/fake_cuda.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "runtime/cuda/driver.h"

namespace quern::test {
namespace {

/// The library's control functions.
struct Control {
  decltype(&::fake_cuda_reset) reset;
  decltype(&::fake_cuda_set_memory) set_memory;
  decltype(&::fake_cuda_launches) launches;
  decltype(&::fake_cuda_launch) launch;
  decltype(&::fake_cuda_calls) calls;
  decltype(&::fake_cuda_on_launch) on_launch;
  decltype(&::fake_cuda_fail_launch) fail_launch;
  decltype(&::fake_cuda_fail_call) fail_call;
  decltype(&::fake_cuda_clear_faults) clear_faults;
  decltype(&::fake_cuda_faults_left) faults_left;
  decltype(&::fake_cuda_live_bytes) live_bytes;
  decltype(&::fake_cuda_pinned_bytes) pinned_bytes;
  decltype(&::fake_cuda_memory) memory;
  decltype(&::fake_cuda_problems) problems;
  decltype(&::fake_cuda_leaks) leaks;
};

template <class F>
void bind(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("the stand-in has no ") + name);
}

Control load_control() {
  void* library = dlopen(QUERN_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  Control c{};
  bind(library, "fake_cuda_reset", c.reset);
  bind(library, "fake_cuda_set_memory", c.set_memory);
  bind(library, "fake_cuda_launches", c.launches);
  bind(library, "fake_cuda_launch", c.launch);
  bind(library, "fake_cuda_calls", c.calls);
  bind(library, "fake_cuda_on_launch", c.on_launch);
  bind(library, "fake_cuda_fail_launch", c.fail_launch);
  bind(library, "fake_cuda_fail_call", c.fail_call);
  bind(library, "fake_cuda_clear_faults", c.clear_faults);
  bind(library, "fake_cuda_faults_left", c.faults_left);
  bind(library, "fake_cuda_live_bytes", c.live_bytes);
  bind(library, "fake_cuda_pinned_bytes", c.pinned_bytes);
  bind(library, "fake_cuda_memory", c.memory);
  bind(library, "fake_cuda_problems", c.problems);
  bind(library, "fake_cuda_leaks", c.leaks);

  setenv("QUERN_CUDA_DRIVER", QUERN_FAKE_CUDA, 1);
  const auto* used = reinterpret_cast<void*>(cuda::Driver::get().cuInit);
  if (used != dlsym(library, "cuInit")) {
    throw std::runtime_error("another CUDA driver is loaded in this process already");
  }
  return c;
}

const Control& control() {
  static const Control loaded = load_control();
  return loaded;
}

unsigned flags_of(Failing how) {
  switch (how) {
    case Failing::at_once:
      return 0;
    case Failing::later:
      return fake_cuda::fault_late;
    case Failing::for_good:
      return fake_cuda::fault_sticky;
    case Failing::later_for_good:
      return fake_cuda::fault_late | fake_cuda::fault_sticky;
  }
  return 0;
}

template <class Function>
std::string lines(Function function) {
  std::vector<char> text(1 << 16);
  function(text.data(), text.size());
  return text.data();
}

}  // namespace

FakeCuda::FakeCuda() {
  control();
}

FakeCuda& FakeCuda::get() {
  static FakeCuda fake;
  return fake;
}

void FakeCuda::reset() {
  control().reset();
  callback_ = nullptr;
}

void FakeCuda::set_memory(uint64_t bytes) {
  control().set_memory(bytes);
}

uint64_t FakeCuda::launches() const {
  return control().launches();
}

fake_cuda::Launch FakeCuda::launch(uint64_t index) const {
  fake_cuda::Launch launch{};
  if (control().launch(index, &launch) == 0) {
    throw std::out_of_range("there was no launch " + std::to_string(index));
  }
  return launch;
}

std::vector<fake_cuda::Launch> FakeCuda::launches_since(uint64_t index) const {
  std::vector<fake_cuda::Launch> result;
  for (const uint64_t end = launches(); index < end; ++index) result.push_back(launch(index));
  return result;
}

uint64_t FakeCuda::calls(const char* function) const {
  return control().calls(function);
}

uint64_t FakeCuda::live_bytes() const {
  return control().live_bytes();
}

uint64_t FakeCuda::pinned_bytes() const {
  return control().pinned_bytes();
}

std::string FakeCuda::problems() const {
  return lines(control().problems);
}

std::string FakeCuda::leaks() const {
  return lines(control().leaks);
}

void FakeCuda::fail_launch(uint64_t number, int error, Failing how) {
  control().fail_launch(number, error, flags_of(how));
}

void FakeCuda::fail_call(const char* function, uint64_t number, int error, Failing how) {
  control().fail_call(function, number, error, flags_of(how));
}

void FakeCuda::clear_faults() {
  control().clear_faults();
}

bool FakeCuda::faults_happened() const {
  return control().faults_left() == 0;
}

void FakeCuda::on_launch(std::function<void(const fake_cuda::Launch&)> callback) {
  callback_ = std::move(callback);
  control().on_launch(
      [](const fake_cuda::Launch& launch, void* user) {
        const auto& self = *static_cast<FakeCuda*>(user);
        if (self.callback_) self.callback_(launch);
      },
      this);
}

std::byte* FakeCuda::memory(const void* device_address, uint64_t bytes) const {
  void* memory = control().memory(reinterpret_cast<uint64_t>(device_address), bytes);
  if (memory == nullptr) throw std::out_of_range("no device memory there");
  return static_cast<std::byte*>(memory);
}

std::vector<std::byte> fake_cubin(std::string_view name) {
  std::vector<std::byte> image(sizeof(fake_cuda::cubin_ident) + name.size() + 1);
  std::memcpy(image.data(), fake_cuda::cubin_ident, sizeof(fake_cuda::cubin_ident));
  std::memcpy(image.data() + sizeof(fake_cuda::cubin_ident), name.data(), name.size());
  return image;
}

void FakeCudaTest::SetUp() {
  cuda_.reset();
}

std::string FakeCudaTest::take_problems() {
  const std::string all = cuda_.problems();
  std::string fresh = all.substr(forgiven_);
  forgiven_ = all.size();
  return fresh;
}

void FakeCudaTest::TearDown() {
  EXPECT_EQ(take_problems(), "");
  EXPECT_EQ(cuda_.leaks(), "");
}

}  // namespace quern::test
