// Probe d: what becomes of a model's GEMM operands, queries, keys and values in f16, seen on the
// CPU back end, whose f32 activations are those that the GPU's kernels round. JSON lines: one for
// each kind of operand, with --steps one for each step too.
//
//   operand_ranges MODEL.gguf TEXT [TOKENS] [--steps]

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <numbers>
#include <string>
#include <variant>
#include <vector>

#include "models/error.h"
#include "models/tokenizer/tokenizer.h"
#include "runtime/test_hooks.h"
#include "runtime/weight_binding.h"
#include "templates/cpu/kv_layout.h"
#include "tests/runtime/model_support.h"

namespace quern::test {
namespace {

constexpr float f16_largest = 65504;
constexpr float f16_smallest_normal = 0x1p-14F;

/// What rounding to f16 does at one scale.
struct Losses {
  uint64_t saturated = 0, subnormal = 0;
  double error = 0;  ///< Sum of squares of (rounded - value), as values at scale 1.

  void add(float value, float scale) {
    const float scaled = value * scale;
    const float size = std::fabs(scaled);
    const bool fits = size <= f16_largest;  // NaN does not.
    saturated += fits ? 0 : 1;
    subnormal += size != 0 && size < f16_smallest_normal ? 1 : 0;
    const float rounded =
        fits ? f16_to_f32(f32_to_f16(scaled)) : std::copysign(f16_largest, scaled);
    const double difference = (double{rounded} - double{scaled}) / double{scale};
    error += difference * difference;
  }
  void add(const Losses& other) {
    saturated += other.saturated;
    subnormal += other.subnormal;
    error += other.error;
  }
};

/// One operand of one step, or all of a kind.
struct Operand {
  std::string kind, step;
  double bound = 0;  ///< Of |value|, from the weights alone.
  int scale_log2 = 0;
  uint64_t values = 0;
  double squares = 0;
  float largest = 0;
  Losses plain, scaled;

  void set_bound(double limit) {
    bound = limit;
    if (std::isfinite(limit)) {
      scale_log2 = static_cast<int>(std::floor(std::log2(f16_largest / limit)));
    }
  }
  void add(const float* data, size_t n, size_t stride = 1) {
    const float scale = std::ldexp(1.0F, scale_log2);
    for (size_t i = 0; i < n; ++i) {
      const float value = data[i * stride];
      largest = std::max(largest, std::fabs(value));
      squares += double{value} * double{value};
      plain.add(value, 1);
      scaled.add(value, scale);
    }
    values += n;
  }
};

/// A step's operands, in the order in which `observe` sees them.
using StepOperands = std::vector<Operand>;

/// Bounds from weights (DESIGN section 4, rule 1): |norm| <= sqrt(group) * largest weight; a
/// projection's row of it <= sqrt(group) * |row * norm weights|; a gated unit <= gate * up;
/// attention is a mean of values.
class Bounds {
 public:
  Bounds(const Plan& plan, const gguf::File& file) : plan_(plan), file_(file) {
    for (const Step& step : plan.steps) {
      steps_.emplace_back();
      step_ = &step;
      std::visit([this](const auto& spec) { visit(spec); }, plan.kernels[step.kernel].spec);
    }
  }
  std::vector<StepOperands>& steps() { return steps_; }

 private:
  void add(std::string kind, double bound) {
    Operand operand;
    operand.kind = std::move(kind);
    operand.step = step_->name;
    operand.set_bound(bound);
    steps_.back().push_back(std::move(operand));
  }
  std::vector<float> vector(const BufferRef& buffer) const {
    const WeightSlice& slice = plan_.weights.at(buffer.index).slice;
    std::vector<float> values(slice.rows);
    copy_vector(find_tensor(file_, slice), slice, reinterpret_cast<std::byte*>(values.data()));
    return values;
  }
  double largest_of(const BufferRef& buffer) const {
    double largest = 0;
    for (const float value : vector(buffer)) largest = std::max(largest, std::fabs(double{value}));
    return largest;
  }

  void visit(const spec::NormSpec& s) {
    std::vector<float> weights = vector(step_->buffers[1]);
    for (float& weight : weights) weight *= std::sqrt(static_cast<float>(s.group));
    // What comes in is f32 on the GPU too: for comparison.
    add("norm input (f32)", std::numeric_limits<double>::infinity());
    // So is the sum of a norm with a residual.
    if (s.residual == 0) {
      add("norm", std::sqrt(static_cast<double>(s.group)) * largest_of(step_->buffers[1]));
    }
    if (s.group == s.width) norms_[step_->buffers[2].index] = std::move(weights);
  }
  void visit(const spec::GemmSpec& s) {
    const auto norm = norms_.find(step_->buffers[0].index);
    if (norm == norms_.end() || step_->buffers[1].kind != BufferKind::activation) return;
    const bool glu = s.epilogue == spec::Epilogue::swiglu || s.epilogue == spec::Epilogue::gelu_glu;
    std::vector<double> rows;
    for (uint32_t i = 0; i < s.n_segments; ++i) row_bounds(s, i, norm->second, rows);
    if (glu) {
      const size_t half = rows.size() / 2;
      double bound = 0;
      for (size_t i = 0; i < half; ++i) bound = std::max(bound, rows[i] * rows[half + i]);
      add("gated product", bound);
    } else {
      projections_[step_->buffers[1].index] = std::move(rows);
    }
  }
  void row_bounds(const spec::GemmSpec& s, uint32_t segment, const std::vector<float>& norm,
                  std::vector<double>& bounds) const {
    const WeightSlice& slice = plan_.weights.at(step_->buffers[3 + segment].index).slice;
    const gguf::Tensor& tensor = find_tensor(file_, slice);
    std::vector<float> bias(slice.rows), row(slice.k);
    if ((s.bias >> segment & 1) != 0) bias = vector(step_->buffers[3 + s.n_segments + segment]);
    for (uint64_t r = 0; r < slice.rows; ++r) {
      const std::byte* data =
          tensor.data.data() + source_row(slice, r) * row_bytes(slice.type, slice.k);
      decode_row(slice.type, data, row.data(), slice.k);
      double squares = 0;
      for (uint64_t k = 0; k < slice.k; ++k) {
        const double product = double{row[k]} * double{norm[k]};
        squares += product * product;
      }
      bounds.push_back(std::sqrt(squares) + std::fabs(double{bias[r]}));
    }
  }
  void visit(const spec::QkvPostSpec& s) {
    const std::vector<double>& rows = projections_.at(step_->buffers[0].index);
    const auto largest = [&](uint32_t offset, uint32_t n) {
      return *std::max_element(rows.begin() + offset, rows.begin() + offset + n);
    };
    const auto bound = [&](uint32_t offset, uint32_t heads, const BufferRef& weight) {
      const uint32_t width = heads * s.head_dim;
      const double group = s.qk_norm == spec::QkNorm::per_head ? s.head_dim : width;
      if (s.qk_norm != spec::QkNorm::none) return std::sqrt(group) * largest_of(weight);
      // A rotated pair: both values at their bounds.
      return largest(offset, width) * (s.rope == spec::RopePairing::none ? 1 : std::numbers::sqrt2);
    };
    add("q", bound(s.q_offset, s.n_head, step_->buffers[2]));
    add("k", bound(s.k_offset, s.n_head_kv, step_->buffers[3]));
    value_bound_ = largest(s.v_offset, s.n_head_kv * s.value_dim);
    add("v", value_bound_);
  }
  void visit(const spec::AttentionSpec&) { add("attention", value_bound_); }
  template <class Other>
  void visit(const Other&) {}

  const Plan& plan_;
  const gguf::File& file_;
  const Step* step_ = nullptr;
  std::vector<StepOperands> steps_;
  std::map<uint32_t, std::vector<float>> norms_;  ///< sqrt(group) * weights, by output.
  std::map<uint32_t, std::vector<double>> projections_;
  double value_bound_ = 0;
};

/// Adds what a finished step wrote to its operands.
class Observer {
 public:
  Observer(const Plan& plan, std::vector<StepOperands>& steps) : plan_(plan), steps_(steps) {}

  void operator()(const FinishedStep& finished) const {
    StepOperands& operands = steps_[finished.step];
    if (operands.empty()) return;
    const Step& step = plan_.steps[finished.step];
    std::visit([&](const auto& spec) { see(spec, finished, operands); },
               plan_.kernels[step.kernel].spec);
  }

 private:
  static const float* floats(const FinishedStep& finished, size_t buffer) {
    return static_cast<const float*>(finished.buffers[buffer]);
  }
  static void see(const spec::NormSpec& s, const FinishedStep& f, StepOperands& operands) {
    operands[0].add(floats(f, 0), size_t{f.rows} * s.width);
    if (s.residual == 0) operands[1].add(floats(f, 2), size_t{f.rows} * s.width);
  }
  static void see(const spec::GemmSpec& s, const FinishedStep& f, StepOperands& operands) {
    operands[0].add(floats(f, 1), size_t{f.rows} * s.segments[0].rows);
  }
  static void see(const spec::AttentionSpec& s, const FinishedStep& f, StepOperands& operands) {
    operands[0].add(floats(f, 3), size_t{f.rows} * s.n_head * s.value_dim);
  }
  void see(const spec::QkvPostSpec& s, const FinishedStep& f, StepOperands& operands) const {
    const size_t capacity = kv_capacity(plan_.options.context);
    const size_t k_width = cpu::kv_padded_dim(s.kv, s.head_dim);
    const size_t v_width = cpu::kv_padded_dim(s.kv, s.value_dim);
    for (size_t row = 0; row < f.rows; ++row) {
      operands[0].add(floats(f, 0) + row * s.row_width + s.q_offset, size_t{s.n_head} * s.head_dim);
      const size_t position = f.start_position + row;
      for (size_t head = 0; head < s.n_head_kv; ++head) {
        const size_t group = position / cpu::kv_group_keys;
        const float* keys = floats(f, 4) + head * k_width * capacity;
        operands[1].add(keys + group * k_width * cpu::kv_group_keys + position % cpu::kv_group_keys,
                        s.head_dim, cpu::kv_group_keys);
        operands[2].add(floats(f, 5) + (head * capacity + position) * v_width, s.value_dim);
      }
    }
  }
  template <class Other>
  void see(const Other&, const FinishedStep&, StepOperands&) const {}

  const Plan& plan_;
  std::vector<StepOperands>& steps_;
};

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string losses_json(const char* name, const Losses& losses, const Operand& of, double worst) {
  return fmt::format(
      R"("{}": {{"saturated": {}, "subnormal": {:.3g}, "lost": {:.3g}, "lost_worst_step": {:.3g}}})",
      name, losses.saturated, share(losses.subnormal, of.values), losses.error / of.squares, worst);
}

/// A line of `steps` taken together.
void print(const std::string& model, const std::vector<const Operand*>& steps) {
  Operand all;
  all.kind = steps.front()->kind;
  double smallest_bound = std::numeric_limits<double>::infinity();
  double plain_worst = 0, scaled_worst = 0;
  for (const Operand* step : steps) {
    if (step->largest >= all.largest) all.step = step->step;
    all.largest = std::max(all.largest, step->largest);
    all.bound = std::max(all.bound, step->bound);
    smallest_bound = std::min(smallest_bound, step->bound);
    all.values += step->values;
    all.squares += step->squares;
    all.plain.add(step->plain);
    all.scaled.add(step->scaled);
    plain_worst = std::max(plain_worst, step->plain.error / step->squares);
    scaled_worst = std::max(scaled_worst, step->scaled.error / step->squares);
  }
  Operand low;
  low.set_bound(smallest_bound);
  all.set_bound(all.bound);
  fmt::print(
      R"({{"model": "{}", "operand": "{}", "steps": {}, "values": {}, "largest": {:.6g}, "at": "{}", )"
      R"("bound": {}, "scale_log2": [{}, {}], {}, {}}})"
      "\n",
      model, all.kind, steps.size(), all.values, double{all.largest}, all.step,
      std::isfinite(all.bound) ? fmt::format("{:.4g}", all.bound) : "null", all.scale_log2,
      low.scale_log2, losses_json("at_1", all.plain, all, plain_worst),
      losses_json("at_bound", all.scaled, all, scaled_worst));
}

std::vector<TokenId> ids_of(const gguf::File& file, const std::string& text_path, uint32_t context,
                            size_t limit, uint32_t vocabulary) {
  const Tokenizer tokenizer = Tokenizer::from_metadata(file.metadata());
  std::vector<TokenId> ids;
  if (tokenizer.has_text()) {
    std::ifstream in(text_path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    ids = tokenizer.encode(text, {});
  } else {
    // A fixture without a tokenizer: ids from all over its vocabulary.
    for (size_t i = 0; i < limit; ++i) {
      ids.push_back(static_cast<TokenId>((i * 7919 + 13) % vocabulary));
    }
  }
  ids.resize(std::min(ids.size(), limit) / context * context);
  if (tokenizer.has_text() && tokenizer.adds_bos() && tokenizer.bos()) {
    for (size_t i = 0; i < ids.size(); i += context) ids[i] = *tokenizer.bos();
  }
  return ids;
}

void measure(const std::string& model, const std::string& text, size_t limit, bool each_step) {
  constexpr uint32_t chunk = 128, output_every = 16;
  const uint32_t context =
      std::min<uint32_t>(512, build_graph(gguf::File::open(model)).context_length);
  const auto engine = load_fixture(model, test_options(context, chunk));
  const Plan& plan = engine->plan();
  const std::vector<TokenId> ids = ids_of(engine->file(), text, context, limit, plan.vocabulary);
  if (ids.empty()) throw Error(ErrorKind::usage, text, "it does not fill one context", "");
  std::vector<StepOperands> steps = std::move(Bounds(plan, engine->file()).steps());
  std::vector<uint32_t> wanted;
  for (uint32_t row = 0; row < context; row += output_every) wanted.push_back(row);

  after_cpu_step = Observer(plan, steps);
  const auto session = engine->new_session();
  for (size_t at = 0; at < ids.size(); at += context) {
    session->reset();
    session->feed(std::span(ids).subspan(at, context), 0, wanted, 0,
                  [](uint32_t, std::span<const float>) {});
  }
  after_cpu_step = nullptr;

  const std::string name = std::filesystem::path(model).filename().string();
  std::map<std::string, std::vector<const Operand*>> kinds;
  for (const StepOperands& operands : steps) {
    for (const Operand& operand : operands) {
      // Rounding aside, a value beyond its bound says that a bound or a reader here is wrong.
      if (!(operand.largest <= operand.bound * 1.001)) {
        throw Error(ErrorKind::failed, operand.step, operand.kind + " exceeds its bound", "");
      }
      kinds[operand.kind].push_back(&operand);
      if (each_step) print(name, {&operand});
    }
  }
  fmt::print(R"({{"model": "{}", "tokens": {}, "context": {}}})"
             "\n",
             name, ids.size(), context);
  for (const auto& [kind, of_kind] : kinds) print(name, of_kind);
}

}  // namespace
}  // namespace quern::test

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool each_step = std::erase(arguments, "--steps") > 0;
  if (arguments.size() < 2 || arguments.size() > 3) {
    std::fprintf(stderr, "usage: operand_ranges MODEL.gguf TEXT [TOKENS] [--steps]\n");
    return 2;
  }
  const size_t limit =
      arguments.size() == 3 ? std::strtoull(arguments[2].c_str(), nullptr, 10) : 4096;
  try {
    quern::test::measure(arguments[0], arguments[1], limit, each_step);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "operand_ranges: %s\n", error.what());
    return 1;
  }
  return 0;
}
