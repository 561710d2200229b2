#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "compiler/plan.h"
#include "models/error.h"
#include "tests/compiler/no_overlap.h"

namespace quern::test {

/// A plan's text is refused by its file's name, or makes a plan that is sound and can be written.
inline void expect_refused_or_sound(const std::string& text) {
  try {
    const Plan plan = plan_from_json(text, "plan.json");
    const std::string written = plan_to_json(plan);
    EXPECT_EQ(written, plan_to_json(plan_from_json(written, "plan.json")));
    expect_no_overlap(plan);
    describe_plan(plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failed) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr("plan.json"));
  }
}

}  // namespace quern::test
