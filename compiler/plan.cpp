#include "compiler/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "compiler/check_plan.h"
#include "compiler/compile_kernel.h"
#include "compiler/cpu/cpu_compiler.h"
#include "compiler/passes/passes.h"
#include "compiler/spec_names.h"

namespace quern {

namespace {

/// Kernels by their spec: equal specs are one kernel.
class KernelTable {
 public:
  /// `keys`: kernels get the keys that they are compiled and stored under.
  KernelTable(Plan& plan, bool keys) : plan_(plan), keys_(keys) {}

  uint32_t index_of(const spec::AnySpec& spec) {
    const auto [entry, added] =
        index_.try_emplace(spec_to_text(spec), static_cast<uint32_t>(plan_.kernels.size()));
    if (added) {
      plan_.kernels.push_back(
          {.spec = spec,
           .key_digest = keys_ && !is_library(spec) ? kernel_key(spec, plan_.target).digest() : "",
           .entry_digest = {}});
    }
    return entry->second;
  }

 private:
  Plan& plan_;
  bool keys_;
  std::map<std::string, uint32_t> index_;
};

void set_kernels(Plan& plan, passes::Program& program, bool keys) {
  KernelTable table(plan, keys);
  for (passes::Program::Launch& launch : program.launches) {
    std::vector<StepVariant> variants;
    for (const passes::Program::Variant& variant : launch.variants) {
      variants.push_back({variant.max_tokens, table.index_of(variant.spec)});
    }
    plan.steps.push_back({.kernel = table.index_of(launch.spec),
                          .variants = std::move(variants),
                          .buffers = std::move(launch.buffers),
                          .rows = launch.rows,
                          .run = launch.run,
                          .layer = launch.layer,
                          .name = std::move(launch.name)});
  }
  for (WeightBinding& weight : program.weights) {
    if (weight.form != WeightForm::packed) continue;
    weight.repack_kernel = table.index_of(
        spec::RepackSpec{.type = to_spec(weight.slice.type),
                         .k = static_cast<uint32_t>(weight.slice.k),
                         .tier = is_cuda(plan.target) ? spec::Tier::mma : spec::Tier::cpu});
  }
}

}  // namespace

uint32_t kv_capacity(uint32_t context) {
  constexpr uint32_t granule = 64;
  return context > ~granule ? ~uint32_t{0} / granule * granule
                            : (context + granule - 1) / granule * granule;
}

bool runs(const Plan& plan, const Step& step, uint32_t rows) {
  switch (step.run) {
    case StepRun::always:
      return rows > 0;
    case StepRun::few:
      return rows > 0 && rows <= plan.few_rows;
    case StepRun::many:
      return rows > plan.few_rows;
    case StepRun::once:
      break;
  }
  return false;
}

bool needs_library(const Plan& plan) {
  return std::ranges::any_of(plan.kernels,
                             [](const PlanKernel& kernel) { return is_library(kernel.spec); });
}

const spec::SelectSpec* selection_of(const Plan& plan) {
  if (plan.steps.empty() || plan.steps.back().kernel >= plan.kernels.size()) return nullptr;
  return std::get_if<spec::SelectSpec>(&plan.kernels[plan.steps.back().kernel].spec);
}

CapacityAccount account_of(const Plan& plan) {
  CapacityAccount account;
  for (const WeightBinding& weight : plan.weights) account.weights += weight.bytes;
  for (const StateBuffer& state : plan.states) {
    const bool cache = state.kind == StateKind::key_cache || state.kind == StateKind::value_cache;
    (cache ? account.kv : account.recurrent) += state.bytes;
  }
  uint64_t kept = 0;
  for (const ActivationBuffer& buffer : plan.activations) {
    if (buffer.form == ActivationForm::kept)
      kept += std::min(buffer.bytes, plan.arena_bytes - kept);
  }
  account.weights += kept;
  account.workspace =
      plan.arena_bytes - kept + uint64_t{plan.max_outputs} * plan.vocabulary * sizeof(float) +
      uint64_t{plan.max_outputs} * sizeof(int32_t) + uint64_t{plan.options.chunk} * sizeof(int32_t);
  const bool gpu = is_cuda(plan.target);
  const uint64_t rope_rows = gpu ? plan.options.context : plan.options.chunk;
  for (const Rope& rope : plan.ropes) {
    account.workspace += rope_rows * rope.n_rot * sizeof(float);
  }
  if (const spec::SelectSpec* selection = selection_of(plan)) {
    account.workspace += spec::select_wish_bytes() + spec::select_answer_bytes(*selection);
  }
  if (gpu) {
    account.overhead = staging_bytes + (needs_library(plan) ? library_workspace_bytes : 0);
    return account;
  }
  for (const PlanKernel& kernel : plan.kernels) {
    account.overhead =
        std::max(account.overhead, cpu::scratch_bytes(kernel.spec, plan.options.chunk));
  }
  return account;
}

namespace {

Plan build(const ModelGraph& graph, const PlanOptions& options, const Target& target, bool keys,
           bool keep) {
  Plan plan;
  plan.architecture = graph.architecture;
  plan.model_name = graph.name;
  plan.model_fingerprint = graph.fingerprint;
  plan.target = target;
  plan.vocabulary = graph.vocabulary;
  plan.ropes = graph.ropes;
  std::vector<Decision> decisions;
  plan.options = passes::resolve(options, graph, target, decisions);
  plan.max_outputs = plan.options.all_logits ? plan.options.chunk : 1;

  const ModelGraph selected = passes::select_outputs(graph, decisions);
  passes::Program program = passes::fuse(selected);
  if (plan.options.numerics == Numerics::fast && is_cuda(target)) {
    program.keep_plain_weights = keep;
    program.few_rows = keep ? passes::few_rows_of_kept : passes::few_rows_of_decoded;
  }
  passes::choose(program, plan.options, target);
  passes::relax(program, plan.options);
  passes::lay_out(program,
                  {.chunk = plan.options.chunk,
                   .max_outputs = plan.max_outputs,
                   .kv_capacity = kv_capacity(plan.options.context)},
                  target);
  set_kernels(plan, program, keys);

  plan.activations = std::move(program.activations);
  plan.arena_bytes = program.arena_bytes;
  plan.weights = std::move(program.weights);
  plan.states = std::move(program.states);
  plan.state_bytes = program.state_bytes;
  plan.few_rows = program.few_rows;
  plan.decisions = std::move(decisions);
  plan.decisions.insert(plan.decisions.end(), program.decisions.begin(), program.decisions.end());
  plan.capacity = account_of(plan);
  check_plan(plan, graph.architecture);
  return plan;
}

}  // namespace

Plan passes::build_plan(const ModelGraph& graph, const PlanOptions& options, const Target& target,
                        bool keys) {
  if (options.numerics == Numerics::fast && options.free_bytes > 0 && is_cuda(target)) {
    // What is left is for the states of more sessions.
    Plan plan = build(graph, options, target, keys, /*keep=*/true);
    if (plan.capacity.total() <= options.free_bytes / 4 * 3) return plan;
  }
  return build(graph, options, target, keys, /*keep=*/false);
}

Plan make_plan(const ModelGraph& graph, const PlanOptions& options, const Target& target) {
  return passes::build_plan(graph, options, target, can_compile(target));
}

}  // namespace quern
