#pragma once

// Shared by the host compiler, clang's bitcode build and NVRTC: no standard headers, no allocation.
// A spec is a plain aggregate of 32-bit fields (no padding, so that its bytes can be set as a
// constant). Its `fields(spec, visitor)` names every field in declaration order; the planner's
// JSON, the emitted designated initialisers, the kernel's key and the field-by-field diff come from
// it.

namespace quern::spec {

using u32 = unsigned int;

/// Quantised types, with GGUF's ids (checked against models/quant by the compiler).
enum class QuantType : u32 {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  bf16 = 30,
  mxfp4 = 39,
};

/// Element types of the KV cache.
enum class KvType : u32 { f32 = 0, f16 = 1, bf16 = 2, q8_0 = 3 };

/// Instruction tier. `cpu`: f32 activations, LLVM. `mma`: mma.sync m16n8k16 and cp.async, sm_80 and
/// later. `wgmma`: sm_90a. On the GPU tiers the inputs of a GEMM are f16 operands (docs/gpu.md) and
/// weights are packed in GPU cells.
enum class Tier : u32 { cpu = 0, mma = 1, wgmma = 2 };

/// Rows of a weight that a GEMM reads together: `rows` consecutive output features of one type.
struct RowSegment {
  QuantType type = QuantType::f32;
  u32 rows = 0;

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("type", s.type);
    v("rows", s.rows);
  }
};

}  // namespace quern::spec
