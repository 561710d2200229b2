#include "templates/cpu/delta_scratch.h"
#include "templates/cpu/mutants.h"
#include "templates/cpu/share.h"
#include "templates/spec/gdn.h"

// Gated delta rule, token by token. A unit is some columns (v dims) of one V head's state, carried
// in scratch through all tokens of the launch; columns do not depend on each other. Sums over k run
// as four chains, k mod 4, added as (0 + 1) + (2 + 3).

extern "C" const quern::spec::DeltaSpec quern_spec;

namespace quern::cpu {
namespace {

using spec::HeadMap;

constexpr u32 vectors = delta_columns / lanes;
constexpr u32 chains = 4;

/// K head of a V head.
QUERN_INLINE u32 k_head_of(u32 head) {
  const bool tiled = (quern_spec.head_map == HeadMap::tiled) != mutant(Mutant::head_map_swapped);
  return tiled ? head % quern_spec.n_k_heads : head / (quern_spec.n_v_heads / quern_spec.n_k_heads);
}

/// Decay and write strength of up to 16 tokens of a head.
struct Gates {
  alignas(64) float decay[lanes];
  alignas(64) float beta[lanes];
};

QUERN_INLINE void load_gates(const KernelArgs* args, u32 head, u32 token, u32 n, Gates& gates) {
  const auto& s = quern_spec;
  const float* rows = buffer<const float>(args, 1) + static_cast<u64>(token) * s.ab_row_width;
  f32x16 a = splat(0.0f), b = splat(0.0f);
  for (u32 t = 0; t < n; ++t) {
    a[t] = rows[t * s.ab_row_width + s.a_offset + head];
    b[t] = rows[t * s.ab_row_width + s.b_offset + head];
  }
  const float rate = buffer<const float>(args, 2)[head];
  const float bias = buffer<const float>(args, 3)[head];
  store_f32(gates.decay, exp(splat(rate) * softplus(a + splat(bias))));
  store_f32(gates.beta, sigmoid(b));
}

/// out = x / sqrt(sum x^2 + eps)
QUERN_INLINE void l2_normalise(const float* x, float* out) {
  const u32 dim = quern_spec.dim;
  const f32x16 scale = splat(1.0f / square_root(dot(x, x, dim) + quern_spec.eps));
  for (u32 i = 0; i < dim; i += lanes) {
    store_f32(out + i, load_n(x + i, dim - i) * scale);
  }
}

struct Sums {
  f32x16 part[chains][vectors];

  QUERN_INLINE f32x16 total(u32 c) const {
    return (part[0][c] + part[1][c]) + (part[2][c] + part[3][c]);
  }
};

/// Calls body(k, chain) for k ascending, four at a time where they last.
template <class Body>
QUERN_INLINE void for_dims(Body body) {
  const u32 dim = quern_spec.dim;
  u32 k = 0;
  for (; k + chains <= dim; k += chains) {
#pragma clang loop unroll(full)
    for (u32 j = 0; j < chains; ++j) body(k + j, j);
  }
  for (u32 j = 0; k + j < dim; ++j) body(k + j, j);
}

/// One token: S *= decay; p = S^T k; d = (v - p) beta; S += k d^T; o = S^T q / sqrt(dim). `state`
/// is [dim][delta_columns].
QUERN_INLINE void step(float* state, const float* k, const float* q, float decay, float beta,
                       const f32x16* v, f32x16* o) {
  const bool late = mutant(Mutant::decay_after_update);
  const f32x16 before = splat(late ? 1.0f : decay);
  Sums p = {};
  for_dims([&](u32 i, u32 chain) {
    const f32x16 key = splat(k[i]);
#pragma clang loop unroll(full)
    for (u32 c = 0; c < vectors; ++c) {
      float* at = state + i * delta_columns + c * lanes;
      const f32x16 decayed = load_f32(at) * before;
      store_f32(at, decayed);
      p.part[chain][c] = fma(decayed, key, p.part[chain][c]);
    }
  });
  f32x16 d[vectors];
#pragma clang loop unroll(full)
  for (u32 c = 0; c < vectors; ++c) d[c] = (v[c] - p.total(c)) * splat(beta);
  Sums out = {};
  for_dims([&](u32 i, u32 chain) {
    const f32x16 key = splat(k[i]), query = splat(q[i]);
#pragma clang loop unroll(full)
    for (u32 c = 0; c < vectors; ++c) {
      float* at = state + i * delta_columns + c * lanes;
      f32x16 updated = fma(key, d[c], load_f32(at));
      if (late) updated = updated * splat(decay);
      store_f32(at, updated);
      out.part[chain][c] = fma(updated, query, out.part[chain][c]);
    }
  });
  const f32x16 scale = splat(1.0f / square_root(static_cast<float>(quern_spec.dim)));
#pragma clang loop unroll(full)
  for (u32 c = 0; c < vectors; ++c) o[c] = out.total(c) * scale;
}

/// Lanes of vector c that lie inside the state's `columns`.
QUERN_INLINE u32 lanes_of(u32 columns, u32 c) {
  return columns > c * lanes ? min_of(lanes, columns - c * lanes) : 0;
}

/// Copies the slice's columns between the state (rows of dim floats) and scratch.
QUERN_INLINE void load_state(const float* from, u32 columns, float* state) {
  for (u32 i = 0; i < quern_spec.dim; ++i) {
    for (u32 c = 0; c < vectors; ++c) {
      store_f32(state + i * delta_columns + c * lanes,
                load_n(from + i * quern_spec.dim + c * lanes, lanes_of(columns, c)));
    }
  }
}

QUERN_INLINE void save_state(const float* state, u32 columns, float* to) {
  for (u32 i = 0; i < quern_spec.dim; ++i) {
    for (u32 c = 0; c < vectors; ++c) {
      store_n(to + i * quern_spec.dim + c * lanes, load_f32(state + i * delta_columns + c * lanes),
              lanes_of(columns, c));
    }
  }
}

void scan(const KernelArgs* args, u32 head, u32 column) {
  const auto& s = quern_spec;
  float* state = static_cast<float*>(args->scratch);
  float* k = state + s.dim * delta_columns;
  float* q = k + round_up(s.dim, lanes);
  const u32 columns = min_of(delta_columns, s.dim - column);
  float* stored = buffer<float>(args, 5) + static_cast<u64>(head) * s.dim * s.dim + column;
  load_state(stored, columns, state);
  const u32 row = (2 * s.n_k_heads + s.n_v_heads) * s.dim;
  const u32 k_head = k_head_of(head);
  Gates gates;
  for (u32 token = 0; token < args->n_tokens; ++token) {
    if (token % lanes == 0) {
      load_gates(args, head, token, min_of(lanes, args->n_tokens - token), gates);
    }
    const float* x = buffer<const float>(args, 0) + static_cast<u64>(token) * row;
    l2_normalise(x + k_head * s.dim, q);
    l2_normalise(x + (s.n_k_heads + k_head) * s.dim, k);
    const float* value = x + (2 * s.n_k_heads + head) * s.dim + column;
    float* out =
        buffer<float>(args, 4) + (static_cast<u64>(token) * s.n_v_heads + head) * s.dim + column;
    f32x16 v[vectors], o[vectors];
    for (u32 c = 0; c < vectors; ++c) v[c] = load_n(value + c * lanes, lanes_of(columns, c));
    step(state, k, q, gates.decay[token % lanes], gates.beta[token % lanes], v, o);
    for (u32 c = 0; c < vectors; ++c) store_n(out + c * lanes, o[c], lanes_of(columns, c));
  }
  save_state(state, columns, stored);
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const u32 slices = ceil_div(quern_spec.dim, delta_columns);
  const u32 units = quern_spec.n_v_heads * slices;
  for (u32 unit = claim(args); unit < units; unit = claim(args)) {
    scan(args, unit / slices, unit % slices * delta_columns);
  }
}
