#pragma once

#include <vector>

#include "templates/spec/any_spec.h"

namespace quern::cpu {

/// One spec of each family, of a size that a model might have.
inline std::vector<spec::AnySpec> sample_specs() {
  using enum spec::QuantType;
  spec::GemmSpec gemm{.segments = {{q4_k, 64}, {q6_k, 40}}, .n_segments = 2, .k = 256, .bias = 2};
  spec::GemmSpec glu{.segments = {{mxfp4, 72}, {iq4_xs, 72}}, .n_segments = 2, .k = 256};
  glu.epilogue = spec::Epilogue::swiglu;
  spec::ExpertsSpec experts{.segments = {{q4_0, 48}}, .n_segments = 1, .k = 256};
  experts.n_expert = 4;
  experts.n_used = 2;
  return {
      gemm,
      glu,
      experts,
      spec::RepackSpec{.type = q5_k, .k = 256},
      spec::EmbedSpec{.type = q6_k, .width = 256},
      spec::NormSpec{.width = 256, .group = 256, .eps = 1e-5f},
      spec::GatherSpec{.width = 256},
      spec::AddSpec{.width = 256, .gate_width = 256},
      spec::RouterSpec{.k = 256, .n_expert = 8, .n_used = 2, .renormalise = 1},
      spec::GroupSpec{.n_expert = 8, .n_used = 2},
      spec::CombineSpec{.width = 256, .n_used = 2},
  };
}

}  // namespace quern::cpu
