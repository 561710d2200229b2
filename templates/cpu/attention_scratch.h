#pragma once

// How a worker's scratch is laid out for attention: shared by the kernel and by cpu::scratch_bytes.

#include "templates/cpu/kv_layout.h"
#include "templates/spec/attention.h"

namespace quern::cpu {

/// Query rows that a worker treats together: rows of one KV head, tokens times heads of its group.
inline constexpr unsigned attention_tile_rows = 48;

/// Offsets in bytes, each a multiple of 64.
struct AttentionScratch {
  unsigned group = 0;         ///< Query heads of a KV head.
  unsigned tile_tokens = 0;   ///< Tokens of a tile.
  unsigned rows = 0;          ///< tile_tokens * group
  unsigned out_width = 0;     ///< Floats of an output row: value_dim padded as the cache pads it.
  unsigned long query = 0;    ///< [rows][head_dim]
  unsigned long scores = 0;   ///< [rows][block_keys]
  unsigned long keys = 0;     ///< A block of K in f32.
  unsigned long values = 0;   ///< A block of V in f32.
  unsigned long folded = 0;   ///< SoftmaxState of the rows: segments folded so far.
  unsigned long segment = 0;  ///< The same of the current segment.
  unsigned long shared =
      0;  ///< Worker 0's: n_head rows, for one token whose segments are shared out.
  unsigned long bytes = 0;
};

/// A running softmax of `rows` rows: maximum, 16 partial sums, unnormalised output.
constexpr unsigned long softmax_state_bytes(unsigned rows, unsigned out_width) {
  const unsigned long padded = (rows + 15ul) / 16 * 16;
  return padded * 4 + rows * 64ul + static_cast<unsigned long>(rows) * out_width * 4;
}

constexpr AttentionScratch attention_scratch(const spec::AttentionSpec& s) {
  AttentionScratch a;
  a.group = s.n_head / s.n_head_kv;
  a.tile_tokens = a.group >= attention_tile_rows ? 1 : attention_tile_rows / a.group;
  a.rows = a.tile_tokens * a.group;
  a.out_width = kv_padded_dim(s.kv, s.value_dim);
  const unsigned key_width = kv_padded_dim(s.kv, s.head_dim);
  unsigned long at = 0;
  const auto place = [&at](unsigned long size) {
    const unsigned long offset = at;
    at += (size + 63) / 64 * 64;
    return offset;
  };
  a.query = place(4ul * a.rows * s.head_dim);
  a.scores = place(4ul * a.rows * s.block_keys);
  a.keys = place(4ul * s.block_keys * key_width);
  a.values = place(4ul * s.block_keys * a.out_width);
  a.folded = place(softmax_state_bytes(a.rows, a.out_width));
  a.segment = place(softmax_state_bytes(a.rows, a.out_width));
  a.shared = place(softmax_state_bytes(s.n_head, a.out_width));
  a.bytes = at;
  return a;
}

}  // namespace quern::cpu
