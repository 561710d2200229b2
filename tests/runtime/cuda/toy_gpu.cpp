#include "tests/runtime/cuda/toy_gpu.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "compiler/cuda/cuda_compiler.h"
#include "models/error.h"
#include "models/model.h"
#include "runtime/store/kernel_store.h"
#include "tests/support/fixtures.h"
#include "tests/support/selection.h"

namespace quern::test {
namespace {

/// Added to logits where the cache holds tokens beyond those fed.
constexpr float ghost = 1e6F;

/// Stands in for a key, which would name the NVRTC of this machine.
KernelKey plain_key(const spec::AnySpec& spec) {
  return {.fields = {{"spec", spec_to_text(spec)}}};
}

void fill_store(Plan& plan, KernelStore& store) {
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    const spec::AnySpec& spec = plan.kernels[i].spec;
    const KernelKey key = plain_key(spec);
    store.get(key, spec, plan.target, [&](const spec::AnySpec&, const Target&) {
      CompiledKernel kernel;
      kernel.key = key;
      kernel.symbol = cuda::kernel_symbol;
      kernel.code = fake_cubin(std::to_string(i) + " " + std::string(spec_family(spec)));
      return kernel;
    });
    plan.kernels[i].key_digest = key.digest();
  }
}

CompiledKernel compile_nothing(const spec::AnySpec& spec, const Target&) {
  throw std::logic_error("the store lacks " + spec_to_text(spec));
}

uint32_t note_of(TokenId token) {
  return static_cast<uint32_t>(token) + 1;
}

}  // namespace

Plan plan_for_gpu(const std::filesystem::path& model, uint32_t context, uint32_t chunk) {
  PlanOptions options;
  options.device = "cuda";
  options.context = context;
  options.chunk = chunk;
  options.all_logits = true;
  return make_plan(build_graph(gguf::File::open(model)), options, cuda::make_target("sm_90a"));
}

std::vector<float> toy_logits(std::span<const TokenId> tokens, uint32_t vocabulary) {
  float sum = 0;
  for (size_t p = 0; p < tokens.size(); ++p) {
    sum += static_cast<float>(note_of(tokens[p]) * (p + 1));
  }
  std::vector<float> logits(vocabulary);
  for (uint32_t i = 0; i < vocabulary; ++i) logits[i] = sum + static_cast<float>(i);
  return logits;
}

void ToyGpuTest::SetUp() {
  FakeCudaTest::SetUp();
  cuda_.on_launch([this](const fake_cuda::Launch& launch) { ran(launch); });
  model_ = data_file("fixtures/llama.gguf");
  for (uint32_t i = 0; i < context; ++i)
    tokens_.push_back(static_cast<TokenId>((i * 37 + 5) % 300));
}

void ToyGpuTest::TearDown() {
  FakeCudaTest::TearDown();
  cuda_.on_launch(nullptr);
}

std::shared_ptr<Engine> ToyGpuTest::load(const EngineOptions& options) {
  return load(model_, plan_for_gpu(model_, context, chunk), options);
}

std::shared_ptr<Engine> ToyGpuTest::load(const std::filesystem::path& model, Plan plan,
                                         const EngineOptions& options) {
  KernelStore store({.directory = std::nullopt, .readonly_tiers = {}, .mode = StoreMode::readonly});
  fill_store(plan, store);
  note_roles(plan);
  EngineOptions with_threads = options;
  with_threads.threads = 2;
  return Engine::load(gguf::File::open(model), std::move(plan), store, compile_nothing,
                      with_threads);
}

std::string ToyGpuTest::message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

uint32_t ToyGpuTest::launches_of(const Session& session, std::string_view name) {
  for (const auto& [launch, count] : session.last_launches()) {
    if (launch == name) return count;
  }
  return 0;
}

void ToyGpuTest::expect_toy(Session& session, std::span<const TokenId> before,
                            std::span<const TokenId> tokens, uint32_t pieces) {
  std::vector<TokenId> all(before.begin(), before.end());
  all.insert(all.end(), tokens.begin(), tokens.end());
  const auto logits = session.feed(tokens, session.position(), OutputRows::last, pieces);
  EXPECT_EQ(session.position(), all.size());
  EXPECT_EQ(logits, toy_logits(all, static_cast<uint32_t>(logits.size())));
}

void ToyGpuTest::note_roles(const Plan& plan) {
  vocabulary_ = plan.vocabulary;
  roles_.assign(plan.kernels.size(), {});
  for (const Step& step : plan.steps) {
    Roles roles;
    roles.writes_cache = spec_family(plan.kernels[step.kernel].spec) == "qkv_post";
    roles.selects = spec_family(plan.kernels[step.kernel].spec) == "select";
    for (size_t i = 0; i < step.buffers.size(); ++i) {
      const BufferRef& buffer = step.buffers[i];
      const int argument = static_cast<int>(i);
      if (buffer.kind == BufferKind::tokens) roles.tokens = argument;
      if (buffer.kind == BufferKind::outputs) roles.outputs = argument;
      if (buffer.kind == BufferKind::logits) roles.logits = argument;
      if (buffer.kind == BufferKind::state &&
          plan.states[buffer.index].kind == StateKind::key_cache) {
        roles.keys = argument;
        position_bytes_ = plan.states[buffer.index].bytes / kv_capacity(plan.options.context);
      }
    }
    roles_[step.kernel] = roles;
    for (const StepVariant& variant : step.variants) roles_[variant.kernel] = roles;
  }
}

void ToyGpuTest::ran(const fake_cuda::Launch& launch) {
  const Roles& roles = roles_.at(std::strtoul(launch.kernel, nullptr, 10));
  const auto argument = [&](int index) { return launch.args.buffers[index]; };
  if (roles.tokens >= 0) token_ids_ = argument(roles.tokens);
  if (roles.outputs >= 0) outputs_ = argument(roles.outputs);
  if (roles.writes_cache && roles.keys >= 0) write_cache(launch, argument(roles.keys));
  if (roles.selects) return select(launch);
  if (roles.logits >= 0) write_logits(launch, argument(roles.logits));
}

void ToyGpuTest::write_cache(const fake_cuda::Launch& launch, const void* keys) {
  cache_ = keys;
  const uint32_t n = launch.state.n_tokens, start = launch.state.start_position;
  const std::byte* ids = cuda_.memory(token_ids_, n * sizeof(TokenId));
  std::byte* notes = cuda_.memory(keys, context * position_bytes_);
  for (uint32_t row = 0; row < n; ++row) {
    TokenId id = 0;
    std::memcpy(&id, ids + row * sizeof(id), sizeof(id));
    const uint32_t note = note_of(id);
    std::memcpy(notes + (start + row) * position_bytes_, &note, sizeof(note));
  }
}

void ToyGpuTest::write_logits(const fake_cuda::Launch& launch, const void* logits) const {
  const uint32_t n = launch.state.n_outputs, start = launch.state.start_position;
  std::vector<uint32_t> notes(context), rows(n);
  const std::byte* cache = cuda_.memory(cache_, context * position_bytes_);
  for (uint32_t p = 0; p < context; ++p) {
    std::memcpy(&notes[p], cache + p * position_bytes_, sizeof(uint32_t));
  }
  std::memcpy(rows.data(), cuda_.memory(outputs_, n * sizeof(uint32_t)), n * sizeof(uint32_t));
  float extra = 0;
  for (uint32_t p = start + launch.state.n_tokens; p < context; ++p) {
    if (notes[p] != 0) extra = ghost;
  }
  std::byte* out = cuda_.memory(logits, uint64_t{n} * vocabulary_ * sizeof(float));
  for (const uint32_t row : rows) {
    float sum = extra;
    for (uint32_t p = 0; p <= start + row; ++p) sum += static_cast<float>(notes[p] * (p + 1));
    for (uint32_t i = 0; i < vocabulary_; ++i, out += sizeof(float)) {
      const float value = sum + static_cast<float>(i);
      std::memcpy(out, &value, sizeof(value));
    }
  }
}

void ToyGpuTest::select(const fake_cuda::Launch& launch) const {
  spec::SelectWish wish;
  const auto* from = static_cast<const std::byte*>(launch.args.buffers[1]);
  std::memcpy(&wish, cuda_.memory(from, sizeof wish), sizeof wish);
  SelectionRequest request{.count = wish.wanted, .penalty = wish.penalty, .seen = {}};
  request.seen.resize(wish.n_seen);
  const size_t seen_bytes = wish.n_seen * sizeof(TokenId);
  if (seen_bytes > 0) {
    std::memcpy(request.seen.data(), cuda_.memory(from + sizeof wish, seen_bytes), seen_bytes);
  }
  std::vector<float> logits(vocabulary_);
  const auto* rows = static_cast<const float*>(launch.args.buffers[0]);
  const float* row = rows + size_t{launch.state.n_outputs - 1} * vocabulary_;
  std::memcpy(logits.data(), cuda_.memory(row, vocabulary_ * sizeof(float)),
              vocabulary_ * sizeof(float));
  const Candidates found = sorted_candidates(logits, request);
  const spec::SelectAnswer answer{
      found.not_finite, static_cast<uint32_t>(found.first_not_finite), {}};
  std::vector<spec::SelectCandidate> best;
  for (const auto& [logit, id] : found.best) best.push_back({logit, static_cast<uint32_t>(id)});
  const size_t bytes = best.size() * sizeof best[0];
  std::byte* to = cuda_.memory(launch.args.buffers[2], sizeof answer + bytes);
  std::memcpy(to, &answer, sizeof answer);
  if (bytes > 0) std::memcpy(to + sizeof answer, best.data(), bytes);
}

}  // namespace quern::test
