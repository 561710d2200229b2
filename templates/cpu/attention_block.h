#pragma once

// Attention of a tile of query rows (tokens times the heads of one KV head's group) to one block of
// keys.

#include "templates/cpu/abi.h"
#include "templates/cpu/attention_scratch.h"
#include "templates/cpu/attention_tiles.h"
#include "templates/cpu/kv_cache.h"
#include "templates/cpu/mutants.h"

extern "C" const quern::spec::AttentionSpec quern_spec;

namespace quern::cpu {

inline constexpr float minus_infinity = -__builtin_inff();

/// Keys begin <= j < end.
struct KeyRange {
  u32 begin, end;
  QUERN_INLINE bool empty() const { return begin >= end; }
  QUERN_INLINE KeyRange within(KeyRange o) const {
    return {max_of(begin, o.begin), min_of(end, o.end)};
  }
};

/// Keys that the query at a position sees.
QUERN_INLINE KeyRange visible_keys(u32 position) {
  const u32 end = position + (mutant(Mutant::causal_exclusive) ? 0 : 1);
  const u32 window = quern_spec.window + (mutant(Mutant::window_off_by_one) ? 1 : 0);
  return {quern_spec.window != 0 && position + 1 > window ? position + 1 - window : 0, end};
}

/// Query rows that a worker treats together: row r is head r mod group of token r / group.
struct Tile {
  u32 head_kv;
  u32 token;     ///< First token, within the launch.
  u32 position;  ///< Its absolute position.
  u32 tokens;
  u32 group;

  QUERN_INLINE u32 rows() const { return tokens * group; }
  QUERN_INLINE u32 head(u32 row) const { return head_kv * group + row % group; }
  QUERN_INLINE KeyRange keys_of(u32 row) const { return visible_keys(position + row / group); }
  /// Keys that any of the rows sees (the window moves up with the rows).
  QUERN_INLINE KeyRange keys_of(u32 first_row, u32 last_row) const {
    return {keys_of(first_row).begin, keys_of(last_row).end};
  }
};

/// Running softmax of the rows: maximum, 16 partial sums of p (lane = key mod 16), unnormalised
/// output.
struct SoftmaxState {
  float* maximum;
  float* sums;
  float* out;
  u32 out_width;

  QUERN_INLINE float* out_of(u32 row) const { return out + static_cast<u64>(row) * out_width; }
  QUERN_INLINE SoftmaxState from_row(u32 row) const {
    return {maximum + row, sums + row * lanes, out_of(row), out_width};
  }
};

QUERN_INLINE SoftmaxState softmax_state(char* base, u32 rows, u32 out_width) {
  float* maximum = reinterpret_cast<float*>(base);
  float* sums = maximum + round_up(rows, lanes);
  return {maximum, sums, sums + rows * lanes, out_width};
}

inline void clear(const SoftmaxState& state, u32 rows) {
  for (u32 r = 0; r < rows; ++r) {
    state.maximum[r] = minus_infinity;
    store_f32(state.sums + r * lanes, splat(0.0f));
    float* out = state.out_of(r);
    for (u32 i = 0; i < state.out_width; i += lanes) store_f32(out + i, splat(0.0f));
  }
}

/// A worker's view of one tile: operands in scratch and the KV head's planes.
template <KvType type>
struct TileContext {
  Tile tile;
  Strided query;
  Strided scores;
  KeyReader<type> keys;
  ValueReader<type> values;
  float* decoded_keys;
  float* decoded_values;
};

/// K and V of one block in f32; key j of the block is step j of `values`.
struct BlockOperands {
  Vectors keys, values;
};

/// Asks for the next block's bytes while this one is worked on: a page's end stops the hardware.
QUERN_INLINE void prefetch(const void* plane, u64 offset, u64 bytes) {
  const char* p = static_cast<const char*>(plane) + offset;
  for (u64 i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

/// The block's K and V: decoded to scratch, which every row of the tile then reads, or as they lie
/// in an f32 cache.
template <KvType type>
QUERN_INLINE BlockOperands open_block(const TileContext<type>& context, KeyRange block) {
  const u32 group = block.begin / kv_group_keys;
  const u32 key_width = context.keys.padded, value_width = context.values.padded;
  constexpr u64 element = sizeof(*context.keys.plane.values);
  const u64 next = block.begin + quern_spec.block_keys;
  prefetch(context.keys.plane.values, next * key_width * element,
           quern_spec.block_keys * key_width * element);
  prefetch(context.values.plane.values, next * value_width * element,
           quern_spec.block_keys * value_width * element);
  if constexpr (type == KvType::f32) {
    const float* keys = context.keys.plane.values;
    const float* values = context.values.plane.values;
    return {{keys + static_cast<u64>(group) * key_width * lanes, lanes, key_width * lanes},
            {values + static_cast<u64>(block.begin) * value_width, value_width, lanes}};
  } else {
    const u32 groups = ceil_div(block.end - block.begin, kv_group_keys);
    for (u32 g = 0; g < groups; ++g) {
      for (u32 k = 0; k < quern_spec.head_dim; ++k) {
        store_f32(context.decoded_keys + (g * key_width + k) * lanes,
                  context.keys.at(group + g, k));
      }
    }
    const u32 columns = ceil_div(quern_spec.value_dim, lanes);
    for (u32 j = 0; j < block.end - block.begin; ++j) {
      for (u32 c = 0; c < columns; ++c) {
        store_f32(context.decoded_values + j * value_width + c * lanes,
                  context.values.at(block.begin + j, c));
      }
    }
    return {{context.decoded_keys, lanes, key_width * lanes},
            {context.decoded_values, value_width, lanes}};
  }
}

/// scale * s, soft-capped, for the 16 keys from `first` of the block; -inf outside `keys`.
QUERN_INLINE f32x16 masked_scores(const float* scores, u32 first, KeyRange keys) {
  const auto& spec = quern_spec;
  const float scale = mutant(Mutant::scale_off) ? spec.scale * 1.0001f : spec.scale;
  f32x16 s = load_f32(scores + first) * splat(scale);
  if (spec.softcap > 0) s = splat(spec.softcap) * tanh(s * splat(1.0f / spec.softcap));
  if (first >= keys.begin && first + lanes <= keys.end) return s;
  const u32x16 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const u32x16 key = lane + first;
  const i32x16 seen = (key >= u32x16(keys.begin)) & (key < u32x16(keys.end));
  return select(seen, s, splat(minus_infinity));
}

/// Largest score of a row in the block; the masked scores replace the raw ones.
QUERN_INLINE float mask_row(float* scores, KeyRange keys) {
  f32x16 largest = splat(minus_infinity);
  for (u32 j = keys.begin / lanes * lanes; j < keys.end; j += lanes) {
    const f32x16 s = masked_scores(scores, j, keys);
    store_f32(scores + j, s);
    largest = max(largest, s);
  }
  return max(largest);
}

/// p = e^(s - maximum) in place of the scores; the lanes of p are added to the row's sums.
QUERN_INLINE void exponentiate(float* scores, KeyRange keys, float maximum, float* sums) {
  f32x16 total = load_f32(sums);
  for (u32 j = keys.begin / lanes * lanes; j < keys.end; j += lanes) {
    const f32x16 p = exp(load_f32(scores + j) - splat(maximum));
    store_f32(scores + j, p);
    total = total + p;
  }
  store_f32(sums, total);
}

/// Online softmax of one row over the block's keys that it sees (block-relative, not empty).
QUERN_INLINE void softmax_row(const SoftmaxState& row, float* scores, KeyRange keys) {
  const float old = row.maximum[0];
  const float block = mask_row(scores, keys);
  const float maximum = block > old ? block : old;
  if (maximum != old) {
    const f32x16 factor = splat(exp(old - maximum));
    store_f32(row.sums, load_f32(row.sums) * factor);
    for (u32 i = 0; i < row.out_width; i += lanes) {
      store_f32(row.out + i, load_f32(row.out + i) * factor);
    }
    row.maximum[0] = maximum;
  }
  exponentiate(scores, keys, maximum, row.sums);
}

/// Adds p V of `rows` rows, each over its own keys in ascending order. Keys that all rows see go
/// through the wide tile; those at the edges row by row, since a masked key may not even add a zero
/// (-0 + 0 = 0).
inline void add_values(u32 rows, const KeyRange* keys, Strided p, Vectors values,
                       const SoftmaxState& state) {
  const u32 columns = ceil_div(quern_spec.value_dim, lanes);
  const auto add = [&](u32 row, u32 count, KeyRange range) {
    if (range.empty()) return;
    chains<Product::output>(count, p.at(row, range.begin), values.at(range.begin, 0),
                            range.end - range.begin, columns, {state.out_of(row), state.out_width});
  };
  KeyRange shared = keys[0];
  for (u32 r = 1; r < rows; ++r) shared = shared.within(keys[r]);
  shared.end = max_of(shared.begin, shared.end);
  for (u32 r = 0; r < rows; ++r) add(r, 1, {keys[r].begin, min_of(shared.begin, keys[r].end)});
  add(0, rows, shared);
  for (u32 r = 0; r < rows; ++r) add(r, 1, {max_of(shared.end, keys[r].begin), keys[r].end});
}

/// Up to chain_rows rows of a tile and the keys of a block that each sees, relative to the block.
struct RowGroup {
  u32 row, rows;
  KeyRange keys[chain_rows];
};

template <class Body>
QUERN_INLINE void for_row_groups(const Tile& tile, KeyRange block, Body body) {
  for (u32 row = 0; row < tile.rows(); row += chain_rows) {
    RowGroup group{row, min_of(chain_rows, tile.rows() - row), {}};
    if (tile.keys_of(row, row + group.rows - 1).within(block).empty()) continue;
    for (u32 r = 0; r < group.rows; ++r) {
      const KeyRange own = tile.keys_of(row + r).within(block);
      if (!own.empty()) group.keys[r] = {own.begin - block.begin, own.end - block.begin};
    }
    body(group);
  }
}

/// Raw scores q k of every row for the groups of 16 keys that its row group sees.
template <KvType type>
inline void score_block(const TileContext<type>& context, KeyRange block, Vectors keys) {
  for_row_groups(context.tile, block, [&](const RowGroup& group) {
    const KeyRange seen = context.tile.keys_of(group.row, group.row + group.rows - 1).within(block);
    const u32 first = (seen.begin - block.begin) / lanes;
    const u32 end = ceil_div(seen.end - block.begin, lanes);
    chains<Product::scores>(group.rows, context.query.at(group.row, 0), keys.at(0, first),
                            quern_spec.head_dim, end - first,
                            context.scores.at(group.row, first * lanes));
  });
}

}  // namespace quern::cpu
