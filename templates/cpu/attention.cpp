#include "templates/spec/attention.h"

#include "templates/cpu/attention_block.h"
#include "templates/cpu/share.h"

// Causal attention over the cache. flash: online softmax inside a segment of keys, blocks
// ascending; segments, each begun afresh, merge by a left fold. wave: the maximum of all scores
// first, then one sum. In both, a row's bits depend on its own keys alone.

namespace quern::cpu {
namespace {

/// Turns the 16 partial sums into one, kept in lane 0.
QUERN_INLINE void collapse(const SoftmaxState& state, u32 rows) {
  for (u32 r = 0; r < rows; ++r) {
    float* sums = state.sums + r * lanes;
    const float total = sum(load_f32(sums));
    store_f32(sums, splat(0.0f));
    sums[0] = total;
  }
}

/// into = into merged with the next segment. A side without keys is an exact identity.
void fold(const SoftmaxState& into, const SoftmaxState& next, u32 rows) {
  for (u32 r = 0; r < rows; ++r) {
    const float a = into.maximum[r], b = next.maximum[r];
    if (b == minus_infinity) continue;
    const bool copy = a == minus_infinity;
    const float maximum = a > b ? a : b;
    const f32x16 keep = splat(copy ? 0.0f : exp(a - maximum));
    const f32x16 take = splat(copy ? 1.0f : exp(b - maximum));
    const auto merge = [&](float* x, const float* y) {
      const f32x16 addend = load_f32(y);
      store_f32(x, copy ? addend : fma(addend, take, load_f32(x) * keep));
    };
    merge(into.sums + r * lanes, next.sums + r * lanes);
    for (u32 i = 0; i < into.out_width; i += lanes) merge(into.out_of(r) + i, next.out_of(r) + i);
    into.maximum[r] = maximum;
  }
}

/// out = O / l, times sigmoid(gate).
void write_out(const KernelArgs* args, const Tile& tile, const SoftmaxState& state) {
  const auto& s = quern_spec;
  for (u32 r = 0; r < tile.rows(); ++r) {
    const u64 token = tile.token + r / tile.group;
    const f32x16 inverse = splat(1.0f / sum(load_f32(state.sums + r * lanes)));
    float* out = buffer<float>(args, 3) + (token * s.n_head + tile.head(r)) * s.value_dim;
    const float* gate = nullptr;
    if (s.gate != 0) {
      gate = buffer<const float>(args, 4) + token * s.gate_row_width + s.gate_offset +
             tile.head(r) * s.value_dim;
    }
    for (u32 i = 0; i < s.value_dim; i += lanes) {
      const u32 n = min_of(lanes, s.value_dim - i);
      f32x16 y = load_f32(state.out_of(r) + i) * inverse;
      if (s.gate != 0) {
        const f32x16 g = load_n(gate + i, n);
        y = y * (mutant(Mutant::gate_raw) ? g : sigmoid(g));
      }
      store_n(out + i, y, n);
    }
  }
}

template <KvType type>
TileContext<type> open_tile(const KernelArgs* args, const AttentionScratch& layout,
                            const Tile& tile) {
  const auto& s = quern_spec;
  char* scratch = static_cast<char*>(args->scratch);
  float* query = reinterpret_cast<float*>(scratch + layout.query);
  for (u32 r = 0; r < tile.rows(); ++r) {
    const float* from = buffer<const float>(args, 0) +
                        static_cast<u64>(tile.token + r / tile.group) * s.q_row_width + s.q_offset +
                        tile.head(r) * s.head_dim;
    for (u32 i = 0; i < s.head_dim; ++i) query[r * s.head_dim + i] = from[i];
  }
  const u32 capacity = args->kv_capacity;
  return {tile,
          {query, s.head_dim},
          {reinterpret_cast<float*>(scratch + layout.scores), s.block_keys},
          {plane_of<type>(args->buffers[1], tile.head_kv, s.head_dim, capacity),
           kv_padded_dim(type, s.head_dim)},
          {plane_of<type>(args->buffers[2], tile.head_kv, s.value_dim, capacity),
           kv_padded_dim(type, s.value_dim)},
          reinterpret_cast<float*>(scratch + layout.keys),
          reinterpret_cast<float*>(scratch + layout.values)};
}

/// Calls body(block) for the blocks of `keys`, ascending; blocks begin at multiples of block_keys.
template <class Body>
QUERN_INLINE void for_blocks(KeyRange keys, Body body) {
  const u32 size = quern_spec.block_keys;
  for (u32 begin = keys.begin / size * size; begin < keys.end; begin += size) {
    body(KeyRange{begin, min_of(begin + size, keys.end)});
  }
}

/// Softmax state of the tile over one segment, from nothing.
template <KvType type>
void attend_segment(const TileContext<type>& context, KeyRange keys, const SoftmaxState& state) {
  clear(state, context.tile.rows());
  for_blocks(keys, [&](KeyRange block) {
    const BlockOperands operands = open_block(context, block);
    score_block(context, block, operands.keys);
    for_row_groups(context.tile, block, [&](const RowGroup& group) {
      for (u32 r = 0; r < group.rows; ++r) {
        if (group.keys[r].empty()) continue;
        softmax_row(state.from_row(group.row + r), context.scores.at(group.row + r, 0).data,
                    group.keys[r]);
      }
      add_values(group.rows, group.keys, context.scores.at(group.row, 0), operands.values,
                 state.from_row(group.row));
    });
  });
  collapse(state, context.tile.rows());
}

QUERN_INLINE KeyRange segment_keys(u32 segment, KeyRange keys) {
  const u32 size = quern_spec.segment_keys;
  return keys.within({segment * size, segment * size + size});
}

QUERN_INLINE SoftmaxState state_at(const KernelArgs* args, unsigned long offset, u32 rows,
                                   u32 out_width) {
  return softmax_state(static_cast<char*>(args->scratch) + offset, rows, out_width);
}

template <KvType type>
void flash_tile(const KernelArgs* args, const AttentionScratch& layout, const Tile& tile) {
  const TileContext<type> context = open_tile<type>(args, layout, tile);
  const SoftmaxState folded = state_at(args, layout.folded, layout.rows, layout.out_width);
  const SoftmaxState next = state_at(args, layout.segment, layout.rows, layout.out_width);
  const KeyRange keys = tile.keys_of(0, tile.rows() - 1);
  const u32 first = keys.begin / quern_spec.segment_keys;
  const u32 end = ceil_div(keys.end, quern_spec.segment_keys);
  attend_segment(context, segment_keys(first, keys), folded);
  for (u32 segment = first + 1; segment < end; ++segment) {
    attend_segment(context, segment_keys(segment, keys), next);
    fold(folded, next, tile.rows());
  }
  write_out(args, tile, folded);
}

/// One token whose segments are shared out: a unit is a segment of a KV head, segments outermost.
/// Each worker folds its segment into worker 0's scratch when all earlier units are folded.
template <KvType type>
void flash_segments(const KernelArgs* args, const AttentionScratch& layout, KeyRange keys) {
  const auto& s = quern_spec;
  char* block = static_cast<char*>(args->scratch) - args->worker * args->scratch_bytes;
  const SoftmaxState shared = softmax_state(block + layout.shared, s.n_head, layout.out_width);
  const SoftmaxState next = state_at(args, layout.segment, layout.rows, layout.out_width);
  const u32 first = keys.begin / s.segment_keys;
  const u32 segments = ceil_div(keys.end, s.segment_keys) - first;
  const u32 units = segments * s.n_head_kv;
  for (u32 unit = claim_counted(args); unit < units; unit = claim_counted(args)) {
    const Tile tile{unit % s.n_head_kv, 0, args->start_position, 1, layout.group};
    const u32 segment = unit / s.n_head_kv;
    const TileContext<type> context = open_tile<type>(args, layout, tile);
    attend_segment(context, segment_keys(first + segment, keys), next);
    wait_finished(args, unit);
    const SoftmaxState folded = shared.from_row(tile.head_kv * layout.group);
    if (segment == 0) clear(folded, tile.rows());
    fold(folded, next, tile.rows());
    if (segment + 1 == segments) write_out(args, tile, folded);
    finish_counted(args);
  }
}

/// Two passes over the keys: the row maxima, then p and p V. Scores are computed twice rather than
/// kept, so that scratch does not grow with the context.
template <KvType type>
void wave_tile(const KernelArgs* args, const AttentionScratch& layout, const Tile& tile) {
  const TileContext<type> context = open_tile<type>(args, layout, tile);
  const SoftmaxState state = state_at(args, layout.folded, layout.rows, layout.out_width);
  const KeyRange keys = tile.keys_of(0, tile.rows() - 1);
  clear(state, tile.rows());
  for (u32 pass = 0; pass < 2; ++pass) {
    for_blocks(keys, [&](KeyRange block) {
      const BlockOperands operands = open_block(context, block);
      score_block(context, block, operands.keys);
      for_row_groups(tile, block, [&](const RowGroup& group) {
        for (u32 r = 0; r < group.rows; ++r) {
          if (group.keys[r].empty()) continue;
          const u32 row = group.row + r;
          float* scores = context.scores.at(row, 0).data;
          const float largest = mask_row(scores, group.keys[r]);
          if (pass == 0) {
            state.maximum[row] = largest > state.maximum[row] ? largest : state.maximum[row];
          } else {
            exponentiate(scores, group.keys[r], state.maximum[row], state.sums + row * lanes);
          }
        }
        if (pass == 0) return;
        add_values(group.rows, group.keys, context.scores.at(group.row, 0), operands.values,
                   state.from_row(group.row));
      });
    });
  }
  write_out(args, tile, state);
}

template <KvType type>
void attend(const KernelArgs* args) {
  const auto& s = quern_spec;
  const AttentionScratch layout = attention_scratch(s);
  const u32 start = mutant(Mutant::base_dropped) ? 0 : args->start_position;
  const bool flash = s.path == spec::AttentionPath::flash;
  if (flash && args->n_tokens == 1) {
    const KeyRange keys = visible_keys(start);
    const u32 segments = ceil_div(keys.end, s.segment_keys) - keys.begin / s.segment_keys;
    if (segments > 1 && static_cast<u64>(segments) * s.n_head_kv < max_counted_units) {
      flash_segments<type>(args, layout, keys);
      return;
    }
  }
  // Later tiles see more keys, so they go first.
  const u32 tiles = ceil_div(args->n_tokens, layout.tile_tokens);
  for (u32 unit = claim(args); unit < tiles * s.n_head_kv; unit = claim(args)) {
    const u32 token = (tiles - 1 - unit / s.n_head_kv) * layout.tile_tokens;
    const Tile tile{unit % s.n_head_kv, token, start + token,
                    min_of(layout.tile_tokens, args->n_tokens - token), layout.group};
    if (flash) {
      flash_tile<type>(args, layout, tile);
    } else {
      wave_tile<type>(args, layout, tile);
    }
  }
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  switch (quern_spec.kv) {
    case KvType::f32:
      attend<KvType::f32>(args);
      break;
    case KvType::f16:
      attend<KvType::f16>(args);
      break;
    case KvType::bf16:
      attend<KvType::bf16>(args);
      break;
    case KvType::q8_0:
      attend<KvType::q8_0>(args);
      break;
  }
}
