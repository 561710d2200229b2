#include "compiler/capacity.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "compiler/compile_kernel.h"
#include "compiler/device_sizes.h"
#include "compiler/passes/passes.h"
#include "compiler/spec_names.h"
#include "models/error.h"

namespace quern {

namespace {

constexpr double mib = 1024.0 * 1024.0;

class Planner {
 public:
  Planner(const ModelGraph& graph, const PlanOptions& options, const Target& target)
      : graph_(graph), options_(options), target_(target) {}

  CapacityAccount account(uint32_t context, const std::string& kv) {
    if (context < options_.chunk || is_cuda(target_)) return plan(context, kv).capacity;
    // On the CPU only the caches grow with the context from a whole chunk on: one plan a KV type is
    // enough. On the GPU RoPE tables and attention's scratch grow too.
    auto [base, added] = bases_.try_emplace(kv);
    if (added) base->second = plan(options_.chunk, kv);
    CapacityAccount account = base->second.capacity;
    account.kv = 0;
    for (const Step& step : base->second.steps) {
      const auto* attention =
          std::get_if<spec::AttentionSpec>(&base->second.kernels[step.kernel].spec);
      if (attention == nullptr) continue;
      for (const uint32_t dim : {attention->head_dim, attention->value_dim}) {
        account.kv +=
            kv_cache_bytes(target_, attention->kv, attention->n_head_kv, dim, kv_capacity(context));
      }
    }
    return account;
  }

  /// The largest context up to the model's own that takes at most `limit` bytes; 0 where none does.
  uint32_t largest_context(const std::string& kv, uint64_t limit) {
    const auto fits = [&](uint32_t context) { return account(context, kv).total() <= limit; };
    uint32_t low = 0;  // Fits, or is 0.
    uint32_t high = std::max(graph_.context_length, options_.context);
    if (fits(high)) return high;
    while (high - low > 1) {
      const uint32_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return low;
  }

 private:
  Plan plan(uint32_t context, const std::string& kv) const {
    PlanOptions options = options_;
    options.context = context;
    options.kv = kv;
    // NVRTC need not be loaded for keys that nobody reads.
    return passes::build_plan(graph_, options, target_, /*keys=*/!is_cuda(target_));
  }

  const ModelGraph& graph_;
  const PlanOptions& options_;
  const Target& target_;
  std::map<std::string, Plan> bases_;
};

std::string sizes_text(const CapacityAccount& account, const PlanOptions& options) {
  return fmt::format(
      "{:.1f} MiB at ctx {} with {} KV (weights {:.1f}, KV {:.1f}, recurrent {:.1f}, workspace "
      "{:.1f}, overhead {:.1f})",
      static_cast<double>(account.total()) / mib, options.context, options.kv,
      static_cast<double>(account.weights) / mib, static_cast<double>(account.kv) / mib,
      static_cast<double>(account.recurrent) / mib, static_cast<double>(account.workspace) / mib,
      static_cast<double>(account.overhead) / mib);
}

std::string context_advice(uint32_t context) {
  return context == 0 ? std::string("no context fits")
                      : fmt::format("the largest context that fits is --ctx {}", context);
}

std::string explain(const CapacityReport& report, const PlanOptions& options,
                    const DeviceMemory& memory) {
  const std::string needs = sizes_text(report.account, options);
  const double free = static_cast<double>(memory.free) / mib;
  const double total = static_cast<double>(memory.total) / mib;
  switch (report.verdict) {
    case Verdict::fits:
      return fmt::format("needs {}, and {:.1f} MiB are free: it fits; {}", needs, free,
                         context_advice(report.largest_context));
    case Verdict::fits_when_freed:
      return fmt::format(
          "needs {}, and {:.1f} of {:.1f} MiB are free: it fits when others release memory; now {}",
          needs, free, total, context_advice(report.largest_context));
    case Verdict::needs_smaller_kv:
      return fmt::format(
          "needs {}, and the device has {:.1f} MiB: it needs a smaller KV type, --kv {}; with {} "
          "KV {}",
          needs, total, spec_name(report.smaller_kv.value_or(spec::KvType::f32)), options.kv,
          context_advice(report.largest_context_when_freed));
    case Verdict::exceeds_device:
      break;
  }
  return fmt::format("needs {}, and the device has {:.1f} MiB: it exceeds the device; {}", needs,
                     total, context_advice(report.largest_context_when_freed));
}

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::fits:
      return "fits";
    case Verdict::fits_when_freed:
      return "fits when others release memory";
    case Verdict::needs_smaller_kv:
      return "needs a smaller KV type";
    case Verdict::exceeds_device:
      break;
  }
  return "exceeds the device";
}

Verdict classify(uint64_t needed, std::span<const uint64_t> smaller, const DeviceMemory& memory) {
  // What an empty device could hold is at least what is free now, whatever a driver reports.
  const uint64_t empty = std::max(memory.total, memory.free);
  if (needed <= memory.free) return Verdict::fits;
  if (needed <= empty) return Verdict::fits_when_freed;
  for (const uint64_t bytes : smaller) {
    if (bytes <= empty) return Verdict::needs_smaller_kv;
  }
  return Verdict::exceeds_device;
}

CapacityReport check_capacity(const ModelGraph& graph, const PlanOptions& options,
                              const Target& target, const DeviceMemory& memory) {
  std::vector<Decision> ignored;
  const PlanOptions resolved = passes::resolve(options, graph, target, ignored);
  Planner planner(graph, resolved, target);
  CapacityReport report;
  report.account = planner.account(resolved.context, resolved.kv);

  // By what they take and not by their bits: q8_0 pads small heads to whole blocks.
  std::vector<std::pair<uint64_t, spec::KvType>> smaller;
  const bool f32_runs = !is_cuda(target) || resolved.attention == "wave";
  for (const auto& [type, name] : SpecNames<spec::KvType>::table) {
    if (type == spec::KvType::f32 && !f32_runs) continue;
    const uint64_t total = planner.account(resolved.context, std::string(name)).total();
    if (total < report.account.total()) smaller.emplace_back(total, type);
  }
  std::ranges::sort(smaller, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::vector<uint64_t> totals;
  totals.reserve(smaller.size());
  for (const auto& candidate : smaller) totals.push_back(candidate.first);
  report.verdict = classify(report.account.total(), totals, memory);
  const uint64_t empty = std::max(memory.total, memory.free);
  if (report.verdict == Verdict::needs_smaller_kv) {
    const auto widest =
        std::ranges::find_if(totals, [&](uint64_t bytes) { return bytes <= empty; });
    report.smaller_kv = smaller[static_cast<size_t>(widest - totals.begin())].second;
  }
  report.largest_context = planner.largest_context(resolved.kv, memory.free);
  report.largest_context_when_freed = planner.largest_context(resolved.kv, empty);
  report.explanation = explain(report, resolved, memory);
  return report;
}

void require_fit(const CapacityReport& report, std::string_view model_name) {
  if (report.verdict == Verdict::fits) return;
  throw Error(ErrorKind::does_not_fit, model_name,
              fmt::format("{}: {}", verdict_name(report.verdict), report.explanation));
}

}  // namespace quern
