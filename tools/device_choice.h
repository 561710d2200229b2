#pragma once

#include <string_view>

#include "compiler/options.h"
#include "models/graph.h"

namespace quern::tools {

/// What a name of --device or --target stands for: a GPU's target where one is named. Throws Error
/// where there is no such device or target.
Target target_of_device(std::string_view device);

/// Which GPU a name of --device means: 1 for "cuda:1", 0 for "cuda" and where no GPU is named.
/// Throws Error (`usage`) for what is no device.
int device_index(std::string_view device);

/// --device auto: the first GPU, where there is one that can run this model and has room for it;
/// else this machine's CPU. A GPU that is there and is not taken is said on stderr, with the
/// reason.
Target choose_target(const ModelGraph& graph, const PlanOptions& options);

}  // namespace quern::tools
