#include "compiler/check_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "compiler/arguments.h"
#include "compiler/compile_kernel.h"
#include "compiler/cuda/cuda_compiler.h"
#include "compiler/device_sizes.h"
#include "compiler/spec_names.h"
#include "models/error.h"
#include "templates/spec/gemm_launch.h"

namespace quern {

namespace {

// Sizes a plan may have at most: far above any model, low enough that sums of them cannot wrap.
constexpr uint64_t max_bytes = uint64_t{1} << 56;
constexpr uint32_t max_rows = 1u << 20;
constexpr uint32_t max_context = 1u << 30;
constexpr uint64_t alignment = 64;

class PlanChecker {
 public:
  PlanChecker(const Plan& plan, std::string_view name) : plan_(plan), name_(name) {}

  void run() {
    check_head();
    check_kernels();
    check_weights();
    check_layout();
    for (size_t i = 0; i < plan_.steps.size(); ++i) check_step(i);
    check_order(1);
    if (plan_.few_rows > 0) check_order(plan_.few_rows + 1);
    check_overlaps();
    check_account();
  }

 private:
  [[noreturn]] void refuse(const std::string& field, const std::string& reason) const {
    throw Error(ErrorKind::failed, fmt::format("{}: {}", name_, field), reason,
                "write the plan again with `quern compile`");
  }

  void check_head() const {
    const PlanOptions& options = plan_.options;
    if (plan_.target.kind != "cpu" && plan_.target.kind != "cuda") {
      refuse("target.kind", "is neither cpu nor cuda");
    }
    if (is_cuda(plan_.target) &&
        std::ranges::find(cuda::target_table(), plan_.target.name, &cuda::TargetTraits::name) ==
            cuda::target_table().end()) {
      refuse("target.name", "is no GPU that this build has kernels for");
    }
    if (options.context == 0 || options.context > max_context) {
      refuse("options.context", fmt::format("{} is not a context length", options.context));
    }
    if (options.chunk == 0 || options.chunk > std::min(max_rows, options.context)) {
      refuse("options.chunk", fmt::format("{} is not a chunk of this context", options.chunk));
    }
    if (plan_.max_outputs == 0 || plan_.max_outputs > options.chunk) {
      refuse("max_outputs", fmt::format("{} is not in 1 to the chunk", plan_.max_outputs));
    }
    if (plan_.vocabulary == 0) refuse("vocabulary", "is empty");
    if (plan_.few_rows >= options.chunk) refuse("few_rows", "are as many as a chunk has");
    for (size_t i = 0; i < plan_.ropes.size(); ++i) {
      const Rope& rope = plan_.ropes[i];
      if (rope.inverse_frequency.size() * 2 != rope.n_rot) {
        refuse(fmt::format("ropes[{}]", i), "its frequencies are not half of its rotated dims");
      }
    }
  }

  /// Digests name files of the kernel store, so nothing but hex may pass.
  static bool is_digest(const std::string& text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  }

  void check_kernels() const {
    for (size_t i = 0; i < plan_.kernels.size(); ++i) {
      const PlanKernel& kernel = plan_.kernels[i];
      // A GPU plan may have been made where no NVRTC was there to name its version.
      if (is_library(kernel.spec) && !kernel.key_digest.empty()) {
        refuse(fmt::format("kernels[{}].key_digest", i), "belongs to a library, which has none");
      }
      if (!is_digest(kernel.key_digest) && !(kernel.key_digest.empty() && is_cuda(plan_.target))) {
        refuse(fmt::format("kernels[{}].key_digest", i), "is no SHA-256 in hex");
      }
      if (!kernel.entry_digest.empty() && !is_digest(kernel.entry_digest)) {
        refuse(fmt::format("kernels[{}].entry_digest", i), "is neither empty nor a SHA-256 in hex");
      }
      check_spec(kernel.spec, fmt::format("{}: kernels[{}].spec", name_, i));
      if (!runs_on_target(kernel.spec)) {
        refuse(fmt::format("kernels[{}].spec.tier", i), "is not of the plan's target");
      }
    }
  }

  bool runs_on_target(const spec::AnySpec& spec) const {
    const bool gpu = is_cuda(plan_.target);
    return std::visit(
        [gpu](const auto& held) {
          using Spec = std::decay_t<decltype(held)>;
          if constexpr (requires { Spec::gpu_only; }) {
            return gpu;
          } else if constexpr (requires { held.tier; }) {
            return (held.tier != spec::Tier::cpu) == gpu;
          } else if constexpr (std::is_same_v<Spec, spec::GatherSpec>) {
            return gpu || held.operand == 0;
          } else if constexpr (std::is_same_v<Spec, spec::AddSpec>) {
            return !gpu || held.gate_width == 0;
          } else {
            return !gpu;
          }
        },
        spec);
  }

  void check_weights() const {
    for (size_t i = 0; i < plan_.weights.size(); ++i) {
      const std::string field = fmt::format("weights[{}]", i);
      const WeightBinding& weight = plan_.weights[i];
      const WeightSlice& slice = weight.slice;
      if (slice.tensor.empty()) refuse(field, "names no tensor");
      if (slice.rows == 0 || slice.rows > max_bytes || slice.offset > max_bytes) {
        refuse(field, "has no rows, or absurdly many");
      }
      if (weight.form != WeightForm::vector) check_slice(slice, field);
      if (weight.form == WeightForm::packed) {
        check_packed(weight, field);
      } else if (weight.glu_up) {
        refuse(field + ".glu_up", "belongs to packed weights alone");
      }
      const uint64_t bytes = weight_bytes(plan_.target, weight);
      if (weight.bytes != bytes || bytes > max_bytes) {
        refuse(field + ".bytes",
               fmt::format("{} is not the {} that its rows take", weight.bytes, bytes));
      }
    }
  }

  void check_slice(const WeightSlice& slice, const std::string& field) const {
    constexpr uint64_t limit = uint64_t{1} << 32;
    if (slice.k == 0 || slice.k >= limit || slice.rows >= limit || slice.tensor_rows >= limit ||
        slice.offset >= limit || slice.stride >= limit || slice.experts == 0 ||
        slice.experts >= limit) {
      refuse(field, "its sizes are out of range");
    }
    if (slice.k % quant_traits(slice.type).block_values != 0) {
      refuse(field + ".k", "is not whole blocks of the type");
    }
    if (slice.block == 0 || slice.stride < slice.block) {
      refuse(field, "its blocks of rows overlap or are empty");
    }
    const uint64_t last = slice.offset + (slice.rows - 1) / slice.block * slice.stride +
                          (slice.rows - 1) % slice.block;
    if (last >= slice.tensor_rows) refuse(field, "its rows reach beyond the tensor");
  }

  void check_packed(const WeightBinding& weight, const std::string& field) const {
    const WeightSlice& slice = weight.slice;
    if (weight.repack_kernel >= plan_.kernels.size()) {
      refuse(field + ".repack_kernel", "points at no kernel");
    }
    const auto* repack = std::get_if<spec::RepackSpec>(&plan_.kernels[weight.repack_kernel].spec);
    if (repack == nullptr || repack->type != to_spec(slice.type) || repack->k != slice.k) {
      refuse(field + ".repack_kernel", "is not the repack kernel of its type and row length");
    }
    if (!weight.glu_up) return;
    const WeightSlice& up = *weight.glu_up;
    const std::string up_field = field + ".glu_up";
    if (!is_cuda(plan_.target)) refuse(up_field, "belongs to GPU plans alone");
    if (up.tensor.empty()) refuse(up_field, "names no tensor");
    check_slice(up, up_field);
    if (up.type != slice.type || up.k != slice.k || up.rows != slice.rows ||
        up.block != slice.block || up.stride != slice.stride || up.experts != slice.experts ||
        slice.rows % 8 != 0) {
      refuse(up_field, "is not cut as the gate is, by whole groups of 8 rows");
    }
  }

  void check_layout() const {
    for (size_t i = 0; i < plan_.activations.size(); ++i) {
      const ActivationBuffer& buffer = plan_.activations[i];
      const std::string field = fmt::format("activations[{}]", i);
      const uint64_t needed = activation_bytes(buffer, plan_.options.chunk, plan_.max_outputs);
      if (buffer.form != ActivationForm::rows && !is_cuda(plan_.target)) {
        refuse(field + ".form", "belongs to GPU plans alone");
      }
      if (buffer.bytes != needed || needed > max_bytes) {
        refuse(field + ".bytes",
               fmt::format("{} is not the {} that its rows take", buffer.bytes, needed));
      }
      check_extent(field, buffer.offset, buffer.bytes, plan_.arena_bytes);
    }
    uint64_t end = 0;
    for (size_t i = 0; i < plan_.states.size(); ++i) {
      const StateBuffer& state = plan_.states[i];
      const std::string field = fmt::format("states[{}]", i);
      check_extent(field, state.offset, state.bytes, plan_.state_bytes);
      if (state.offset < end) refuse(field + ".offset", "lies on the state before it");
      end = state.offset + state.bytes;
    }
    if (plan_.arena_bytes > max_bytes || plan_.state_bytes > max_bytes) {
      refuse("arena_bytes", "is out of range");
    }
  }

  void check_extent(const std::string& field, uint64_t offset, uint64_t bytes,
                    uint64_t total) const {
    if (offset % alignment != 0) refuse(field + ".offset", "is not a multiple of 64");
    if (bytes > total || offset > total - bytes) refuse(field, "reaches beyond its arena");
  }

  void check_step(size_t index) {
    const Step& step = plan_.steps[index];
    const std::string field = fmt::format("steps[{}]", index);
    check_kernel_of(step, step.kernel, field, field + ".kernel");
    check_variants(step, field);
    const spec::AnySpec& spec = plan_.kernels[step.kernel].spec;
    if (std::holds_alternative<spec::SelectSpec>(spec) && index + 1 != plan_.steps.size()) {
      refuse(field + ".kernel", "selects before the last step");
    }
    const auto arguments = kernel_arguments(spec, plan_);
    check_aliases(step, arguments, field);
    check_run(step, arguments, field);
  }

  /// That a step is one of the launches that the plan's numerics allow.
  void check_run(const Step& step, const std::vector<Argument>& arguments,
                 const std::string& field) const {
    const bool relaxed = is_library(plan_.kernels[step.kernel].spec);
    if (!relaxed && step.run == StepRun::always) return;
    if (!is_cuda(plan_.target) || plan_.options.numerics != Numerics::fast) {
      refuse(field + (relaxed ? ".kernel" : ".run"), "belongs to fast GPU plans alone");
    }
    if (plan_.few_rows == 0 && (step.run == StepRun::few || step.run == StepRun::many)) {
      refuse(field + ".run", "counts rows, and the plan does not say how many are few");
    }
    if (relaxed && step.run == StepRun::once) refuse(field + ".run", "cuBLASLt runs in launches");
    if (step.run != StepRun::once) return;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const BufferRef& buffer = step.buffers[i];
      const bool kept = buffer.kind == BufferKind::activation &&
                        plan_.activations[buffer.index].form == ActivationForm::kept;
      if (buffer.kind != BufferKind::weight && buffer.kind != BufferKind::none && !kept) {
        refuse(fmt::format("{}.buffers[{}]", field, i), "is not there when a plan is loaded");
      }
    }
  }

  /// That in a launch of `rows` rows every buffer is written before it is read.
  void check_order(uint32_t rows) const {
    std::vector<bool> written(plan_.activations.size());
    for (size_t i = 0; i < written.size(); ++i) {
      written[i] = plan_.activations[i].form == ActivationForm::counters;
    }
    bool logits = false;
    const uint32_t outputs = std::min(rows, plan_.max_outputs);
    for (size_t at = 0; at < plan_.steps.size(); ++at) {
      const Step& step = plan_.steps[at];
      const uint32_t n = step.rows == StepRows::outputs ? outputs : rows;
      if (step.run != StepRun::once && !runs(plan_, step, n)) continue;
      const auto arguments = kernel_arguments(plan_.kernels[step.kernel].spec, plan_);
      for (size_t i = 0; i < arguments.size(); ++i) {
        const BufferRef& buffer = step.buffers[i];
        if (arguments[i].access == Access::write) continue;
        if ((buffer.kind == BufferKind::activation && !written[buffer.index]) ||
            (buffer.kind == BufferKind::logits && !logits)) {
          refuse(fmt::format("steps[{}].buffers[{}]", at, i),
                 "is read before any step has written it");
        }
      }
      for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i].access == Access::read) continue;
        if (step.buffers[i].kind == BufferKind::activation) written[step.buffers[i].index] = true;
        logits |= step.buffers[i].kind == BufferKind::logits;
      }
    }
    if (!logits) refuse("steps", "no step writes the logits");
  }

  /// That a kernel, named at `at`, takes the step's buffers.
  void check_kernel_of(const Step& step, uint32_t kernel, const std::string& field,
                       const std::string& at) const {
    if (kernel >= plan_.kernels.size()) refuse(at, "points at no kernel");
    const spec::AnySpec& spec = plan_.kernels[kernel].spec;
    if (std::holds_alternative<spec::RepackSpec>(spec)) {
      refuse(at, "is a repack kernel, which runs when weights are loaded");
    }
    if (std::holds_alternative<spec::GatherSpec>(spec) && step.rows != StepRows::outputs) {
      refuse(field + ".rows", "a gather makes rows of outputs");
    }
    const auto arguments = kernel_arguments(spec, plan_);
    if (step.buffers.size() != arguments.size()) {
      refuse(field + ".buffers",
             fmt::format("{} where the kernel takes {}", step.buffers.size(), arguments.size()));
    }
    for (size_t i = 0; i < arguments.size(); ++i) {
      check_argument(step, i, arguments[i], fmt::format("{}.buffers[{}]", field, i));
    }
  }

  /// Rows that a kernel can make at most.
  static uint32_t kernel_rows(const spec::AnySpec& spec) {
    const auto* gemm = std::get_if<spec::GemmSpec>(&spec);
    if (gemm != nullptr && gemm->tier != spec::Tier::cpu && gemm->tile_tokens == 8) return 8;
    const auto* attention = std::get_if<spec::AttentionSpec>(&spec);
    if (attention != nullptr && attention->decode != 0) return 1;
    return std::numeric_limits<uint32_t>::max();
  }

  void check_variants(const Step& step, const std::string& field) const {
    const uint32_t rows = step.rows == StepRows::outputs ? plan_.max_outputs : plan_.options.chunk;
    const uint32_t most = step.run == StepRun::few ? std::min(rows, plan_.few_rows) : rows;
    const spec::AnySpec& general = plan_.kernels[step.kernel].spec;
    if (kernel_rows(general) < most) refuse(field + ".kernel", "makes too few rows");
    uint32_t last = 0;
    for (size_t i = 0; i < step.variants.size(); ++i) {
      const StepVariant& variant = step.variants[i];
      const std::string at = fmt::format("{}.variants[{}]", field, i);
      if (!is_cuda(plan_.target)) refuse(at, "belongs to GPU plans alone");
      check_kernel_of(step, variant.kernel, field, at);
      const spec::AnySpec& spec = plan_.kernels[variant.kernel].spec;
      if (spec.index() != general.index()) refuse(at, "is a kernel of another family");
      if (variant.max_tokens <= last) refuse(at, "is not for more tokens than the one before it");
      if (kernel_rows(spec) < variant.max_tokens) refuse(at, "makes too few rows");
      last = variant.max_tokens;
    }
  }

  void check_argument(const Step& step, size_t position, const Argument& argument,
                      const std::string& field) const {
    const BufferRef& buffer = step.buffers[position];
    // The head's output may be the logits instead of an activation.
    const bool logits = buffer.kind == BufferKind::logits &&
                        argument.kind == BufferKind::activation && argument.access == Access::write;
    const bool absent = buffer.kind == BufferKind::none && argument.optional;
    if (buffer.kind != argument.kind && !logits && !absent) {
      refuse(field, fmt::format("is not a buffer that \"{}\" can be", argument.name));
    }
    switch (buffer.kind) {
      case BufferKind::none:
        break;
      case BufferKind::activation:
        check_activation(step, buffer, argument, field);
        break;
      case BufferKind::weight:
        check_weight(buffer, argument, field);
        break;
      case BufferKind::state:
        check_state(step, buffer, argument, field);
        break;
      case BufferKind::rope:
        if (buffer.index >= plan_.ropes.size()) refuse(field, "points at no rope");
        if (plan_.ropes[buffer.index].n_rot != argument.rows) {
          refuse(field, "rotates another number of dims than its kernel");
        }
        break;
      case BufferKind::tokens:
        if (step.rows != StepRows::tokens) refuse(field, "token ids in a step of output rows");
        break;
      case BufferKind::outputs:
        if (step.rows != StepRows::outputs) refuse(field, "row numbers in a step of token rows");
        break;
      case BufferKind::logits:
        if (step.rows != StepRows::outputs ||
            argument.bytes_per_row != uint64_t{plan_.vocabulary} * sizeof(float)) {
          refuse(field, "does not make a row of logits for each requested output");
        }
        break;
      case BufferKind::wish:
      case BufferKind::candidates:
        if (step.rows != StepRows::outputs) refuse(field, "a selection in a step of token rows");
        break;
    }
  }

  void check_activation(const Step& step, const BufferRef& buffer, const Argument& argument,
                        const std::string& field) const {
    if (buffer.index >= plan_.activations.size()) refuse(field, "points at no activation");
    const ActivationBuffer& activation = plan_.activations[buffer.index];
    const bool selected = step.rows == StepRows::outputs && !argument.token_rows;
    if (activation.selected != selected) {
      refuse(field, "has rows of the other kind (chunk or outputs)");
    }
    // Counters of layers with fewer KV heads are the front of those with more.
    const bool enough = argument.activation == ActivationForm::counters
                            ? activation.fixed_bytes >= argument.fixed_bytes
                            : activation.fixed_bytes == argument.fixed_bytes;
    const bool kept = activation.form == ActivationForm::kept && argument.may_be_kept;
    if ((activation.form != argument.activation && !kept) ||
        activation.bytes_per_row != argument.bytes_per_row || !enough) {
      refuse(field, fmt::format("its rows are not those of \"{}\"", argument.name));
    }
    if (activation.form == ActivationForm::kept && argument.access != Access::read &&
        step.run != StepRun::once) {
      refuse(field, "is written when the plan is loaded, and no more");
    }
  }

  void check_weight(const BufferRef& buffer, const Argument& argument,
                    const std::string& field) const {
    if (buffer.index >= plan_.weights.size()) refuse(field, "points at no weight");
    const WeightBinding& weight = plan_.weights[buffer.index];
    const WeightSlice& slice = weight.slice;
    bool fits = weight.form == argument.form;
    if (argument.form == WeightForm::vector) {
      fits = fits && slice.rows == argument.rows;
    } else {
      const bool resident = is_cuda(plan_.target) && argument.form == WeightForm::packed;
      const spec::QuantType type =
          resident ? spec::gpu_resident_type(to_spec(slice.type)) : to_spec(slice.type);
      const uint64_t rows = slice.rows * (weight.glu_up ? 2 : 1);
      fits = fits && type == argument.type && slice.k == argument.k &&
             slice.experts == argument.experts;
      // A table of embeddings has a row for each token id that may come.
      fits = fits && (argument.form == WeightForm::raw
                          ? slice.rows >= plan_.vocabulary && slice.rows == slice.tensor_rows
                          : rows == argument.rows &&
                                (argument.glu_or_not || weight.glu_up.has_value() == argument.glu));
    }
    if (!fits) refuse(field, fmt::format("is not the weight that \"{}\" needs", argument.name));
  }

  void check_state(const Step& step, const BufferRef& buffer, const Argument& argument,
                   const std::string& field) const {
    if (buffer.index >= plan_.states.size()) refuse(field, "points at no state");
    const StateBuffer& state = plan_.states[buffer.index];
    if (state.kind != argument.state || state.bytes != argument.fixed_bytes) {
      refuse(field, fmt::format("is not the state that \"{}\" needs", argument.name));
    }
    if (step.rows != StepRows::tokens) refuse(field, "state in a step of output rows");
  }

  /// A written buffer may be no other argument; only GEMMs add to their residual in place.
  void check_aliases(const Step& step, const std::vector<Argument>& arguments,
                     const std::string& field) const {
    const spec::AnySpec& spec = plan_.kernels[step.kernel].spec;
    const bool gemm = std::holds_alternative<spec::GemmSpec>(spec) ||
                      std::holds_alternative<spec::MatmulSpec>(spec) ||
                      std::holds_alternative<spec::FinishSpec>(spec);
    for (size_t i = 0; i < arguments.size(); ++i) {
      const BufferRef& written = step.buffers[i];
      if (arguments[i].access == Access::read || written.kind == BufferKind::none) continue;
      for (size_t j = 0; j < arguments.size(); ++j) {
        if (i == j || (gemm && i == 1 && j == 2)) continue;
        if (step.buffers[j].kind == written.kind && step.buffers[j].index == written.index) {
          refuse(fmt::format("{}.buffers[{}]", field, i), "is another argument of the step too");
        }
      }
    }
  }

  void check_overlaps() const;
  void check_account() const;

  const Plan& plan_;
  std::string_view name_;
};

/// Sweeps the steps with the set of buffers that are alive, so that the check is not quadratic in a
/// hostile plan's buffers.
void PlanChecker::check_overlaps() const {
  struct Life {
    size_t first = std::numeric_limits<size_t>::max(), last = 0;
  };
  std::vector<Life> lives(plan_.activations.size());
  for (size_t step = 0; step < plan_.steps.size(); ++step) {
    for (const BufferRef& buffer : plan_.steps[step].buffers) {
      if (buffer.kind != BufferKind::activation) continue;
      lives[buffer.index].first = std::min(lives[buffer.index].first, step);
      lives[buffer.index].last = step;
    }
  }
  for (size_t i = 0; i < lives.size(); ++i) {
    const ActivationForm form = plan_.activations[i].form;
    if ((form == ActivationForm::counters || form == ActivationForm::kept) &&
        lives[i].first <= lives[i].last) {
      lives[i] = {0, plan_.steps.size()};
    }
  }
  std::vector<std::vector<uint32_t>> born(plan_.steps.size());
  for (uint32_t i = 0; i < lives.size(); ++i) {
    if (lives[i].first < born.size()) born[lives[i].first].push_back(i);
  }
  std::vector<uint32_t> alive;
  for (size_t step = 0; step < born.size(); ++step) {
    std::erase_if(alive, [&](uint32_t other) { return lives[other].last < step; });
    for (const uint32_t index : born[step]) {
      const ActivationBuffer& a = plan_.activations[index];
      for (const uint32_t other : alive) {
        const ActivationBuffer& b = plan_.activations[other];
        if (a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes) {
          refuse(fmt::format("activations[{}]", index),
                 fmt::format("lies on activations[{}], which lives at the same time", other));
        }
      }
      alive.push_back(index);
    }
  }
}

void PlanChecker::check_account() const {
  const CapacityAccount expected = account_of(plan_);
  const CapacityAccount& found = plan_.capacity;
  if (found.weights != expected.weights || found.kv != expected.kv ||
      found.recurrent != expected.recurrent || found.workspace != expected.workspace ||
      found.overhead != expected.overhead) {
    refuse("capacity", "does not add up to the plan's buffers");
  }
}

}  // namespace

void check_plan(const Plan& plan, std::string_view name) {
  PlanChecker(plan, name).run();
}

}  // namespace quern
