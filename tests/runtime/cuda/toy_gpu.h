#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan.h"
#include "runtime/engine.h"
#include "tests/support/fake_cuda/fake_cuda.h"

// Engines on the stand-in driver. The kernels of their plans do a toy's work, so that everything
// around them (inputs, order, state, graphs, results) can be checked to the bit: each token is
// noted in the session's key cache, and logits tell what was noted. Selections are done by sorting.
namespace quern::test {

/// A plan for sm_90a of a fixture, with all logits.
Plan plan_for_gpu(const std::filesystem::path& model, uint32_t context, uint32_t chunk);

/// What the toy's logits are for the last of these tokens, in a session that was fed no others.
std::vector<float> toy_logits(std::span<const TokenId> tokens, uint32_t vocabulary);

/// Cases that load engines on the stand-in.
class ToyGpuTest : public FakeCudaTest {
 protected:
  static constexpr uint32_t context = 64, chunk = 16;

  void SetUp() override;
  void TearDown() override;
  /// The engine of tests/data/fixtures/llama.gguf. Its kernels come from a store in memory, so that
  /// NVRTC is not needed.
  std::shared_ptr<Engine> load(const EngineOptions& options = {});
  std::shared_ptr<Engine> load(const std::filesystem::path& model, Plan plan,
                               const EngineOptions& options = {});
  /// Feeds in pieces (0: the plan's chunks) and expects the toy's logits of the last token;
  /// `before`: what the session holds.
  static void expect_toy(Session& session, std::span<const TokenId> before,
                         std::span<const TokenId> tokens, uint32_t pieces = 0);
  std::span<const TokenId> part(size_t begin, size_t count) const {
    return std::span(tokens_).subspan(begin, count);
  }
  /// What the Error says that the call throws.
  static std::string message_of(const std::function<void()>& call);
  /// Launches of that name in the session's last call.
  static uint32_t launches_of(const Session& session, std::string_view name);

  std::filesystem::path model_;
  std::vector<TokenId> tokens_;  ///< As many as the context holds.

 private:
  /// Which argument of a kernel is what, -1 for none.
  struct Roles {
    bool writes_cache = false, selects = false;
    int tokens = -1, outputs = -1, logits = -1, keys = -1;
  };
  void note_roles(const Plan& plan);
  void ran(const fake_cuda::Launch& launch);
  void write_cache(const fake_cuda::Launch& launch, const void* keys);
  void write_logits(const fake_cuda::Launch& launch, const void* logits) const;
  void select(const fake_cuda::Launch& launch) const;

  std::vector<Roles> roles_;  ///< By kernel of the plan.
  uint32_t vocabulary_ = 0;
  uint64_t position_bytes_ = 0;  ///< Of a position in a key cache, all heads together.
  // Of the newest launches: which session's memory, and where the inputs are.
  const void *cache_ = nullptr, *token_ids_ = nullptr, *outputs_ = nullptr;
};

}  // namespace quern::test
