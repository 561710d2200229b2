#include <fmt/format.h>

#include "models/error.h"
#include "models/families/families.h"
#include "models/families/hybrid.h"

namespace quern {
namespace {

struct DecayInputs {
  ValueId alpha, beta;
};

/// `ssm_ba` holds, K head by K head, the beta rows and then the alpha rows of its V heads.
DecayInputs alpha_and_beta(GraphBuilder& b, const Hybrid& hybrid, ValueId n) {
  const Size& n_v = hybrid.delta.n_v_heads;
  const uint64_t r = n_v.value / hybrid.delta.n_k_heads.value;
  const GraphBuilder::RowPattern beta = {n_v.value, 0, r, 2 * r};
  const GraphBuilder::RowPattern alpha = {n_v.value, r, r, 2 * r};
  return {.alpha = b.linear_rows(n, "ssm_ba", 2 * n_v, alpha, "ssm_ba.alpha"),
          .beta = b.linear_rows(n, "ssm_ba", 2 * n_v, beta, "ssm_ba.beta")};
}

/// Early conversions hold q, k, v and z interleaved in one tensor.
void refuse_legacy_layout(const gguf::File& file) {
  for (const gguf::Tensor& tensor : file.tensors()) {
    if (tensor.name.ends_with(".ssm_in.weight")) {
      throw Error(ErrorKind::bad_model, fmt::format("tensor {}", tensor.name),
                  "is the legacy interleaved layout, which is not supported",
                  "convert the model again with a converter that writes attn_qkv and attn_gate");
    }
  }
}

}  // namespace

// Qwen 3 Next: three gated delta nets to one gated attention, routed experts and a shared one. V
// heads that share a K head lie side by side.
ModelGraph build_qwen3next(const gguf::File& file) {
  refuse_legacy_layout(file);
  GraphBuilder b(file, "qwen3next");
  const Hybrid hybrid = read_hybrid(b, DeltaHeadMap::grouped, false);
  const Experts experts = b.read_experts({.renormalised = true});
  const Size shared_width = read_shared_width(b);

  ValueId x = b.embed();
  for (uint32_t layer = 0; layer < b.n_layers(); ++layer) {
    begin_hybrid_layer(b, hybrid, layer);
    ValueId n = b.rms_norm(x, "attn_norm");
    ValueId mixed = no_value;
    if (hybrid.recurrent[layer]) {
      const auto [alpha, beta] = alpha_and_beta(b, hybrid, n);
      mixed = gated_delta_net(b, hybrid, n, alpha, beta);
    } else {
      mixed = gated_attention(b, hybrid, n);
    }
    x = b.add(x, mixed, "attn_residual");
    n = b.rms_norm(x, "post_attention_norm");
    x = b.add(x, experts_with_shared(b, experts, shared_width, n), "ffn_residual");
  }
  return b.finish(x);
}

}  // namespace quern
