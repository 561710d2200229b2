#pragma once

#include "templates/spec/attention.h"
#include "templates/spec/gemm_launch.h"

// Launch shapes of flash attention on the mma tier, from the spec alone.

namespace quern::spec {

/// Warps of a prefill block, 16 queries each: fewer where a head's output fills the registers.
constexpr u32 attention_prefill_warps(const AttentionSpec& s) {
  return s.warps != 0 ? s.warps : s.head_dim > 128 || s.value_dim > 128 ? 4 : 8;
}

constexpr u32 attention_k_bytes(const AttentionSpec& s) {
  return s.block_keys * (s.head_dim * 2 + 16);
}
constexpr u32 attention_v_bytes(const AttentionSpec& s) {
  return s.block_keys * (s.value_dim * 2 + 16);
}

constexpr LaunchShape attention_prefill_shape(const AttentionSpec& s, u32 tokens) {
  const u32 rows = attention_prefill_warps(s) * 16;
  return {
      .threads = rows * 2,
      .min_blocks = 1,
      .shared_bytes = rows * (s.head_dim * 2 + 16) + attention_k_bytes(s) + attention_v_bytes(s),
      .grid_x = (tokens + rows - 1) / rows,
      .grid_y = s.n_head};
}

/// Decode: one block of four warps for each segment of each KV head.
constexpr LaunchShape attention_decode_shape(const AttentionSpec& s, u32 context) {
  return {.threads = 128,
          .min_blocks = 1,
          .shared_bytes = 16 * (s.head_dim * 2 + 16) + attention_k_bytes(s) + attention_v_bytes(s) +
                          16 * (s.block_keys + 8) * 4,
          .grid_x = (context + s.segment_keys - 1) / s.segment_keys,
          .grid_y = s.n_head_kv};
}

/// f32 values of a decode step's partial results: maximum, sum and output of each head and segment.
constexpr u32 attention_partial_floats(const AttentionSpec& s, u32 context) {
  return s.n_head * ((context + s.segment_keys - 1) / s.segment_keys) * (s.value_dim + 2);
}

/// Wave: queries of one head that a block makes at a time, and the blocks that scratch for scores
/// of `scratch_bytes` allows (a row of `capacity` floats each query), at least one.
inline constexpr u32 attention_wave_queries = 4;
inline constexpr u32 attention_wave_scratch_bytes = 64u << 20;
constexpr u32 attention_wave_blocks(u32 capacity,
                                    u32 scratch_bytes = attention_wave_scratch_bytes) {
  const u32 blocks = scratch_bytes / 4 / attention_wave_queries / capacity;
  return blocks == 0 ? 1 : blocks > 1056 ? 1056 : blocks;
}
/// f32 values of that scratch.
constexpr unsigned long long attention_wave_floats(
    u32 capacity, u32 scratch_bytes = attention_wave_scratch_bytes) {
  return static_cast<unsigned long long>(attention_wave_blocks(capacity, scratch_bytes)) *
         attention_wave_queries * capacity;
}
constexpr LaunchShape attention_wave_shape(const AttentionSpec& s, u32 tokens, u32 capacity,
                                           u32 scratch_bytes = attention_wave_scratch_bytes) {
  const u32 items = (tokens + attention_wave_queries - 1) / attention_wave_queries * s.n_head;
  const u32 blocks = attention_wave_blocks(capacity, scratch_bytes);
  return {.threads = 256,
          .min_blocks = 1,
          .shared_bytes = attention_wave_queries * (s.head_dim + 8 * s.value_dim) * 4,
          .grid_x = items < blocks ? items : blocks,
          .grid_y = 1};
}

}  // namespace quern::spec
