// Fast plans around cuBLASLt, on stand-ins for the driver and the library: which launches are its,
// with which memory, and what a failure leaves.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "compiler/cuda/cuda_compiler.h"
#include "models/error.h"
#include "models/model.h"
#include "tests/runtime/cuda/toy_gpu.h"
#include "tests/support/fake_cuda/cublas_lt.h"
#include "tests/support/fixtures.h"

namespace quern::test {
namespace {

using ::testing::HasSubstr;

template <class F>
F control(const char* symbol) {
  void* library = dlopen(QUERN_FAKE_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
  void* found = library == nullptr ? nullptr : dlsym(library, symbol);
  if (found == nullptr) throw std::runtime_error("the stand-in for cuBLASLt lacks a function");
  return reinterpret_cast<F>(found);
}

std::vector<FakeMatmul> matmuls() {
  const auto ask = control<decltype(&fake_cublas_lt_matmuls)>("fake_cublas_lt_matmuls");
  std::vector<FakeMatmul> list(ask(nullptr, 0));
  ask(list.data(), list.size());
  return list;
}
void reset_library(int64_t fail = -1) {
  control<decltype(&fake_cublas_lt_reset)>("fake_cublas_lt_reset")(fail);
}
int64_t live_objects() {
  return control<decltype(&fake_cublas_lt_live)>("fake_cublas_lt_live")();
}

class FastEngine : public ToyGpuTest {
 protected:
  static constexpr uint32_t fast_context = 512, fast_chunk = 400;

  void SetUp() override {
    setenv("QUERN_CUBLASLT", QUERN_FAKE_CUBLASLT, 1);
    ToyGpuTest::SetUp();
    cuda_.on_launch(nullptr);  // The toy's own work is for short contexts.
    reset_library();
    for (uint32_t i = 0; i < fast_context; ++i) prompt_.push_back(static_cast<TokenId>(i % 300));
  }
  void TearDown() override {
    ToyGpuTest::TearDown();
    EXPECT_EQ(live_objects(), 0);
    unsetenv("QUERN_CUBLASLT");
  }

  Plan fast_plan(uint64_t free_bytes = 0) {
    PlanOptions options;
    options.device = "cuda";
    options.context = fast_context;
    options.chunk = fast_chunk;
    options.numerics = Numerics::fast;
    options.free_bytes = free_bytes;
    return make_plan(build_graph(gguf::File::open(model_)), options, cuda::make_target("sm_90a"));
  }
  std::shared_ptr<Engine> load_fast(uint64_t free_bytes = 0) {
    return load(model_, fast_plan(free_bytes));
  }
  std::span<const TokenId> first(size_t count) const { return std::span(prompt_).first(count); }
  /// Steps of a kernel family that a launch of many tokens and one output runs.
  static size_t steps_of(const Plan& plan, std::string_view family) {
    return static_cast<size_t>(std::ranges::count_if(plan.steps, [&](const Step& step) {
      return spec_family(plan.kernels[step.kernel].spec) == family &&
             runs(plan, step, step.rows == StepRows::tokens ? plan.few_rows + 1 : 1);
    }));
  }

  std::vector<TokenId> prompt_;
};

TEST_F(FastEngine, launches_of_many_tokens_are_the_library_s_and_others_are_not) {
  const auto engine = load_fast();
  const auto session = engine->new_session();
  const size_t matmul_steps = steps_of(engine->plan(), "matmul");
  ASSERT_GT(matmul_steps, 4U);
  for (const uint32_t tokens : {1U, 8U, 64U, 256U}) {
    session->reset();
    session->feed(first(tokens), 0, OutputRows::last);
    EXPECT_EQ(launches_of(*session, "cublasLt gemm"), 0U) << tokens;
    EXPECT_EQ(launches_of(*session, "unpack"), 0U) << tokens;
  }
  EXPECT_TRUE(matmuls().empty());
  session->reset();
  const uint64_t before = cuda_.launches();
  session->feed(first(257), 0, OutputRows::last);
  EXPECT_EQ(launches_of(*session, "cublasLt gemm"), matmul_steps);
  EXPECT_EQ(launches_of(*session, "unpack"), matmul_steps);
  EXPECT_EQ(launches_of(*session, "flatten"), matmul_steps);
  EXPECT_EQ(launches_of(*session, "finish"), steps_of(engine->plan(), "finish"));
  EXPECT_EQ(launches_of(*session, "gemm tile 128"), 0U);
  EXPECT_EQ(matmuls().size(), matmul_steps);
  // The stand-in's own launches are all others.
  uint64_t counted = 0;
  for (const auto& [name, count] : session->last_launches()) counted += count;
  EXPECT_EQ(cuda_.launches() - before + matmul_steps, counted);
}

TEST_F(FastEngine, products_have_the_plan_s_buffers_and_a_size_with_room_in_them) {
  const auto engine = load_fast();
  const auto session = engine->new_session();
  const Plan& plan = engine->plan();
  for (const uint32_t tokens : {257U, 320U, 321U, 385U, 400U}) {
    session->reset();
    reset_library();
    session->feed(first(tokens), 0, OutputRows::last);
    const std::vector<FakeMatmul> products = matmuls();
    size_t next = 0;
    for (const Step& step : plan.steps) {
      const auto* s = std::get_if<spec::MatmulSpec>(&plan.kernels[step.kernel].spec);
      if (s == nullptr || step.rows == StepRows::outputs) continue;
      ASSERT_LT(next, products.size());
      const FakeMatmul& product = products[next++];
      EXPECT_EQ(product.n, s->rows);
      EXPECT_EQ(product.k, s->k);
      EXPECT_GE(product.m, tokens);
      EXPECT_LT(product.m, tokens + 64);
      EXPECT_LE(product.m, fast_chunk);
      EXPECT_EQ(product.alpha, 1.0F);
      EXPECT_EQ(product.beta, s->residual != 0 ? 1.0F : 0.0F);
      // Whatever it reads and writes is there.
      EXPECT_NO_THROW(cuda_.memory(product.a, uint64_t{product.m} * product.k * 2));
      EXPECT_NO_THROW(cuda_.memory(product.b, uint64_t{product.n} * product.k * 2));
      EXPECT_NO_THROW(cuda_.memory(product.c, uint64_t{product.m} * product.n * 4));
    }
    EXPECT_EQ(next, products.size());
  }
}

TEST_F(FastEngine, kept_weights_are_unpacked_when_the_plan_is_loaded_and_not_again) {
  const uint64_t before = cuda_.launches();
  const Plan scratch = fast_plan();
  const auto engine = load_fast(uint64_t{1} << 40);
  const size_t matmul_steps = steps_of(engine->plan(), "matmul");
  EXPECT_EQ(steps_of(engine->plan(), "unpack"), 0U);
  EXPECT_EQ(steps_of(scratch, "unpack"), matmul_steps);
  size_t unpacked = 0;
  for (const fake_cuda::Launch& launch : cuda_.launches_since(before)) {
    unpacked += std::string_view(launch.kernel).ends_with(" unpack") ? 1 : 0;
  }
  EXPECT_EQ(unpacked, matmul_steps);
  const auto session = engine->new_session();
  session->feed(first(300), 0, OutputRows::last);
  EXPECT_EQ(launches_of(*session, "cublasLt gemm"), matmul_steps);
  EXPECT_EQ(launches_of(*session, "unpack"), 0U);
}

TEST_F(FastEngine, a_failure_of_any_product_latches_until_reset_and_others_live_on) {
  const auto engine = load_fast();
  const auto session = engine->new_session(), other = engine->new_session();
  const auto products = static_cast<int64_t>(steps_of(engine->plan(), "matmul"));
  for (int64_t at = 0; at < products; ++at) {
    SCOPED_TRACE(at);
    session->reset();
    reset_library(at);
    try {
      session->feed(first(300), 0, OutputRows::last);
      ADD_FAILURE() << "it did not fail";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("cuBLASLt: a multiplication failed"));
    }
    EXPECT_EQ(matmuls().size(), static_cast<size_t>(at));
    EXPECT_THROW(session->feed(first(1), session->position(), OutputRows::last), Error);
    other->reset();
    other->feed(first(300), 0, OutputRows::last);
    session->reset();
    session->feed(first(300), 0, OutputRows::last);
  }
}

TEST_F(FastEngine, exact_plans_never_touch_the_library) {
  setenv("QUERN_CUBLASLT", "/nowhere", 1);
  const auto engine = load();
  const auto session = engine->new_session();
  session->feed(std::span(tokens_).first(16), 0, OutputRows::last);
  EXPECT_TRUE(matmuls().empty());
  EXPECT_EQ(live_objects(), 0);
}

}  // namespace
}  // namespace quern::test
