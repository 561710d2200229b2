#pragma once

#include "templates/spec/types.h"

namespace quern::cpu {

using spec::QuantType;

/// Calls `f.template operator()<Type>()` for the quant type; with a type that the spec fixes, one
/// call remains.
template <class F>
__attribute__((always_inline)) inline void with_type(QuantType type, F&& f) {
  switch (type) {
    case QuantType::f32:
      return f.template operator()<QuantType::f32>();
    case QuantType::f16:
      return f.template operator()<QuantType::f16>();
    case QuantType::q4_0:
      return f.template operator()<QuantType::q4_0>();
    case QuantType::q4_1:
      return f.template operator()<QuantType::q4_1>();
    case QuantType::q5_0:
      return f.template operator()<QuantType::q5_0>();
    case QuantType::q5_1:
      return f.template operator()<QuantType::q5_1>();
    case QuantType::q8_0:
      return f.template operator()<QuantType::q8_0>();
    case QuantType::q2_k:
      return f.template operator()<QuantType::q2_k>();
    case QuantType::q3_k:
      return f.template operator()<QuantType::q3_k>();
    case QuantType::q4_k:
      return f.template operator()<QuantType::q4_k>();
    case QuantType::q5_k:
      return f.template operator()<QuantType::q5_k>();
    case QuantType::q6_k:
      return f.template operator()<QuantType::q6_k>();
    case QuantType::iq4_nl:
      return f.template operator()<QuantType::iq4_nl>();
    case QuantType::iq4_xs:
      return f.template operator()<QuantType::iq4_xs>();
    case QuantType::bf16:
      return f.template operator()<QuantType::bf16>();
    case QuantType::mxfp4:
      return f.template operator()<QuantType::mxfp4>();
  }
}

}  // namespace quern::cpu
