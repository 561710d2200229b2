#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "compiler/plan.h"

namespace quern {

/// Memory of a device, in bytes.
struct DeviceMemory {
  uint64_t total = 0;  ///< What an empty device could give to one process.
  uint64_t free = 0;   ///< What it can give now.
};

/// Whether a plan fits a device. Boundaries are inclusive: exactly as many bytes as there are do
/// fit.
enum class Verdict {
  fits,              ///< total of the account <= free.
  fits_when_freed,   ///< <= total: others hold what is missing.
  needs_smaller_kv,  ///< > total, but <= total with a smaller KV type.
  exceeds_device,    ///< > total with every KV type.
};
std::string_view verdict_name(Verdict verdict);

struct CapacityReport {
  CapacityAccount account;  ///< With the options' context, chunk and KV type.
  Verdict verdict = Verdict::exceeds_device;
  /// The largest context, up to the model's own, whose account fits `free` with the same options
  /// otherwise; 0 where none does.
  uint32_t largest_context = 0;
  /// The largest such context on an empty device (`total`).
  uint32_t largest_context_when_freed = 0;
  /// The KV type that takes the most of those that take less and fit the empty device; set for
  /// needs_smaller_kv alone.
  std::optional<spec::KvType> smaller_kv;
  std::string explanation;  ///< One line: what is needed, what there is, what to do.
};

/// Accounts for a model at the options' context, chunk and KV type, and classifies it against a
/// device. Pure. Throws what make_plan throws for options that make no sense.
CapacityReport check_capacity(const ModelGraph& graph, const PlanOptions& options,
                              const Target& target, const DeviceMemory& memory);

/// The classification alone: `smaller` are totals of the accounts with smaller KV types.
Verdict classify(uint64_t needed, std::span<const uint64_t> smaller, const DeviceMemory& memory);

/// Throws Error (`does_not_fit`) with the report's explanation unless the verdict is `fits`.
void require_fit(const CapacityReport& report, std::string_view model_name);

}  // namespace quern
