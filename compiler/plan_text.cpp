// A plan for people, and the differences of two.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "compiler/plan.h"
#include "compiler/plan_names.h"
#include "compiler/spec_json.h"

namespace quern {

namespace {

std::string human_bytes(uint64_t bytes) {
  constexpr std::string_view units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

/// What tells one kernel of a family from another, in short: its fields that are not zero.
std::string kernel_summary(const spec::AnySpec& spec) {
  std::string text;
  for (const auto& [field, value] : spec_fields(spec)) {
    if (value == "0" || value == "none" || value == "store" || value == "cpu") continue;
    if (field.ends_with(".type") && text.find("n_segments") == std::string::npos) {
      // Types of segments beyond the last say nothing: rows of 0 are left out below.
      const std::string rows = field.substr(0, field.size() - 4) + "rows";
      const auto fields = spec_fields(spec);
      const auto found = std::ranges::find(fields, rows, [](const auto& f) { return f.first; });
      if (found != fields.end() && found->second == "0") continue;
    }
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", field, value);
  }
  return text;
}

std::string buffer_text(const Plan& plan, const BufferRef& buffer) {
  switch (buffer.kind) {
    case BufferKind::activation:
      return buffer.index < plan.activations.size() ? plan.activations[buffer.index].name : "?";
    case BufferKind::weight: {
      if (buffer.index >= plan.weights.size()) return "?";
      const WeightBinding& weight = plan.weights[buffer.index];
      return fmt::format("{}[{}]", weight.slice.tensor, weight.slice.offset);
    }
    case BufferKind::state: {
      if (buffer.index >= plan.states.size()) return "?";
      const StateBuffer& state = plan.states[buffer.index];
      return fmt::format("{} of layer {}", spec_name(state.kind), state.layer);
    }
    case BufferKind::rope:
      return fmt::format("rope {}", buffer.index);
    default:
      return std::string(spec_name(buffer.kind));
  }
}

/// Which launches a step belongs to; empty for all.
std::string launches_text(const Plan& plan, const Step& step) {
  switch (step.run) {
    case StepRun::always:
      break;
    case StepRun::few:
      return fmt::format("up to {} rows", plan.few_rows);
    case StepRun::many:
      return fmt::format("more than {} rows", plan.few_rows);
    case StepRun::once:
      return "when loaded";
  }
  return {};
}

/// A plan's parts as lines "key = value", keyed by what a thing is and not by its number, so that a
/// step more at the front does not make every later one differ.
class Facts {
 public:
  explicit Facts(const Plan& plan) {
    add_head(plan);
    for (const ActivationBuffer& buffer : plan.activations) {
      add("activation " + buffer.name, "bytes",
          fmt::format("{} ({} a row{}, {})", buffer.bytes, buffer.bytes_per_row,
                      buffer.selected ? ", output rows" : "", spec_name(buffer.form)));
      add("activation " + buffer.name, "offset", fmt::to_string(buffer.offset));
    }
    for (const WeightBinding& weight : plan.weights) add_weight(weight);
    for (const StateBuffer& state : plan.states) {
      const std::string thing =
          fmt::format("state {} of layer {}", spec_name(state.kind), state.layer);
      add(thing, "bytes", fmt::to_string(state.bytes));
      add(thing, "offset", fmt::to_string(state.offset));
    }
    for (const PlanKernel& kernel : plan.kernels) {
      const std::string thing =
          fmt::format("kernel {} {}", spec_family(kernel.spec), kernel_summary(kernel.spec));
      add(thing, "key", kernel.key_digest);
      add(thing, "entry", kernel.entry_digest.empty() ? "not compiled" : kernel.entry_digest);
    }
    for (const Step& step : plan.steps) add_step(plan, step);
    for (const Decision& decision : plan.decisions) {
      add("decision " + decision.subject, "",
          fmt::format("{} ({})", decision.choice, decision.reason));
    }
  }

  struct Fact {
    std::string thing, field, value;
  };
  const std::vector<Fact>& list() const { return list_; }
  const Fact* find(const Fact& like) const {
    const auto found = index_.find(like.thing + '\n' + like.field);
    return found == index_.end() ? nullptr : &list_[found->second];
  }
  bool has(const std::string& thing) const { return seen_.contains(thing); }

 private:
  /// A thing that comes again gets a number: "#2".
  void add(std::string thing, std::string field, std::string value) {
    std::string key = thing + '\n' + field;
    for (int again = 2; index_.contains(key); ++again) {
      key = fmt::format("{} #{}\n{}", thing, again, field);
    }
    seen_[key.substr(0, key.find('\n'))] = true;
    index_[key] = list_.size();
    list_.push_back({key.substr(0, key.find('\n')), std::move(field), std::move(value)});
  }

  void add_head(const Plan& plan) {
    add("model", "architecture", plan.architecture);
    add("model", "name", plan.model_name);
    add("model", "fingerprint", plan.model_fingerprint);
    add("model", "vocabulary", fmt::to_string(plan.vocabulary));
    add("target", "",
        fmt::format("{} {} {}", plan.target.kind, plan.target.name, plan.target.features));
    const PlanOptions& o = plan.options;
    add("option", "device", o.device);
    add("option", "ctx", fmt::to_string(o.context));
    add("option", "chunk", fmt::to_string(o.chunk));
    add("option", "numerics", std::string(spec_name(o.numerics)));
    add("option", "attention", o.attention);
    add("option", "kv", o.kv);
    add("option", "gpu-layers", fmt::to_string(o.gpu_layers));
    add("option", "all-logits", o.all_logits ? "yes" : "no");
    add("plan", "max_outputs", fmt::to_string(plan.max_outputs));
    add("plan", "arena_bytes", fmt::to_string(plan.arena_bytes));
    if (plan.few_rows != 0) add("plan", "few_rows", fmt::to_string(plan.few_rows));
    add("plan", "state_bytes", fmt::to_string(plan.state_bytes));
    const CapacityAccount& c = plan.capacity;
    add("capacity", "weights", fmt::to_string(c.weights));
    add("capacity", "kv", fmt::to_string(c.kv));
    add("capacity", "recurrent", fmt::to_string(c.recurrent));
    add("capacity", "workspace", fmt::to_string(c.workspace));
    add("capacity", "overhead", fmt::to_string(c.overhead));
    for (size_t i = 0; i < plan.ropes.size(); ++i) {
      const Rope& rope = plan.ropes[i];
      const std::string thing = fmt::format("rope {}", i);
      add(thing, "kind", std::string(spec_name(rope.kind)));
      add(thing, "n_rot", fmt::to_string(rope.n_rot));
      add(thing, "mscale", fmt::to_string(rope.mscale));
      for (size_t pair = 0; pair < rope.inverse_frequency.size(); ++pair) {
        add(thing, fmt::format("inverse_frequency[{}]", pair),
            fmt::to_string(rope.inverse_frequency[pair]));
      }
    }
  }

  void add_weight(const WeightBinding& weight) {
    const WeightSlice& s = weight.slice;
    const std::string thing =
        fmt::format("weight {}[{}] {}", s.tensor, s.offset, spec_name(weight.form));
    add(thing, "slice",
        fmt::format("{} {} x {} of {} rows, {} experts, blocks of {} every {}",
                    spec_name(to_spec(s.type)), s.rows, s.k, s.tensor_rows, s.experts, s.block,
                    s.stride));
    add(thing, "bytes", fmt::to_string(weight.bytes));
    if (weight.glu_up) {
      add(thing, "interleaved with",
          fmt::format("{}[{}]", weight.glu_up->tensor, weight.glu_up->offset));
    }
  }

  void add_spec(const std::string& thing, const spec::AnySpec& spec) {
    for (const auto& [field, value] : spec_fields(spec)) add(thing, field, value);
  }

  void add_step(const Plan& plan, const Step& step) {
    const std::string thing = "step " + step.name;
    const bool known = step.kernel < plan.kernels.size();
    add(thing, "kernel", known ? std::string(spec_family(plan.kernels[step.kernel].spec)) : "?");
    add(thing, "rows", fmt::format("{} of layer {}", spec_name(step.rows), step.layer));
    if (step.run != StepRun::always) add(thing, "runs", launches_text(plan, step));
    add(thing, "scales",
        fmt::format("x {}, out {}, weight {}", step.x_scale, step.out_scale, step.weight_scale));
    if (known) add_spec(thing, plan.kernels[step.kernel].spec);
    for (const StepVariant& variant : step.variants) {
      const std::string which = fmt::format("{} up to {} rows", thing, variant.max_tokens);
      if (variant.kernel < plan.kernels.size()) add_spec(which, plan.kernels[variant.kernel].spec);
    }
    for (size_t i = 0; i < step.buffers.size(); ++i) {
      add(thing, fmt::format("buffer {}", i), buffer_text(plan, step.buffers[i]));
    }
  }

  std::vector<Fact> list_;
  std::map<std::string, size_t> index_;
  std::map<std::string, bool> seen_;
};

void describe_head(const Plan& plan, std::string& out) {
  const PlanOptions& o = plan.options;
  out += fmt::format("model       {} ({}), vocabulary {}\n", plan.model_name, plan.architecture,
                     plan.vocabulary);
  out += fmt::format("fingerprint {}\n", plan.model_fingerprint);
  out += fmt::format("target      {} {} {}\n", plan.target.kind, plan.target.name,
                     plan.target.features);
  out += fmt::format(
      "options     device {}, ctx {}, chunk {}, numerics {}, attention {}, kv {}, logits of {} "
      "row{} a chunk\n",
      o.device, o.context, o.chunk, spec_name(o.numerics), o.attention, o.kv, plan.max_outputs,
      plan.max_outputs == 1 ? "" : "s");
}

void describe_capacity(const Plan& plan, std::string& out) {
  const CapacityAccount& c = plan.capacity;
  out += "\ncapacity\n";
  const std::pair<std::string_view, uint64_t> rows[] = {
      {"weights", c.weights},     {"kv cache", c.kv},       {"recurrent", c.recurrent},
      {"workspace", c.workspace}, {"overhead", c.overhead}, {"total", c.total()}};
  for (const auto& [name, bytes] : rows) {
    out += fmt::format("  {:<10} {:>12}\n", name, human_bytes(bytes));
  }
}

void describe_kernels(const Plan& plan, std::string& out) {
  std::vector<uint32_t> launches(plan.kernels.size()), repacks(plan.kernels.size());
  for (const WeightBinding& weight : plan.weights) {
    if (weight.repack_kernel < repacks.size()) ++repacks[weight.repack_kernel];
  }
  for (const Step& step : plan.steps) {
    if (step.kernel < launches.size()) ++launches[step.kernel];
    for (const StepVariant& variant : step.variants) {
      if (variant.kernel < launches.size()) ++launches[variant.kernel];
    }
  }
  out += fmt::format("\nkernels ({})\n", plan.kernels.size());
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    const PlanKernel& kernel = plan.kernels[i];
    const std::string uses = repacks[i] != 0 ? fmt::format("{} weights", repacks[i])
                                             : fmt::format("{} steps", launches[i]);
    out +=
        fmt::format("  {:>3} {:<9} {}, {}{}\n      {}\n", i, spec_family(kernel.spec), uses,
                    is_library(kernel.spec)     ? std::string("by cuBLASLt")
                    : kernel.key_digest.empty() ? std::string("no key without its compiler")
                                                : fmt::format("key {:.12}", kernel.key_digest),
                    kernel.entry_digest.empty() ? "" : ", compiled", kernel_summary(kernel.spec));
  }
}

void describe_steps(const Plan& plan, std::string& out) {
  out += fmt::format("\nsteps ({})\n", plan.steps.size());
  for (const Step& step : plan.steps) {
    std::string variants;
    for (const StepVariant& variant : step.variants) {
      variants += fmt::format("{}up to {}: {}", variants.empty() ? "  (" : ", ", variant.max_tokens,
                              variant.kernel);
    }
    const std::string when = launches_text(plan, step);
    out += fmt::format(
        "  kernel {:>3} {:<9} {:<7} {}{}{}\n", step.kernel,
        step.kernel < plan.kernels.size() ? spec_family(plan.kernels[step.kernel].spec) : "?",
        spec_name(step.rows), step.name, when.empty() ? "" : fmt::format(" [{}]", when),
        variants.empty() ? "" : variants + ")");
  }
}

}  // namespace

std::string describe_plan(const Plan& plan) {
  std::string out;
  describe_head(plan, out);
  describe_capacity(plan, out);
  describe_kernels(plan, out);
  describe_steps(plan, out);
  out += fmt::format("\nmemory\n  {} activations in an arena of {}, {} pieces of state in {}\n",
                     plan.activations.size(), human_bytes(plan.arena_bytes), plan.states.size(),
                     human_bytes(plan.state_bytes));
  out += "\ndecisions\n";
  for (const Decision& decision : plan.decisions) {
    out += fmt::format("  {}: {} ({})\n", decision.subject, decision.choice, decision.reason);
  }
  return out;
}

std::vector<std::string> diff_plans(const Plan& a, const Plan& b) {
  const Facts left(a), right(b);
  std::vector<std::string> lines;
  std::map<std::string, bool> reported;
  const auto missing = [&](const Facts& other, const Facts::Fact& fact, std::string_view which) {
    if (other.has(fact.thing)) return false;
    if (!reported[fact.thing])
      lines.push_back(fmt::format("{}: only in the {} plan", fact.thing, which));
    reported[fact.thing] = true;
    return true;
  };
  const auto label = [](const Facts::Fact& fact) {
    return fact.field.empty() ? fact.thing : fact.thing + " " + fact.field;
  };
  for (const Facts::Fact& fact : left.list()) {
    if (missing(right, fact, "first")) continue;
    const Facts::Fact* other = right.find(fact);
    if (other == nullptr) {
      lines.push_back(fmt::format("{}: {} -> nothing", label(fact), fact.value));
    } else if (other->value != fact.value) {
      lines.push_back(fmt::format("{}: {} -> {}", label(fact), fact.value, other->value));
    }
  }
  for (const Facts::Fact& fact : right.list()) {
    if (missing(left, fact, "second")) continue;
    if (left.find(fact) == nullptr) {
      lines.push_back(fmt::format("{}: nothing -> {}", label(fact), fact.value));
    }
  }
  if (lines.empty() && plan_to_json(a) != plan_to_json(b)) {
    lines.push_back("the plans differ in the order or numbering of their parts alone");
  }
  return lines;
}

}  // namespace quern
