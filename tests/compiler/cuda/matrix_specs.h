#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/cuda/attention_choice.h"
#include "compiler/cuda/gemm_choice.h"
#include "templates/spec/attention_launch.h"
#include "tests/compiler/cuda/sample_specs.h"

namespace quern::test {

/// Types that have weight cells in GPU memory, and all types that a file may have.
inline constexpr std::pair<std::string_view, spec::QuantType> cell_types[] = {
    {"q4_k", spec::QuantType::q4_k}, {"q5_k", spec::QuantType::q5_k},
    {"q6_k", spec::QuantType::q6_k}, {"q4_0", spec::QuantType::q4_0},
    {"q8_0", spec::QuantType::q8_0}, {"f16", spec::QuantType::f16}};
inline constexpr spec::QuantType file_types[] = {
    spec::QuantType::f32,  spec::QuantType::f16,    spec::QuantType::q4_0,
    spec::QuantType::q4_1, spec::QuantType::q5_0,   spec::QuantType::q5_1,
    spec::QuantType::q8_0, spec::QuantType::q2_k,   spec::QuantType::q3_k,
    spec::QuantType::q4_k, spec::QuantType::q5_k,   spec::QuantType::q6_k,
    spec::QuantType::bf16, spec::QuantType::iq4_nl, spec::QuantType::iq4_xs,
    spec::QuantType::mxfp4};

/// Every combination that the planner may ask a target for, at shapes of real models: what the full
/// matrix compiles, one family or one GEMM weight type at a time. All go through the choices that
/// plans go through; a kernel that several classes of tokens share is there once.
class MatrixSpecs {
 public:
  explicit MatrixSpecs(const cuda::TargetTraits& target) : target_(target) {}

  std::vector<NamedSpec> gemm(spec::QuantType type) {
    using enum spec::Epilogue;
    const spec::QuantType other =
        type == spec::QuantType::q6_k ? spec::QuantType::q4_k : spec::QuantType::q6_k;
    // Above and below the length where ptxas unrolls the loop over k.
    const uint32_t cell = spec::gpu_cell_k(type);
    for (const uint32_t k : {cell, 512u, 768u}) {
      add_gemm("short", {.segments = {{type, 1000}}, .n_segments = 1, .k = k});
    }
    add_gemm("short_qkv", qkv(type, type, 768));
    spec::GemmSpec one{.segments = {{type, 4096}}, .n_segments = 1, .k = 4096};
    one.softcap = 30;
    add_gemm("softcap", one);
    one.softcap = 0;
    for (const spec::Epilogue epilogue : {residual, swiglu, gelu_glu}) {
      one.epilogue = epilogue;
      add_gemm("epilogue", one);
    }
    one.epilogue = residual, one.bias = 1;
    add_gemm("bias", one);
    add_gemm("qkv", qkv(type, type, 4096));
    add_gemm("qkv_mixed", qkv(type, other, 4096));
    // Small cells leave room for wider tiles, where registers are scarce.
    add_gemm(
        "qkv_small",
        qkv(type, type == spec::QuantType::q4_0 ? spec::QuantType::q8_0 : spec::QuantType::q4_0,
            4096));
    spec::GemmSpec biased = qkv(type, other, 4096);
    biased.bias = 7;
    add_gemm("qkv_mixed_bias", biased);
    biased = qkv(type, type, 4096);
    biased.bias = 7;
    add_gemm("qkv_bias", biased);
    add_decode(type, other);
    return take();
  }

  std::vector<NamedSpec> attention() {
    using spec::KvType;
    for (const uint32_t dim : {32u, 64u, 80u, 96u, 128u, 256u}) {
      for (const KvType kv : {KvType::f16, KvType::bf16, KvType::q8_0}) {
        for (const uint32_t decode : {0u, 1u}) {
          spec::AttentionSpec s = sample_attention(dim, decode);
          s.kv = kv;
          add_attention(s);
          if (kv == KvType::bf16) continue;
          s.window = 512, s.softcap = 50;
          add_attention(s);
          s.window = 0, s.softcap = 0;
          s.n_head_kv = 2, s.gate = 1, s.gate_row_width = s.n_head * dim;
          add_attention(s);
        }
      }
    }
    return take();
  }

  std::vector<NamedSpec> wave() {
    using spec::KvType;
    for (const uint32_t dim : {64u, 128u, 192u, 256u, 512u}) {
      for (const KvType kv : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
        spec::AttentionSpec s = sample_attention(dim, 0);
        s.kv = kv, s.path = spec::AttentionPath::wave, s.q_row_width = s.n_head * dim * 2;
        add_attention(s);
        s.window = 512, s.softcap = 50, s.gate = 1, s.gate_row_width = s.n_head * dim;
        add_attention(s);
      }
    }
    return take();
  }

  /// Everything else: one thread block of 256, no shared memory that a launch sets.
  std::vector<NamedSpec> rows() {
    using spec::KvType, spec::QkNorm, spec::RopePairing;
    for (const spec::QuantType type : file_types) {
      for (const uint32_t k : {256u, 4096u}) {
        add("repack", spec::RepackSpec{.type = type, .k = k, .tier = spec::Tier::mma});
      }
      add("embed",
          spec::EmbedSpec{.type = type, .width = 4096, .scale = 64, .tier = spec::Tier::mma});
    }
    for (const uint32_t width : {64u, 576u, 4096u, 8192u}) {
      for (const uint32_t residual : {0u, 1u}) {
        add("norm", spec::NormSpec{.width = width,
                                   .group = width,
                                   .eps = 1e-5f,
                                   .residual = residual,
                                   .tier = spec::Tier::mma});
      }
      add("gather", spec::GatherSpec{.width = width});
      add("gather", spec::GatherSpec{.width = width, .operand = 1});
      add("add", spec::AddSpec{.width = width});
      add("flatten", spec::FlattenSpec{.width = width});
    }
    for (const auto& [name, type] : cell_types) {
      for (const uint32_t k : {spec::gpu_cell_k(type), 4096u}) {
        add("unpack", spec::UnpackSpec{.segments = {{type, 1000}}, .k = k});
        add("unpack", spec::UnpackSpec{.segments = {{type, 4096},
                                                    {spec::QuantType::q8_0, 1024},
                                                    {spec::QuantType::q6_k, 1024}},
                                       .n_segments = 3,
                                       .k = k == 64 ? 256 : k});
      }
    }
    for (const float softcap : {0.0f, 30.0f}) {
      using enum spec::Epilogue;
      for (const spec::Epilogue epilogue : {store, residual}) {
        add("finish", spec::FinishSpec{.rows = {4096, 1024, 1024},
                                       .n_segments = 3,
                                       .epilogue = epilogue,
                                       .bias = 5,
                                       .softcap = softcap});
      }
      add("finish", spec::FinishSpec{.rows = {28672}, .epilogue = swiglu});
      add("finish", spec::FinishSpec{.rows = {400}, .epilogue = gelu_glu});
    }
    for (const uint32_t vocabulary : {1u, 17u, 32000u, 262144u, 1u << 26}) {
      for (const uint32_t count : {1u, 256u, 1024u}) {
        add("select", spec::SelectSpec{.vocabulary = vocabulary, .count = count});
      }
    }
    for (const KvType kv : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
      for (const QkNorm norm : {QkNorm::none, QkNorm::per_head, QkNorm::full_width}) {
        for (const RopePairing rope : {RopePairing::none, RopePairing::norm, RopePairing::neox}) {
          add("qkv_post", post(128, kv, norm, rope));
          add("qkv_post", post(256, kv, norm, rope));
        }
      }
    }
    return take();
  }

 private:
  static spec::GemmSpec qkv(spec::QuantType type, spec::QuantType v, uint32_t k) {
    return {.segments = {{type, 4096}, {type, 1024}, {v, 1024}}, .n_segments = 3, .k = k};
  }
  static spec::QkvPostSpec post(uint32_t dim, spec::KvType kv, spec::QkNorm norm,
                                spec::RopePairing rope) {
    return {.n_head = 16,
            .n_head_kv = 4,
            .head_dim = dim,
            .value_dim = dim,
            .row_width = 24 * dim,
            .q_offset = 0,
            .k_offset = 16 * dim,
            .v_offset = 20 * dim,
            .qk_norm = norm,
            .eps = 1e-6f,
            .rope = rope,
            .n_rot = rope == spec::RopePairing::none ? 0 : dim,
            .kv = kv,
            .tier = spec::Tier::mma};
  }
  /// The classes that plans use (8, 64, 512, 2048), and 256, so that each width of tile is there.
  void add_gemm(const std::string& name, spec::GemmSpec math) {
    for (const uint32_t tokens : {8u, 64u, 256u, 512u, 2048u}) {
      add_tile("gemm_" + name, math, tokens);
    }
  }
  void add_tile(const std::string& name, spec::GemmSpec s, uint32_t tokens) {
    s.tier = spec::Tier::mma;
    s = cuda::choose_gemm_tile(s, tokens, target_);
    const spec::LaunchShape shape = launch_shape(s, 1);
    add(name, s, shape.shared_bytes, shape.threads);
  }
  /// Decode at rows that give blocks of 2 to 9, 12 and 14 row groups and many small ones, on both
  /// sides of each length of K that the choice looks at, with every epilogue; and three segments of
  /// two types, with and without biases.
  void add_decode(spec::QuantType type, spec::QuantType other) {
    using enum spec::Epilogue;
    for (const uint32_t k : {1024u, 2048u, 8192u, 16384u}) {
      for (const uint32_t rows :
           {4096u, 6144u, 8192u, 10240u, 12288u, 14336u, 18432u, 24576u, 28672u, 128256u}) {
        spec::GemmSpec s{.segments = {{type, rows}}, .n_segments = 1, .k = k};
        for (const spec::Epilogue epilogue : {store, residual, swiglu, gelu_glu}) {
          s.epilogue = epilogue, s.bias = epilogue == residual ? 1 : 0;
          add_tile("gemm_decode", s, 8);
        }
        for (const uint32_t bias : {0u, 7u}) {
          add_tile("gemm_decode",
                   {.segments = {{type, rows / 2}, {type, rows / 4}, {other, rows / 4}},
                    .n_segments = 3,
                    .k = k,
                    .bias = bias},
                   8);
        }
      }
    }
  }
  void add_attention(spec::AttentionSpec s) {
    if (!cuda::choose_attention(s, target_)) return;  // The planner refuses it there.
    const bool wave = s.path == spec::AttentionPath::wave;
    const spec::LaunchShape shape = wave            ? attention_wave_shape(s, 512, 4096)
                                    : s.decode != 0 ? attention_decode_shape(s, 4096)
                                                    : attention_prefill_shape(s, 512);
    add(wave ? "wave" : "attention", s, shape.shared_bytes, shape.threads);
  }
  void add(const std::string& name, const spec::AnySpec& s, uint32_t shared_bytes = 0,
           uint32_t threads = 256) {
    if (texts_.insert(spec_to_text(s)).second) specs_.push_back({name, s, shared_bytes, threads});
  }
  std::vector<NamedSpec> take() { return std::exchange(specs_, {}); }

  const cuda::TargetTraits& target_;
  std::vector<NamedSpec> specs_;
  std::set<std::string> texts_;
};

}  // namespace quern::test
