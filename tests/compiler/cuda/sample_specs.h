#pragma once

#include <string>
#include <vector>

#include "compiler/kernel.h"
#include "templates/spec/attention_launch.h"
#include "templates/spec/gemm_launch.h"

namespace quern::test {

struct NamedSpec {
  std::string name;
  spec::AnySpec spec;
  uint32_t shared_bytes = 0;  ///< Dynamic shared memory it is launched with.
  uint32_t threads = 256;     ///< Of a block.
};

inline spec::GemmSpec sample_gemm(uint32_t tile_tokens) {
  return {.segments = {{spec::QuantType::q4_k, 4096},
                       {spec::QuantType::q4_k, 1024},
                       {spec::QuantType::q6_k, 1024}},
          .n_segments = 3,
          .k = 4096,
          .tile_tokens = tile_tokens,
          .tile_cells = tile_tokens == 8 ? 3u : 8u,
          .tier = spec::Tier::mma,
          .stages = 4};
}

inline spec::AttentionSpec sample_attention(uint32_t head_dim, uint32_t decode) {
  return {.n_head = 32,
          .n_head_kv = 8,
          .head_dim = head_dim,
          .value_dim = head_dim,
          .scale = 0.0883883461f,
          .kv = spec::KvType::f16,
          .block_keys = head_dim == 256 ? 64u : 128u,
          .segment_keys = head_dim == 256 ? 2048u : 1024u,
          .tier = spec::Tier::mma,
          .decode = decode};
}

/// One spec or more of every GPU kernel family that exists, at the shapes of Llama-3.1-8B.
inline std::vector<NamedSpec> sample_specs() {
  using namespace spec;
  std::vector<NamedSpec> specs;
  for (uint32_t tokens : {8u, 64u, 128u, 256u}) {
    const GemmSpec s = sample_gemm(tokens);
    specs.push_back({"gemm_" + std::to_string(tokens), s, launch_shape(s, 1).shared_bytes});
  }
  GemmSpec turns = sample_gemm(8);
  turns.stages = 2, turns.shared_groups = 2, turns.sharers = 4, turns.turn_slabs = 4;
  turns.tile_cells = 2;
  specs.push_back({"gemm_8_turns", turns, launch_shape(turns, 1).shared_bytes});
  GemmSpec glu{.segments = {{QuantType::q4_k, 28672}},
               .n_segments = 1,
               .k = 4096,
               .epilogue = Epilogue::swiglu,
               .tile_tokens = 256,
               .tile_cells = 8,
               .tier = Tier::mma,
               .stages = 4};
  specs.push_back({"gemm_swiglu", glu, launch_shape(glu, 1).shared_bytes});
  for (uint32_t dim : {32u, 64u, 80u, 96u, 128u, 256u}) {
    for (uint32_t decode : {0u, 1u}) {
      const AttentionSpec s = sample_attention(dim, decode);
      specs.push_back({"attention_" + std::to_string(dim) + (decode != 0 ? "_decode" : ""), s,
                       decode != 0 ? attention_decode_shape(s, 4096).shared_bytes
                                   : attention_prefill_shape(s, 512).shared_bytes});
    }
  }
  AttentionSpec wave = sample_attention(128, 0);
  wave.path = AttentionPath::wave, wave.kv = KvType::f32, wave.q_row_width = 6144;
  specs.push_back({"attention_wave", wave, attention_wave_shape(wave, 512, 4096).shared_bytes});
  specs.push_back({"embed", EmbedSpec{.type = QuantType::q4_k, .width = 4096, .tier = Tier::mma}});
  specs.push_back(
      {"norm", NormSpec{.width = 4096, .group = 4096, .eps = 1e-5f, .tier = Tier::mma}});
  specs.push_back({"gather", GatherSpec{.width = 4096}});
  specs.push_back({"gather_operand", GatherSpec{.width = 4096, .operand = 1}});
  specs.push_back({"add", AddSpec{.width = 4096}});
  specs.push_back({"unpack", UnpackSpec{.segments = {{QuantType::q4_k, 4096},
                                                     {QuantType::q4_k, 1024},
                                                     {QuantType::q6_k, 1024}},
                                        .n_segments = 3,
                                        .k = 4096}});
  specs.push_back({"flatten", FlattenSpec{.width = 4096}});
  specs.push_back({"finish", FinishSpec{.rows = {28672}, .epilogue = Epilogue::swiglu}});
  specs.push_back({"repack", RepackSpec{.type = QuantType::q6_k, .k = 4096, .tier = Tier::mma}});
  specs.push_back({"select", SelectSpec{.vocabulary = 128256, .count = 256}});
  specs.push_back({"qkv_post", QkvPostSpec{.n_head = 32,
                                           .n_head_kv = 8,
                                           .head_dim = 128,
                                           .value_dim = 128,
                                           .row_width = 6144,
                                           .q_offset = 0,
                                           .k_offset = 4096,
                                           .v_offset = 5120,
                                           .rope = RopePairing::norm,
                                           .n_rot = 128,
                                           .kv = KvType::f16,
                                           .tier = Tier::mma}});
  return specs;
}

}  // namespace quern::test
