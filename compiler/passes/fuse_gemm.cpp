// Projections: one GEMM for those that read the same value, and the epilogues.

#include "compiler/passes/fuse.h"
#include "compiler/spec_names.h"

namespace quern::passes {

void Fuser::emit_gemm(const Gemm& gemm, BufferRef y, size_t named_after) {
  const Linear& first = *op_of<Linear>(gemm.linears.front());
  spec::GemmSpec spec;
  spec.n_segments = static_cast<uint32_t>(gemm.linears.size());
  spec.k = static_cast<uint32_t>(first.weight.k);
  spec.epilogue = gemm.epilogue;
  spec.softcap = gemm.softcap;
  const ValueId input = node_at(gemm.linears.front()).inputs[0];
  const BufferRef residual =
      gemm.residual == no_value ? BufferRef{} : dense(gemm.residual, named_after);
  std::vector<BufferRef> buffers = {dense(input, gemm.linears.front()), y, residual};
  for (size_t i = 0; i < gemm.linears.size(); ++i) {
    const Linear& linear = *op_of<Linear>(gemm.linears[i]);
    spec.segments[i] = {to_spec(linear.weight.type), static_cast<uint32_t>(linear.weight.rows)};
    if (linear.bias.present()) spec.bias |= 1u << i;
    buffers.push_back(packed(linear.weight));
  }
  for (const size_t node : gemm.linears) buffers.push_back(vector(op_of<Linear>(node)->bias));
  std::vector<size_t> nodes = gemm.linears;
  nodes.insert(nodes.end(), gemm.absorbed.begin(), gemm.absorbed.end());
  launch(spec, std::move(buffers), nodes, gemm.reason);
}

void Fuser::lower_linear(size_t node) {
  const BufferRef y = make_output(node_at(node).output);
  emit_gemm({.linears = {node}, .reason = "no other projection shares its input and its reader"}, y,
            node);
}

void Fuser::lower_group(const std::vector<size_t>& linears) {
  if (linears.size() == 1) return lower_linear(linears.front());
  uint32_t row_width = 0;
  for (const size_t node : linears) row_width += width(node_at(node).output);
  std::string name;
  for (const size_t node : linears) {
    if (!name.empty()) name += '+';
    name += name.empty() ? std::string_view(node_at(node).name) : short_name(node_at(node).name);
  }
  const ValueId first = node_at(linears.front()).output;
  const BufferRef y =
      make_buffer(name, uint64_t{row_width} * sizeof(float), 0, graph_.values[first].selected);
  uint32_t offset = 0;
  for (const size_t node : linears) {
    const ValueId value = node_at(node).output;
    places_[value] = Place{y, row_width, offset};
    offset += width(value);
  }
  emit_gemm({.linears = linears, .reason = "they read the same value: one GEMM, a segment each"}, y,
            linears.front());
}

void Fuser::lower_glu(size_t node) {
  const Glu& glu = *op_of<Glu>(node);
  const auto& inputs = node_at(node).inputs;
  const BufferRef y = make_output(node_at(node).output);
  emit_gemm({.linears = {producer_[inputs[0]], producer_[inputs[1]]},
             .epilogue = glu.activation == GluActivation::silu ? spec::Epilogue::swiglu
                                                               : spec::Epilogue::gelu_glu,
             .absorbed = {node},
             .reason = "gate and up read the same value and only their product goes on"},
            y, node);
}

void Fuser::lower_softcap(size_t node) {
  const BufferRef y = make_output(node_at(node).output);
  emit_gemm({.linears = {producer_[node_at(node).inputs[0]]},
             .softcap = op_of<Softcap>(node)->cap,
             .absorbed = {node},
             .reason = "the cap is applied where the sums are stored"},
            y, node);
}

}  // namespace quern::passes
