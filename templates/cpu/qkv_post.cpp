#include "templates/spec/qkv_post.h"

#include "templates/cpu/kv_cache.h"
#include "templates/cpu/mutants.h"
#include "templates/cpu/share.h"

// QK-norm, RoPE and the cache's new rows. A unit is the tokens of one 16-position group of the
// cache, so that no two workers write to a cache line of K.

extern "C" const quern::spec::QkvPostSpec quern_spec;

namespace quern::cpu {
namespace {

using spec::QkNorm;
using spec::RopePairing;

/// RMSNorm of `width` values in place; the weight repeats every `width`.
QUERN_INLINE void normalise(float* x, u32 width, const float* weight) {
  const f32x16 scale = splat(rms_scale(x, width, quern_spec.eps));
  for (u32 i = 0; i < width; i += lanes) {
    const u32 n = min_of(lanes, width - i);
    store_n(x + i, (load_n(x + i, n) * scale) * load_n(weight + i, n), n);
  }
}

QUERN_INLINE void norm_heads(float* heads, u32 n_head, const float* weight) {
  const u32 dim = quern_spec.head_dim;
  const bool full = quern_spec.qk_norm == QkNorm::full_width;
  if (full && !mutant(Mutant::qk_norm_per_head)) {
    normalise(heads, n_head * dim, weight);
    return;
  }
  for (u32 h = 0; h < n_head; ++h) normalise(heads + h * dim, dim, weight + (full ? h * dim : 0));
}

/// Rotates pair i, (a, b), by the table's angle i.
QUERN_INLINE void rotate(float& a, float& b, const float* cos_sin) {
  const float c = cos_sin[0], s = cos_sin[1];
  const float x = a, y = b;
  a = fma(x, c, -(y * s));
  b = fma(x, s, y * c);
}

QUERN_INLINE void rope_heads(float* heads, u32 n_head, const float* table) {
  const u32 half = quern_spec.n_rot / 2;
  for (u32 h = 0; h < n_head; ++h) {
    float* x = heads + h * quern_spec.head_dim;
    if (quern_spec.rope == RopePairing::norm) {
      for (u32 i = 0; i < half; ++i) rotate(x[2 * i], x[2 * i + 1], table + 2 * i);
    } else {
      for (u32 i = 0; i < half; ++i) rotate(x[i], x[i + half], table + 2 * i);
    }
  }
}

QUERN_INLINE void norm_and_rope(float* heads, u32 n_head, const float* weight, const float* table) {
  const bool norm = quern_spec.qk_norm != QkNorm::none;
  const bool rope = quern_spec.rope != RopePairing::none && quern_spec.n_rot != 0;
  if (mutant(Mutant::rope_before_norm)) {
    if (rope) rope_heads(heads, n_head, table);
    if (norm) norm_heads(heads, n_head, weight);
    return;
  }
  if (norm) norm_heads(heads, n_head, weight);
  if (rope) rope_heads(heads, n_head, table);
}

template <KvType type>
QUERN_INLINE void append(const KernelArgs* args, const float* row, u32 position) {
  const auto& s = quern_spec;
  for (u32 h = 0; h < s.n_head_kv; ++h) {
    write_position<type, CacheKind::key>(buffer<void>(args, 4), h, position, s.head_dim,
                                         args->kv_capacity, row + s.k_offset + h * s.head_dim);
    write_position<type, CacheKind::value>(buffer<void>(args, 5), h, position, s.value_dim,
                                           args->kv_capacity, row + s.v_offset + h * s.value_dim);
  }
}

void process_token(const KernelArgs* args, u32 token) {
  const auto& s = quern_spec;
  float* row = buffer<float>(args, 0) + static_cast<u64>(token) * s.row_width;
  const float* table = nullptr;
  if (s.rope != RopePairing::none) {
    table = buffer<const float>(args, 1) + static_cast<u64>(token) * (s.n_rot / 2) * 2;
  }
  norm_and_rope(row + s.q_offset, s.n_head, buffer<const float>(args, 2), table);
  norm_and_rope(row + s.k_offset, s.n_head_kv, buffer<const float>(args, 3), table);
  const u32 position = token + (mutant(Mutant::base_dropped) ? 0 : args->start_position);
  switch (s.kv) {
    case KvType::f32:
      append<KvType::f32>(args, row, position);
      break;
    case KvType::f16:
      append<KvType::f16>(args, row, position);
      break;
    case KvType::bf16:
      append<KvType::bf16>(args, row, position);
      break;
    case KvType::q8_0:
      append<KvType::q8_0>(args, row, position);
      break;
  }
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const u32 first = args->start_position / kv_group_keys;
  const u32 last = (args->start_position + args->n_tokens + kv_group_keys - 1) / kv_group_keys;
  const u64 values = static_cast<u64>(args->n_tokens) * quern_spec.row_width;
  const Range share = fixed_share(args, last - first, values);
  for (u32 unit = share.begin; unit < share.end; ++unit) {
    const u32 begin = max_of((first + unit) * kv_group_keys, args->start_position);
    const u32 end =
        min_of((first + unit + 1) * kv_group_keys, args->start_position + args->n_tokens);
    for (u32 p = begin; p < end; ++p) process_token(args, p - args->start_position);
  }
}
