#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compiler/plan.h"
#include "models/error.h"
#include "tests/compiler/no_overlap.h"

namespace quern::test {

/// Why a plan's text is refused; empty where it is read.
inline std::string refusal(const std::string& text) {
  try {
    plan_from_json(text, "plan.json");
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

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

/// The same for the plan's text with each of its numbers in turn replaced by each of `others`.
inline void expect_numbers_refused_or_sound(const Plan& made,
                                            const std::vector<nlohmann::ordered_json>& others) {
  const auto json = nlohmann::ordered_json::parse(plan_to_json(made)), flat = json.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    if (!value.is_number()) continue;
    for (const nlohmann::ordered_json& other : others) {
      auto changed = json;
      changed.at(nlohmann::ordered_json::json_pointer(pointer)) = other;
      SCOPED_TRACE(pointer + " = " + other.dump());
      expect_refused_or_sound(changed.dump());
    }
  }
}

}  // namespace quern::test
