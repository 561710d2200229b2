// Fast mode on a GPU: GEMMs of many rows through cuBLASLt (docs/gpu.md, "The cuBLASLt route").

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "compiler/passes/passes.h"
#include "compiler/spec_names.h"

namespace quern::passes {

namespace {

uint32_t rows_of_segments(const spec::GemmSpec& gemm) {
  uint32_t rows = 0;
  for (uint32_t i = 0; i < gemm.n_segments; ++i) rows += gemm.segments[i].rows;
  return rows;
}

bool is_glu(const spec::GemmSpec& gemm) {
  return gemm.epilogue == spec::Epilogue::swiglu || gemm.epilogue == spec::Epilogue::gelu_glu;
}

/// Puts the route's steps beside the GEMMs of a program.
class Relaxer {
 public:
  Relaxer(Program& program, const PlanOptions& options)
      : program_(program),
        options_(options),
        few_rows_(program.few_rows),
        keep_(program.keep_plain_weights) {}

  void run() {
    std::vector<Launch> launches = std::exchange(program_.launches, {});
    for (Launch& launch : launches) {
      const auto* gemm = std::get_if<spec::GemmSpec>(&launch.spec);
      gemms_ += gemm != nullptr ? 1 : 0;
      const bool relaxed = gemm != nullptr && library_runs(*gemm, most_rows(launch), few_rows_);
      if (gemm != nullptr && !relaxed && most_rows(launch) > few_rows_) explain_exact(launch);
      if (relaxed) launch.run = StepRun::few;
      program_.launches.push_back(std::move(launch));
      if (relaxed) add_route();
    }
    const std::string choice =
        relaxed_ == 0 ? "fast, with no step relaxed"
                      : fmt::format("fast, with {} of {} GEMMs relaxed", relaxed_, gemms_);
    const std::string reason =
        relaxed_ == 0
            ? fmt::format("no GEMM of more than {} rows is one that cuBLASLt computes", few_rows_)
            : "they are listed below; all else is as in exact mode";
    program_.decisions.push_back({"numerics", choice, reason});
    if (relaxed_ == 0) program_.few_rows = 0;
    decisions_.append_to(program_.decisions);
  }

 private:
  using Launch = Program::Launch;

  uint32_t most_rows(const Launch& launch) const {
    return launch.rows == StepRows::outputs && !options_.all_logits ? 1 : options_.chunk;
  }

  /// The launch's name without its layer, which the decision's list of layers says.
  static std::string subject(const Launch& launch) {
    const std::string layer = fmt::format("blk.{} ", launch.layer);
    return launch.name.starts_with(layer) ? launch.name.substr(layer.size()) : launch.name;
  }
  void explain_exact(const Launch& launch) {
    decisions_.add(launch.layer, subject(launch), "not relaxed: Quern's own kernels",
                   "its rows are no multiple of 8, as cuBLASLt's are");
  }

  BufferRef make_buffer(const Launch& gemm, ActivationBuffer buffer) {
    buffer.name = fmt::format("{} {}", gemm.name, buffer.name);
    buffer.selected = gemm.rows == StepRows::outputs;
    program_.activations.push_back(std::move(buffer));
    return {BufferKind::activation, static_cast<uint32_t>(program_.activations.size() - 1)};
  }
  void add(const Launch& gemm, std::string_view what, const spec::AnySpec& spec,
           std::vector<BufferRef> buffers, StepRun run = StepRun::many) {
    program_.launches.push_back({.spec = spec,
                                 .buffers = std::move(buffers),
                                 .rows = gemm.rows,
                                 .run = run,
                                 .layer = gemm.layer,
                                 .name = fmt::format("{} {}", gemm.name, what)});
  }

  /// The route of the GEMM that is the last launch.
  void add_route() {
    const Launch gemm = program_.launches.back();
    const auto& s = std::get<spec::GemmSpec>(gemm.spec);
    const BufferRef weights = add_weights(gemm, s);
    const uint32_t rows = rows_of_segments(s), k = spec::plain_row_halves(s.k);
    const BufferRef x = make_buffer(gemm, {.name = "plain x", .bytes_per_row = uint64_t{k} * 2});
    add(gemm, "flatten", spec::FlattenSpec{.width = s.k}, {gemm.buffers[0], x});
    if (!is_glu(s) && s.bias == 0 && s.softcap == 0) {
      const bool residual = s.epilogue == spec::Epilogue::residual;
      add(gemm, "matmul", spec::MatmulSpec{.rows = rows, .k = k, .residual = residual ? 1U : 0U},
          {x, gemm.buffers[1], residual ? gemm.buffers[2] : BufferRef{}, weights});
    } else {
      const BufferRef sums =
          make_buffer(gemm, {.name = "sums", .bytes_per_row = uint64_t{rows} * sizeof(float)});
      add(gemm, "matmul", spec::MatmulSpec{.rows = rows, .k = k}, {x, sums, {}, weights});
      add_finish(gemm, s, sums);
    }
    ++relaxed_;
    decisions_.add(
        gemm.layer, subject(gemm),
        fmt::format("relaxed: cuBLASLt where a launch has more than {} rows", few_rows_),
        fmt::format("its sums over k are f32 in the library's order; weights {}",
                    keep_ ? "are kept decoded, as there is room" : "decode before each product"));
  }

  /// The step that decodes a GEMM's weights to plain rows, and where it puts them.
  BufferRef add_weights(const Launch& gemm, const spec::GemmSpec& s) {
    const uint64_t bytes = uint64_t{rows_of_segments(s)} * spec::plain_row_halves(s.k) * 2;
    const BufferRef plain =
        make_buffer(gemm, {.name = "plain weights",
                           .form = keep_ ? ActivationForm::kept : ActivationForm::rows,
                           .fixed_bytes = bytes});
    spec::UnpackSpec unpack{.n_segments = s.n_segments, .k = s.k};
    std::copy(std::begin(s.segments), std::end(s.segments), unpack.segments);
    std::vector<BufferRef> buffers = {plain};
    for (uint32_t i = 0; i < s.n_segments; ++i) buffers.push_back(gemm.buffers[3 + i]);
    add(gemm, "unpack", unpack, std::move(buffers), keep_ ? StepRun::once : StepRun::many);
    return plain;
  }

  void add_finish(const Launch& gemm, const spec::GemmSpec& s, BufferRef sums) {
    spec::FinishSpec finish{
        .n_segments = s.n_segments, .epilogue = s.epilogue, .bias = s.bias, .softcap = s.softcap};
    for (uint32_t i = 0; i < s.n_segments; ++i) finish.rows[i] = s.segments[i].rows;
    std::vector<BufferRef> buffers = gemm.buffers;
    buffers[0] = sums;
    for (uint32_t i = 0; i < s.n_segments; ++i) buffers[3 + i] = {};
    add(gemm, "finish", finish, std::move(buffers));
  }

  Program& program_;
  const PlanOptions& options_;
  uint32_t few_rows_;
  bool keep_;
  size_t gemms_ = 0, relaxed_ = 0;
  LayerDecisions decisions_;
};

}  // namespace

bool library_runs(const spec::GemmSpec& gemm, uint32_t most_rows, uint32_t few_rows) {
  return few_rows > 0 && most_rows > few_rows && rows_of_segments(gemm) % 8 == 0;
}

void relax(Program& program, const PlanOptions& options) {
  if (program.few_rows == 0) return;
  add_residuals_in_place(program);
  Relaxer(program, options).run();
}

}  // namespace quern::passes
