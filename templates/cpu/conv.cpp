#include "templates/cpu/mutants.h"
#include "templates/cpu/share.h"
#include "templates/spec/gdn.h"

// Depthwise causal convolution, then SiLU; the state is the last kernel - 1 raw inputs. A unit is a
// slice of channels over all tokens.

extern "C" const quern::spec::ConvSpec quern_spec;

namespace quern::cpu {
namespace {

constexpr u32 tap_values = 4096;  ///< Floats on the stack for a slice's taps.

/// Channels of a slice: a multiple of 16.
QUERN_INLINE u32 slice_channels() {
  return min_of(256, max_of(lanes, tap_values / quern_spec.kernel / lanes * lanes));
}

struct Slice {
  const float* u;  ///< From the slice's first channel, row_width floats a token.
  float* y;        ///< channels floats a token
  float* state;    ///< [kernel - 1][channels]
  u32 n;           ///< Channels in the slice.

  /// The input at `time` tokens after the launch's first (before it: the state).
  QUERN_INLINE const float* input(i32 time) const {
    const i32 past = static_cast<i32>(quern_spec.kernel) - 1;
    return time >= 0 ? u + static_cast<u64>(time) * quern_spec.row_width
                     : state + static_cast<u64>(past + time) * quern_spec.channels;
  }
};

/// taps[tap][channel] of the slice, from [channel][tap].
QUERN_INLINE void load_taps(const float* weight, u32 n, float* taps, u32 stride) {
  for (u32 c = 0; c < stride; ++c) {
    for (u32 tap = 0; tap < quern_spec.kernel; ++tap) {
      taps[tap * stride + c] = c < n ? weight[c * quern_spec.kernel + tap] : 0.0f;
    }
  }
}

void convolve(const Slice& slice, const float* taps, u32 stride, u32 token) {
  const u32 kernel = quern_spec.kernel;
  const i32 oldest = static_cast<i32>(token) - static_cast<i32>(kernel - 1);
  float* y = slice.y + static_cast<u64>(token) * quern_spec.channels;
  for (u32 c = 0; c < slice.n; c += lanes) {
    const u32 n = min_of(lanes, slice.n - c);
    f32x16 sum = load_f32(taps + c) * load_n(slice.input(oldest) + c, n);
    for (u32 tap = 1; tap < kernel; ++tap) {
      const float* in = slice.input(oldest + static_cast<i32>(tap));
      sum = fma(load_f32(taps + tap * stride + c), load_n(in + c, n), sum);
    }
    store_n(y + c, silu(sum), n);
  }
}

/// The newest kernel - 1 inputs, oldest first. Reads stay ahead of writes.
QUERN_INLINE void keep_state(const Slice& slice, u32 n_tokens) {
  const u32 past = quern_spec.kernel - 1;
  for (u32 row = 0; row < past; ++row) {
    const float* from = slice.input(static_cast<i32>(row + n_tokens) - static_cast<i32>(past));
    float* to = slice.state + static_cast<u64>(row) * quern_spec.channels;
    for (u32 c = 0; c < slice.n; c += lanes) {
      const u32 n = min_of(lanes, slice.n - c);
      const f32x16 raw = load_n(from + c, n);
      const bool wrong = mutant(Mutant::conv_state_after_silu) && row + n_tokens >= past;
      store_n(to + c, wrong ? silu(raw) : raw, n);
    }
  }
}

}  // namespace
}  // namespace quern::cpu

extern "C" void quern_kernel(const quern::cpu::KernelArgs* args) {
  using namespace quern::cpu;
  const auto& s = quern_spec;
  alignas(64) float taps[tap_values];
  const u32 stride = slice_channels();
  const u32 slices = ceil_div(s.channels, stride);
  const Range share = fixed_share(args, slices, static_cast<u64>(args->n_tokens) * s.channels * 4);
  for (u32 i = share.begin; i < share.end; ++i) {
    const u32 first = i * stride;
    const Slice slice{buffer<const float>(args, 0) + s.offset + first,
                      buffer<float>(args, 2) + first, buffer<float>(args, 3) + first,
                      min_of(stride, s.channels - first)};
    load_taps(buffer<const float>(args, 1) + static_cast<u64>(first) * s.kernel, slice.n, taps,
              stride);
    for (u32 token = 0; token < args->n_tokens; ++token) convolve(slice, taps, stride, token);
    keep_state(slice, args->n_tokens);
  }
}
