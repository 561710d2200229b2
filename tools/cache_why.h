#pragma once

#include <string>
#include <vector>

#include "compiler/kernel.h"
#include "tools/common.h"

namespace quern::tools {

struct WhyFlags {
  std::string source;
  PlanFlags plan;
  std::string target;  ///< As for quern compile; empty: --device.
  bool json = false;
};

/// Fields in which two keys differ, a line each: "target: A | B". A spec is taken apart field by
/// field.
std::vector<std::string> key_differences(const KernelKey& a, const KernelKey& b);

/// quern cache why: for every kernel of a model's plan, whether the store has it, and where not,
/// how the nearest kernel of its family differs.
int explain_kernels(const WhyFlags& flags);

/// The plan of a bundle, a plan.json, or the one that would be made for a GGUF file and `target`
/// (empty: --device). Only reads: no code of a bundle runs, so it needs no trust.
Plan read_plan(const std::string& source, const PlanFlags& flags, const std::string& target = {});

}  // namespace quern::tools
