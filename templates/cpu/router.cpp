#include "templates/cpu/decode_types.h"
#include "templates/cpu/gemm_sweep.h"
#include "templates/cpu/mutants.h"
#include "templates/cpu/router_scratch.h"
#include "templates/cpu/share.h"
#include "templates/spec/moe.h"

// Routing: logits by the GEMV loop of the projections (one chain over k an expert), softmax over
// all experts, the largest n_used.

extern "C" const quern::spec::RouterSpec quern_spec;

namespace quern::cpu {
namespace {

constexpr u32 unit_tokens = 4;
constexpr u32 unit_cells = 2;

QUERN_INLINE float* logits_of(const KernelArgs* args, u32 token) {
  return buffer<float>(args, 4) + static_cast<u64>(token) * quern_spec.n_expert;
}

/// Logits of M tokens for N cells of experts.
template <QuantType T, u32 M, u32 N>
QUERN_INLINE void logits_tile(const KernelArgs* args, u32 token, u32 cell) {
  const auto& s = quern_spec;
  const float* x[M];
  for (u32 m = 0; m < M; ++m) {
    x[m] = buffer<const float>(args, 0) + static_cast<u64>(token + m) * s.k;
  }
  const u64 bytes = cell_format(T).cell_bytes(s.k);
  alignas(64) float sums[M][N * lanes];
  gemv<T, M, N>({buffer<const u8>(args, 1) + cell * bytes, bytes}, x, s.k, sums[0], N * lanes);
  for (u32 m = 0; m < M; ++m) {
    for (u32 n = 0; n < N; ++n) {
      const u32 expert = (cell + n) * lanes;
      store_n(logits_of(args, token + m) + expert, load_f32(sums[m] + n * lanes),
              s.n_expert - expert);
    }
  }
}

template <QuantType T, u32 M>
QUERN_INLINE void logits_of_cells(const KernelArgs* args, u32 token, Range cells) {
  u32 cell = cells.begin;
  for (; cell + unit_cells <= cells.end; cell += unit_cells) {
    logits_tile<T, M, unit_cells>(args, token, cell);
  }
  for (; cell < cells.end; ++cell) logits_tile<T, M, 1>(args, token, cell);
}

/// Logits of the tokens for the cells.
QUERN_INLINE void compute_logits(const KernelArgs* args, Range tokens, Range cells) {
  with_type(quern_spec.type, [&]<QuantType T>() {
    u32 token = tokens.begin;
    for (; token + unit_tokens <= tokens.end; token += unit_tokens) {
      logits_of_cells<T, unit_tokens>(args, token, cells);
    }
    for (; token < tokens.end; ++token) logits_of_cells<T, 1>(args, token, cells);
  });
}

/// p = softmax of the logits over all experts; the sum's lanes are experts mod 16.
void softmax(const float* logits, float* p) {
  const u32 n = quern_spec.n_expert;
  float largest = logits[0];
  for (u32 i = 1; i < n; ++i) largest = logits[i] > largest ? logits[i] : largest;
  f32x16 total = splat(0.0f);
  for (u32 i = 0; i < n; i += lanes) {
    const f32x16 e = exp(load_n(logits + i, n - i) - splat(largest));
    store_n(p + i, e, n - i);
    total = total + load_n(p + i, n - i);
  }
  const f32x16 divisor = splat(sum(total));
  for (u32 i = 0; i < n; i += lanes) store_n(p + i, load_n(p + i, n - i) / divisor, n - i);
}

/// The expert of the largest p that is left, the lowest of equals; takes it. Without a comparable
/// one (NaN) the slot's own number, so that an id is always an expert.
QUERN_INLINE u32 take_largest(float* p, u32 slot, float& weight) {
  u32 best = slot;
  float top = -0.5f;  // Taken ones are -1.
  for (u32 e = 0; e < quern_spec.n_expert; ++e) {
    if (p[e] > top) {
      top = p[e];
      best = e;
    }
  }
  weight = p[best];
  p[best] = -1.0f;
  return best;
}

void route(const KernelArgs* args, u32 token) {
  const auto& s = quern_spec;
  float* p = static_cast<float*>(args->scratch);
  softmax(logits_of(args, token), p);
  auto* ids = buffer<i32>(args, 2) + static_cast<u64>(token) * s.n_used;
  float* weights = buffer<float>(args, 3) + static_cast<u64>(token) * s.n_used;
  float total = 0;
  for (u32 slot = 0; slot < s.n_used; ++slot) {
    ids[slot] = static_cast<i32>(take_largest(p, slot, weights[slot]));
    total = total + weights[slot];
  }
  const float least = 6.103515625e-5f;
  const bool renormalise = s.renormalise != 0 && !mutant(Mutant::no_renormalisation);
  const float divisor = renormalise ? (total > least ? total : least) : 1.0f;
  for (u32 slot = 0; slot < s.n_used; ++slot) {
    weights[slot] = weights[slot] / divisor * s.weights_scale;
  }
}

/// Few tokens: a unit is some cells of experts for all tokens; whoever finishes the last unit
/// routes.
QUERN_INLINE void share_experts(const KernelArgs* args, u32 cells) {
  const u32 units = ceil_div(cells, unit_cells);
  for (u32 unit = claim_counted(args); unit < units; unit = claim_counted(args)) {
    const u32 first = unit * unit_cells;
    compute_logits(args, {0, args->n_tokens}, {first, min_of(first + unit_cells, cells)});
    if (finish_counted(args) + 1 < units) continue;
    for (u32 token = 0; token < args->n_tokens; ++token) route(args, token);
  }
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const u32 cells = ceil_div(quern_spec.n_expert, cell_rows);
  const u32 groups = ceil_div(args->n_tokens, unit_tokens);
  if (groups < args->n_workers) {
    share_experts(args, cells);
    return;
  }
  for (u32 group = claim(args); group < groups; group = claim(args)) {
    const u32 begin = group * unit_tokens;
    const u32 end = min_of(begin + unit_tokens, args->n_tokens);
    compute_logits(args, {begin, end}, {0, cells});
    for (u32 token = begin; token < end; ++token) route(args, token);
  }
}
