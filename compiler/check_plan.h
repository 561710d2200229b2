#pragma once

#include <string_view>

#include "compiler/plan.h"

namespace quern {

/// Throws Error (`failed`) naming the part of the plan that contradicts another: an index that
/// points nowhere, a buffer too small for what its kernel does, buffers that live at the same time
/// on the same bytes, a read before any write, offsets beyond the arena, totals that do not add up.
/// A plan that passes keeps every kernel inside its buffers.
void check_plan(const Plan& plan, std::string_view name);

}  // namespace quern
