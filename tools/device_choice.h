#pragma once

#include <optional>
#include <string_view>

#include "compiler/plan.h"
#include "models/graph.h"

namespace quern::tools {

/// Which GPU a name of --device means: 1 for "cuda:1", 0 for "cuda" and where no GPU is named.
/// Throws Error (`usage`) for what is no device.
int device_index(std::string_view device);

/// The target that a name of --device or --target stands for; nothing for "auto", which depends on
/// the model. Throws Error where there is no such device or target.
std::optional<Target> named_target(std::string_view name);

/// The model's plan for the target. Without one it is for the first GPU, where there is one that
/// can run this model and has room for it, else for this machine's CPU; a GPU that is there and is
/// not taken is said on stderr, with the reason. Throws what make_plan throws.
Plan plan_for(const ModelGraph& graph, const PlanOptions& options,
              const std::optional<Target>& target);

}  // namespace quern::tools
