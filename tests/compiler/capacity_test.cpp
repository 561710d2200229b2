// The capacity planner: classes on both sides of every boundary, and the largest context that fits.

#include "compiler/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "models/error.h"
#include "tests/compiler/small_graph.h"

namespace quern {
namespace {

using testing::HasSubstr;

const Target cpu_target = {"cpu", "x86-64-v3", "+avx2,+fma"};
constexpr uint64_t plenty = uint64_t{1} << 40;

/// Two layers, whose caches take most of the memory at the full context.
ModelGraph small_model() {
  test::SmallGraph g;
  const ValueId x = g.dense_layer(g.dense_layer(g.embed(), 0), 1);
  return g.finish(x);
}

const PlanOptions base_options = {.context = 2048, .chunk = 32, .kv = "f32"};

uint64_t total(PlanOptions options) {
  return make_plan(small_model(), options, cpu_target).capacity.total();
}

CapacityReport report(const DeviceMemory& memory, const PlanOptions& options = base_options) {
  return check_capacity(small_model(), options, cpu_target, memory);
}

TEST(Classify, boundaries_are_inclusive_and_ordered) {
  struct Case {
    uint64_t needed;
    std::vector<uint64_t> smaller;
    DeviceMemory memory;
    Verdict expected;
  };
  const Case cases[] = {
      {100, {60, 40}, {200, 100}, Verdict::fits},
      {101, {60, 40}, {200, 100}, Verdict::fits_when_freed},
      {200, {60, 40}, {200, 0}, Verdict::fits_when_freed},
      {201, {60, 40}, {200, 200}, Verdict::needs_smaller_kv},
      {201, {200, 40}, {200, 0}, Verdict::needs_smaller_kv},
      {500, {300, 200}, {200, 200}, Verdict::needs_smaller_kv},
      {500, {300, 201}, {200, 200}, Verdict::exceeds_device},
      {201, {}, {200, 200}, Verdict::exceeds_device},
      {0, {}, {0, 0}, Verdict::fits},
      {1, {0}, {0, 0}, Verdict::needs_smaller_kv},
      {1, {}, {0, 0}, Verdict::exceeds_device},
      // A driver that reports more free than total cannot take back what is free.
      {150, {}, {100, 150}, Verdict::fits},
      {~uint64_t{0}, {}, {~uint64_t{0}, 0}, Verdict::fits_when_freed},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(classify(c.needed, c.smaller, c.memory), c.expected)
        << c.needed << " of total " << c.memory.total << ", free " << c.memory.free;
  }
}

TEST(Capacity, a_plan_fits_exactly_as_many_bytes_as_it_accounts_for) {
  const uint64_t needed = total(base_options);
  EXPECT_EQ(report({plenty, needed}).verdict, Verdict::fits);
  EXPECT_EQ(report({plenty, needed - 1}).verdict, Verdict::fits_when_freed);
  EXPECT_EQ(report({needed, 0}).verdict, Verdict::fits_when_freed);
  EXPECT_EQ(report({needed - 1, 0}).verdict, Verdict::needs_smaller_kv);
}

TEST(Capacity, the_widest_smaller_cache_type_that_fits_is_named) {
  PlanOptions f16 = base_options, q8 = base_options;
  f16.kv = "f16";
  q8.kv = "q8_0";
  ASSERT_GT(total(base_options), total(f16));
  ASSERT_GT(total(f16), total(q8));
  const auto at = [&](uint64_t bytes) { return report({bytes, bytes}); };
  EXPECT_EQ(at(total(f16)).smaller_kv, spec::KvType::f16);
  EXPECT_EQ(at(total(f16) - 1).smaller_kv, spec::KvType::q8_0);
  EXPECT_EQ(at(total(q8)).smaller_kv, spec::KvType::q8_0);
  const CapacityReport beyond = at(total(q8) - 1);
  EXPECT_EQ(beyond.verdict, Verdict::exceeds_device);
  EXPECT_EQ(beyond.smaller_kv, std::nullopt);
  // The narrowest type has nothing below it.
  EXPECT_EQ(report({total(q8) - 1, 0}, q8).verdict, Verdict::exceeds_device);
}

TEST(Capacity, the_largest_context_fits_and_one_more_does_not) {
  for (const uint32_t context : {64u, 640u, 1000u, 4000u}) {
    PlanOptions options = base_options;
    options.context = context;
    const uint64_t limit = total(options);
    const uint32_t largest = report({plenty, limit}).largest_context;
    // Caches come in blocks of 64 positions, so that all of the last block fits as well.
    EXPECT_EQ(largest, (context + 63) / 64 * 64);
    options.context = largest;
    EXPECT_LE(total(options), limit);
    options.context = largest + 1;
    EXPECT_GT(total(options), limit);
    EXPECT_LT(report({plenty, limit - 1}).largest_context, largest);
  }
}

TEST(Capacity, contexts_shorter_than_a_chunk_are_found_too) {
  PlanOptions options = base_options;
  options.chunk = 512;
  options.context = 100;
  const uint64_t limit = total(options);
  options.context = 2048;
  const uint32_t largest = report({plenty, limit}, options).largest_context;
  EXPECT_GE(largest, 100u);
  options.context = largest;
  EXPECT_LE(total(options), limit);
  options.context = largest + 1;
  EXPECT_GT(total(options), limit);
}

TEST(Capacity, where_nothing_fits_no_context_is_named) {
  const CapacityReport nothing = report({1000, 1000});
  EXPECT_EQ(nothing.verdict, Verdict::exceeds_device);
  EXPECT_EQ(nothing.largest_context, 0u);
  EXPECT_THAT(nothing.explanation, HasSubstr("no context fits"));
}

TEST(Capacity, the_largest_context_stops_at_the_models_own) {
  EXPECT_EQ(report({plenty, plenty}).largest_context, 4096u);
  EXPECT_EQ(report({plenty, 0}).largest_context, 0u);
  EXPECT_EQ(report({plenty, 0}).largest_context_when_freed, 4096u);
}

TEST(Capacity, the_account_is_the_plans_own_at_every_context) {
  for (const uint32_t context : {1u, 31u, 32u, 33u, 2048u, 4096u}) {
    PlanOptions options = base_options;
    options.context = context;
    const CapacityAccount plan = make_plan(small_model(), options, cpu_target).capacity;
    const CapacityAccount account = report({plenty, plenty}, options).account;
    EXPECT_EQ(account.weights, plan.weights);
    EXPECT_EQ(account.kv, plan.kv) << context;
    EXPECT_EQ(account.recurrent, plan.recurrent);
    EXPECT_EQ(account.workspace, plan.workspace) << context;
    EXPECT_EQ(account.overhead, plan.overhead);
  }
}

TEST(Capacity, refusals_say_what_is_needed_and_what_to_do) {
  const uint64_t needed = total(base_options);
  EXPECT_NO_THROW(require_fit(report({needed, needed}), "small"));
  const std::array<std::pair<DeviceMemory, std::string>, 3> cases = {
      {{{needed, 0}, "when others release memory"},
       {{needed - 1, needed - 1}, "--kv f16"},
       {{1000, 1000}, "exceeds the device"}}};
  for (const auto& [memory, words] : cases) {
    try {
      require_fit(report(memory), "small");
      FAIL() << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
      EXPECT_THAT(error.what(), HasSubstr(words));
      EXPECT_THAT(error.what(), HasSubstr("ctx 2048"));
    }
  }
}

TEST(Capacity, options_that_make_no_sense_are_still_wrong_usage) {
  PlanOptions options = base_options;
  options.context = 5000;
  try {
    report({plenty, plenty}, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
  }
}

}  // namespace
}  // namespace quern
