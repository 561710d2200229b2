#pragma once

#include <string_view>

#include "compiler/options.h"
#include "models/graph.h"

namespace quern::tools {

/// Which GPU a name of --device means: 1 for "cuda:1", 0 for "cuda" and where no GPU is named.
/// Throws Error (`usage`) for what is no device.
int device_index(std::string_view device);

/// What a plan of the model is made for: `named` is a name of --device or --target. With "auto" it
/// is the first GPU, where there is one that can run this model and has room for it, else this
/// machine's CPU; a GPU that is there and is not taken is said on stderr, with the reason. Throws
/// Error where there is no such device or target.
Target choose_target(const ModelGraph& graph, const PlanOptions& options, std::string_view named);
/// The same for a model that cannot be looked at yet: "auto" is this machine's CPU.
Target target_of_device(std::string_view named);

}  // namespace quern::tools
