#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "compiler/plan.h"

namespace quern::test {

/// Brute force over every pair of buffers and every step: two that are both needed at a step may
/// not share a byte. A buffer is needed from its first to its last mention; counters and what is
/// kept always.
inline void expect_no_overlap(const Plan& plan) {
  const auto touches = [&](const Step& step, uint32_t index) {
    return std::ranges::any_of(step.buffers, [&](const BufferRef& buffer) {
      return buffer.kind == BufferKind::activation && buffer.index == index;
    });
  };
  std::vector<std::vector<bool>> alive(plan.activations.size());
  for (uint32_t i = 0; i < plan.activations.size(); ++i) {
    alive[i].assign(plan.steps.size(), false);
    const auto first =
        std::ranges::find_if(plan.steps, [&](const Step& s) { return touches(s, i); });
    auto last = first;
    for (auto step = first; step != plan.steps.end(); ++step) {
      if (touches(*step, i)) last = step;
    }
    ASSERT_NE(first, plan.steps.end()) << plan.activations[i].name << " is never used";
    for (auto step = first; step <= last; ++step) {
      alive[i][static_cast<size_t>(step - plan.steps.begin())] = true;
    }
    if (plan.activations[i].form == ActivationForm::counters ||
        plan.activations[i].form == ActivationForm::kept) {
      alive[i].assign(plan.steps.size(), true);
    }
  }
  for (uint32_t a = 0; a < plan.activations.size(); ++a) {
    const ActivationBuffer& left = plan.activations[a];
    EXPECT_EQ(left.offset % 64, 0u) << left.name;
    EXPECT_LE(left.offset + left.bytes, plan.arena_bytes) << left.name;
    for (uint32_t b = a + 1; b < plan.activations.size(); ++b) {
      const ActivationBuffer& right = plan.activations[b];
      const bool share =
          left.offset < right.offset + right.bytes && right.offset < left.offset + left.bytes;
      if (!share) continue;
      for (size_t step = 0; step < plan.steps.size(); ++step) {
        EXPECT_FALSE(alive[a][step] && alive[b][step])
            << left.name << " and " << right.name << " at " << plan.steps[step].name;
      }
    }
  }
}

}  // namespace quern::test
