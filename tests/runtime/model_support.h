#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/plan.h"
#include "models/model.h"
#include "runtime/engine.h"
#include "tests/support/fixtures.h"

// Loads fixtures into engines for the runtime's tests.
namespace quern::test {

/// A store that lasts: cases are processes of their own, and kernels need compiling once for all of
/// them. Its keys cover the kernels' sources, so that it never goes stale. QUERN_TEST_STORE_DIR
/// names another folder.
inline KernelStore& test_store() {
  static KernelStore store(
      {.directory = test_folder("QUERN_TEST_STORE_DIR", QUERN_TEST_STORE), .readonly_tiers = {}});
  return store;
}

inline PlanOptions test_options(uint32_t context, uint32_t chunk = 512) {
  PlanOptions options;
  options.device = "cpu";
  options.context = context;
  options.chunk = chunk;
  options.all_logits = true;
  return options;
}

inline Plan plan_fixture(const gguf::File& file, const PlanOptions& options) {
  return make_plan(build_graph(file), options, cpu::resolve_target("native"));
}

inline std::shared_ptr<Engine> load_fixture(const std::filesystem::path& path,
                                            const PlanOptions& options, uint32_t threads = 2) {
  gguf::File file = gguf::File::open(path);
  Plan plan = plan_fixture(file, options);
  EngineOptions engine_options;
  engine_options.threads = threads;
  return Engine::load(std::move(file), std::move(plan), test_store(), cpu::compile_kernel,
                      engine_options);
}

/// The rows of a golden file as indices into its tokens.
inline std::vector<uint32_t> golden_rows(const Golden& golden) {
  return {golden.positions.begin(), golden.positions.end()};
}

/// Logits of `rows` (indices into `tokens`) of a fresh run in chunks.
inline std::vector<float> run_rows(Session& session, std::span<const TokenId> tokens,
                                   std::span<const uint32_t> rows, uint32_t chunk) {
  std::vector<float> logits;
  session.feed(tokens, session.position(), rows, chunk, [&](uint32_t, std::span<const float> row) {
    logits.insert(logits.end(), row.begin(), row.end());
  });
  return logits;
}

/// The same, one call a token.
inline std::vector<float> step_rows(Session& session, std::span<const TokenId> tokens,
                                    std::span<const uint32_t> rows) {
  std::vector<float> logits;
  auto next = rows.begin();
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    const bool wanted = next != rows.end() && *next == i;
    const auto row = session.feed(tokens.subspan(i, 1), session.position(),
                                  wanted ? OutputRows::last : OutputRows::none);
    logits.insert(logits.end(), row.begin(), row.end());
    if (wanted) ++next;
  }
  return logits;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// How far logits are from the golden ones.
struct Deviation {
  double relative = 0;      ///< Largest absolute error over the standard deviation of the logits.
  size_t wrong_argmax = 0;  ///< Rows whose best token differs although its lead exceeds the error.
};

inline Deviation deviation(std::span<const float> logits, const Golden& golden) {
  double sum = 0;
  double squares = 0;
  double worst = 0;
  for (size_t i = 0; i < golden.logits.size(); ++i) {
    const double value = golden.logits[i];
    sum += value;
    squares += value * value;
    const double error = std::fabs(value - static_cast<double>(logits[i]));
    worst = error <= worst ? worst : error;  // NaN counts as worst.
  }
  const auto n = static_cast<double>(golden.logits.size());
  Deviation result;
  result.relative = worst / std::sqrt(squares / n - (sum / n) * (sum / n));
  for (size_t row = 0; row * golden.vocabulary < golden.logits.size(); ++row) {
    const auto expected =
        std::span(golden.logits).subspan(row * golden.vocabulary, golden.vocabulary);
    const auto actual = logits.subspan(row * golden.vocabulary, golden.vocabulary);
    const auto best = std::max_element(expected.begin(), expected.end()) - expected.begin();
    const auto mine = std::max_element(actual.begin(), actual.end()) - actual.begin();
    const double lead = static_cast<double>(expected[best]) - static_cast<double>(expected[mine]);
    if (best != mine && lead > 2 * worst) ++result.wrong_argmax;
  }
  return result;
}

/// A fixture's name ("quant/llama-q4_0") as a part of a test's name.
inline std::string case_name_of(std::string fixture) {
  for (char& c : fixture) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return fixture;
}

/// That a state can be branched off, saved, restored elsewhere and gone back to, each time going on
/// with the bits of the straight way. `session` is fresh and `tokens` are at least twenty.
inline void expect_states_to_move(Engine& engine, Session& session,
                                  std::span<const TokenId> tokens) {
  const auto half = static_cast<uint32_t>(tokens.size() / 2 + 3);
  const auto rest = tokens.subspan(half);
  const std::vector<uint32_t> wanted = {0, 1, static_cast<uint32_t>(rest.size() - 1)};
  session.feed(tokens.first(half), 0, OutputRows::none);
  const auto image = session.save();
  const auto branch = session.branch();
  const auto straight = run_rows(session, rest, wanted, 0);
  EXPECT_TRUE(same_bits(run_rows(*branch, rest, wanted, 7), straight)) << "branch";

  const auto restored = engine.new_session();
  restored->feed(tokens.first(5), 0, OutputRows::none);  // Something else that must vanish.
  restored->restore(image);
  EXPECT_EQ(restored->position(), half);
  EXPECT_EQ(restored->save(), image);
  EXPECT_TRUE(same_bits(run_rows(*restored, rest, wanted, 0), straight)) << "restore";

  session.restore(image);  // Back in time, over a longer state.
  EXPECT_TRUE(same_bits(run_rows(session, rest, wanted, 0), straight)) << "rewind";
}

}  // namespace quern::test
