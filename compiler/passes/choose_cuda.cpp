// Kernels of a GPU plan: forms of the values between kernels, then tiles by the number of tokens.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <type_traits>

#include "compiler/cuda/attention_choice.h"
#include "compiler/cuda/gemm_choice.h"
#include "compiler/device_sizes.h"
#include "compiler/passes/passes.h"
#include "compiler/spec_names.h"
#include "models/error.h"

namespace quern::passes {

namespace {

/// Tokens of a launch that the GEMM kernels are made for; the last serves any number.
constexpr uint32_t token_classes[] = {8, 64, 512, 2048};

bool is_glu(spec::Epilogue epilogue) {
  return epilogue == spec::Epilogue::swiglu || epilogue == spec::Epilogue::gelu_glu;
}

/// Chooses the tiles of each GEMM once, and says so once.
class TileChooser {
 public:
  TileChooser(const cuda::TargetTraits& target, std::vector<Decision>& decisions)
      : target_(target), decisions_(decisions) {}

  /// One kernel for each class that launches of up to `max_rows` rows need, by ascending rows.
  const std::vector<Program::Variant>& kernels(const spec::GemmSpec& math, uint32_t max_rows) {
    size_t classes = 1;
    while (classes < std::size(token_classes) && token_classes[classes - 1] < max_rows) ++classes;
    const auto [entry, added] = kernels_.try_emplace(std::make_pair(spec_to_text(math), classes));
    if (added) entry->second = choose(math, classes);
    return entry->second;
  }

 private:
  std::vector<Program::Variant> choose(const spec::GemmSpec& math, size_t classes) {
    std::vector<Program::Variant> kernels;
    for (size_t i = 0; i < classes; ++i) {
      std::string reason;
      const uint32_t tokens = token_classes[i];
      const spec::GemmSpec spec = cuda::choose_gemm_tile(math, tokens, target_, &reason);
      const auto* last =
          kernels.empty() ? nullptr : std::get_if<spec::GemmSpec>(&kernels.back().spec);
      // Where a class's tile does not fit, its kernel may be the one of the class before.
      if (last != nullptr && last->tile_tokens == spec.tile_tokens) {
        kernels.back().max_tokens = tokens;
      } else {
        kernels.push_back({tokens, spec});
      }
      explain(spec, tokens, std::move(reason));
    }
    return kernels;
  }

  void explain(const spec::GemmSpec& spec, uint32_t tokens, std::string reason) {
    std::string segments;
    for (uint32_t i = 0; i < spec.n_segments; ++i) {
      segments += fmt::format("{}{} {}", i == 0 ? "" : " + ", spec.segments[i].rows,
                              spec_name(spec.segments[i].type));
    }
    const std::string subject = fmt::format(
        "gemm of {} rows, k = {}, {}: {} tokens", segments, spec.k, spec_name(spec.epilogue),
        tokens == token_classes[std::size(token_classes) - 1] ? std::string("more")
                                                              : fmt::format("up to {}", tokens));
    std::string choice = tokens == token_classes[0]
                             ? fmt::format("{} row groups a block, {} warps", spec.tile_cells,
                                           spec::gemv_warps(spec))
                             : fmt::format("tiles of {} tokens", spec.tile_tokens);
    if (!explained_.insert(subject).second) return;
    decisions_.push_back({subject, std::move(choice), std::move(reason)});
  }

  const cuda::TargetTraits& target_;
  std::vector<Decision>& decisions_;
  std::map<std::pair<std::string, size_t>, std::vector<Program::Variant>> kernels_;
  std::set<std::string> explained_;
};

/// Walks the launches in order: what a kernel reads has the form that an earlier one gave it.
class CudaChooser {
 public:
  CudaChooser(Program& program, const PlanOptions& options, const Target& target)
      : program_(program),
        options_(options),
        traits_(cuda::target_traits(target.name)),
        tiles_(traits_, program.decisions) {
    // `resolve` has checked both names.
    spec_value(options.kv, kv_);
    spec_value(options.attention, path_);
  }

  void run() {
    for (Program::Launch& launch : program_.launches) {
      std::visit([&](auto& spec) { lower(launch, spec); }, launch.spec);
      // Last, because it replaces the spec that is being visited.
      if (std::holds_alternative<spec::GemmSpec>(launch.spec)) tile(launch);
    }
    drop_unused_weights();
    add_selection();
    decisions_.append_to(program_.decisions);
  }

 private:
  using Launch = Program::Launch;

  [[noreturn]] void no_kernel(const Launch& launch, const std::string& reason) const {
    throw Error(ErrorKind::usage, launch.name, fmt::format("no GPU kernel computes it: {}", reason),
                "use --device cpu");
  }
  uint32_t max_rows(const Launch& launch) const {
    return launch.rows == StepRows::outputs && !options_.all_logits ? 1 : options_.chunk;
  }
  ActivationForm form(const BufferRef& buffer) const {
    return buffer.kind == BufferKind::activation ? program_.activations[buffer.index].form
                                                 : ActivationForm::rows;
  }
  void want(const Launch& launch, size_t position, ActivationForm wanted) const {
    if (form(launch.buffers[position]) == wanted) return;
    no_kernel(launch,
              wanted == ActivationForm::operand
                  ? "its input is no f16 operand, which norms, gated units and attention make"
                  : "its input is an f16 operand, which projections alone read");
  }
  void want_rows(const Launch& launch, std::initializer_list<size_t> positions) const {
    for (const size_t position : positions) want(launch, position, ActivationForm::rows);
  }
  void make_operand(const Launch& launch, size_t position, uint64_t width) {
    const BufferRef& buffer = launch.buffers[position];
    if (buffer.kind != BufferKind::activation) no_kernel(launch, "logits are no f16 operand");
    ActivationBuffer& activation = program_.activations[buffer.index];
    activation.form = ActivationForm::operand;
    activation.bytes_per_row = operand_row_bytes(width);
  }
  BufferRef make_buffer(ActivationBuffer buffer) {
    program_.activations.push_back(std::move(buffer));
    return {BufferKind::activation, static_cast<uint32_t>(program_.activations.size() - 1)};
  }

  void lower(Launch&, spec::EmbedSpec& s) { s.tier = spec::Tier::mma; }
  void lower(Launch& launch, spec::NormSpec& s) {
    if (s.gate != 0 || s.group != s.width) no_kernel(launch, "its norm is grouped or gated");
    s.tier = spec::Tier::mma;
    want_rows(launch, {0, 3});
    if (s.residual == 0) make_operand(launch, 2, s.width);
  }
  void lower(Launch& launch, spec::GatherSpec& s) {
    s.operand = form(launch.buffers[0]) == ActivationForm::operand ? 1 : 0;
    if (s.operand != 0) make_operand(launch, 2, s.width);
  }
  void lower(Launch& launch, spec::AddSpec& s) {
    if (s.gate_width != 0) no_kernel(launch, "its sum is gated");
    want_rows(launch, {0, 1});
  }
  void lower(Launch& launch, spec::GemmSpec& s);
  void lower(Launch& launch, spec::QkvPostSpec& s);
  void lower(Launch& launch, spec::AttentionSpec& s);
  template <class Other>
  void lower(Launch& launch, Other&) {
    no_kernel(launch, fmt::format("the GPU has none of the family \"{}\"", Other::family));
  }

  /// The type that a weight has in GPU memory; said once where it is not the file's.
  spec::QuantType resident(spec::QuantType type) {
    const spec::QuantType held = spec::gpu_resident_type(type);
    if (held != type && decoded_.insert(type).second) {
      program_.decisions.push_back(
          {fmt::format("weights of type {}", spec_name(type)),
           fmt::format("{} cells", spec_name(held)),
           "the type has no cells of its own on the GPU: it is decoded once, when it is loaded"});
    }
    return held;
  }
  void tile(Launch& launch);
  void merge_glu(Launch& launch, spec::GemmSpec& s);
  BufferRef counters(uint32_t n_head_kv);
  void drop_unused_weights();
  void add_selection();

  Program& program_;
  const PlanOptions& options_;
  const cuda::TargetTraits& traits_;
  TileChooser tiles_;
  LayerDecisions decisions_;
  spec::KvType kv_{};
  spec::AttentionPath path_{};
  std::map<uint32_t, BufferRef> queries_;  ///< Rows of a fused QKV projection -> their f16 queries.
  BufferRef counters_;
  std::set<spec::QuantType> decoded_;
};

void CudaChooser::lower(Launch& launch, spec::GemmSpec& s) {
  want(launch, 0, ActivationForm::operand);
  want_rows(launch, {2});
  s.tier = spec::Tier::mma;
  if (is_glu(s.epilogue)) merge_glu(launch, s);
  for (uint32_t i = 0; i < s.n_segments; ++i) {
    s.segments[i].type = resident(s.segments[i].type);
  }
}

void CudaChooser::tile(Launch& launch) {
  const auto& gemm = std::get<spec::GemmSpec>(launch.spec);
  const bool relaxed = library_runs(gemm, max_rows(launch), program_.few_rows);
  launch.variants = tiles_.kernels(gemm, relaxed ? program_.few_rows : max_rows(launch));
  launch.spec = launch.variants.back().spec;
  launch.variants.pop_back();
}

void CudaChooser::merge_glu(Launch& launch, spec::GemmSpec& s) {
  const WeightBinding& gate = program_.weights[launch.buffers[3].index];
  const WeightBinding& up = program_.weights[launch.buffers[4].index];
  const WeightSlice &a = gate.slice, &b = up.slice;
  if (a.type != b.type) {
    no_kernel(launch, fmt::format("its gate is {} and its up {}, and one packed weight holds both",
                                  quant_traits(a.type).name, quant_traits(b.type).name));
  }
  if (s.bias != 0) no_kernel(launch, "a gated unit has biases");
  if (a.rows % 8 != 0) no_kernel(launch, "its rows are not a multiple of 8");
  if (a.block != b.block || a.stride != b.stride) {
    no_kernel(launch, "its gate and up are cut from their tensors in different ways");
  }
  WeightBinding both{.form = WeightForm::packed, .slice = a, .glu_up = b};
  program_.weights.push_back(std::move(both));
  const BufferRef weight{BufferKind::weight, static_cast<uint32_t>(program_.weights.size() - 1)};
  launch.buffers = {launch.buffers[0], launch.buffers[1], {}, weight, {}};
  make_operand(launch, 1, s.segments[0].rows);
  s.segments[0].rows *= 2;
  s.segments[1] = {};
  s.n_segments = 1;
  decisions_.add(launch.layer, "gate and up", "one packed weight",
                 "rows interleaved by 8: gate and up of an output meet in one thread");
}

void CudaChooser::lower(Launch& launch, spec::QkvPostSpec& s) {
  want_rows(launch, {0});
  s.tier = spec::Tier::mma;
  s.kv = kv_;
  BufferRef q;
  if (path_ == spec::AttentionPath::flash) {
    const uint64_t values = uint64_t{s.n_head} * s.head_dim;
    q = make_buffer({.name = launch.name + " queries", .bytes_per_row = values * 2});
    queries_[launch.buffers[0].index] = q;
  }
  launch.buffers.push_back(q);
}

BufferRef CudaChooser::counters(uint32_t n_head_kv) {
  if (counters_.kind == BufferKind::none) {
    counters_ = make_buffer({.name = "attention counters", .form = ActivationForm::counters});
  }
  uint64_t& bytes = program_.activations[counters_.index].fixed_bytes;
  bytes = std::max(bytes, uint64_t{n_head_kv} * sizeof(uint32_t));
  return counters_;
}

void CudaChooser::lower(Launch& launch, spec::AttentionSpec& s) {
  want_rows(launch, {0, 4});
  s.tier = spec::Tier::mma;
  s.kv = kv_;
  s.path = path_;
  if (!cuda::choose_attention(s, traits_)) no_kernel(launch, "its heads are too wide");
  make_operand(launch, 3, uint64_t{s.n_head} * s.value_dim);
  const BufferRef scratch =
      make_buffer({.name = launch.name + " scratch",
                   .fixed_bytes = attention_scratch_bytes(s, options_.chunk, options_.context)});
  launch.buffers.push_back(scratch);
  if (path_ == spec::AttentionPath::wave) {
    launch.buffers.emplace_back();
    decisions_.add(launch.layer, "attention", "wave", "f32 scores in a bounded scratch");
    return;
  }
  launch.buffers[0] = queries_.at(launch.buffers[0].index);
  launch.buffers.push_back(counters(s.n_head_kv));
  s.q_row_width = s.n_head * s.head_dim;
  s.q_offset = 0;
  decisions_.add(launch.layer, "attention",
                 fmt::format("flash, blocks of {} keys, segments of {}; one token: its segments in "
                             "parallel",
                             s.block_keys, s.segment_keys),
                 fmt::format("head dim {}, {} cache", s.head_dim, spec_name(s.kv)));
  spec::AttentionSpec decode = s;
  decode.decode = 1;
  if (!cuda::choose_attention(decode, traits_)) no_kernel(launch, "its heads are too wide");
  if (options_.chunk == 1) {
    s = decode;
  } else {
    launch.variants = {{1, decode}};
  }
}

/// After the head: a step that runs where candidates are wanted instead of logits.
void CudaChooser::add_selection() {
  const auto head = std::ranges::find_if(program_.launches, [](const Launch& launch) {
    return std::ranges::find(launch.buffers, BufferKind::logits, &BufferRef::kind) !=
           launch.buffers.end();
  });
  if (head == program_.launches.end()) return;
  const auto* gemm = std::get_if<spec::GemmSpec>(&head->spec);
  if (gemm == nullptr) return;
  spec::SelectSpec s{.vocabulary = 0, .count = plan_candidates};
  for (uint32_t i = 0; i < gemm->n_segments; ++i) s.vocabulary += gemm->segments[i].rows;
  s.count = std::min(s.count, s.vocabulary);
  const BufferRef scratch = make_buffer(
      {.name = "select scratch", .fixed_bytes = spec::select_scratch_bytes(s), .selected = true});
  const BufferRef counters =
      make_buffer({.name = "select counters",
                   .form = ActivationForm::counters,
                   .fixed_bytes = uint64_t{spec::select_counters(s)} * sizeof(uint32_t),
                   .selected = true});
  program_.launches.push_back({.spec = s,
                               .buffers = {{BufferKind::logits, 0},
                                           {BufferKind::wish, 0},
                                           {BufferKind::candidates, 0},
                                           scratch,
                                           counters},
                               .rows = StepRows::outputs,
                               .name = "select"});
  program_.decisions.push_back({"selection", fmt::format("the best {} on the GPU", s.count),
                                "logits are copied where more of them, or all, are wanted"});
}

/// Halves of merged weights, unless something else reads them.
void CudaChooser::drop_unused_weights() {
  std::vector<bool> used(program_.weights.size());
  for (const Launch& launch : program_.launches) {
    for (const BufferRef& buffer : launch.buffers) {
      if (buffer.kind == BufferKind::weight) used[buffer.index] = true;
    }
  }
  std::vector<uint32_t> renumbered(used.size());
  std::vector<WeightBinding> kept;
  for (size_t i = 0; i < used.size(); ++i) {
    renumbered[i] = static_cast<uint32_t>(kept.size());
    if (used[i]) kept.push_back(std::move(program_.weights[i]));
  }
  program_.weights = std::move(kept);
  for (Launch& launch : program_.launches) {
    for (BufferRef& buffer : launch.buffers) {
      if (buffer.kind == BufferKind::weight) buffer.index = renumbered[buffer.index];
    }
  }
}

}  // namespace

bool gpu_flash_runs(const Attention& attention, spec::KvType kv, std::string* why) {
  constexpr uint32_t dims[] = {32, 64, 80, 96, 128, 256};
  constexpr uint32_t max_group = 16;  // Query heads of a KV head: the rows of one mma fragment.
  const auto no = [why](std::string reason) {
    if (why != nullptr) *why = std::move(reason);
    return false;
  };
  if (kv == spec::KvType::f32) return no("flash attention reads no f32 cache");
  if (std::ranges::find(dims, attention.head_dim) == std::end(dims) ||
      attention.value_dim != attention.head_dim) {
    return no(fmt::format("flash attention has no kernel for head dims of {} and {}",
                          attention.head_dim, attention.value_dim));
  }
  if (attention.n_head_kv == 0 || attention.n_head / attention.n_head_kv > max_group) {
    return no(fmt::format("flash attention takes at most {} query heads a KV head", max_group));
  }
  return true;
}

void require_gpu_kernels(const ModelGraph& graph, const Target& target) {
  const auto refuse = [&](std::string_view what) {
    throw Error(ErrorKind::usage, "target " + target.name,
                fmt::format("{} no GPU kernels yet", what), "use --device cpu");
  };
  bool recurrent = false;
  for (const Node& node : graph.nodes) {
    if (std::holds_alternative<Route>(node.op) || std::holds_alternative<RoutedExperts>(node.op)) {
      refuse("mixture-of-experts models have");
    }
    recurrent |= std::holds_alternative<DeltaRule>(node.op) ||
                 std::holds_alternative<CausalConv>(node.op) ||
                 std::holds_alternative<GatedRmsNorm>(node.op);
  }
  if (recurrent) refuse("models with gated delta rule layers have");
}

void choose_cuda(Program& program, const PlanOptions& options, const Target& target) {
  CudaChooser(program, options, target).run();
}

}  // namespace quern::passes
