#include "models/synth/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "models/quant/quant_type.h"

namespace quern::synth {
namespace {

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

/// Uniform bits, as they lie in the tensor from `offset` (a multiple of 8) on.
void fill_bits(uint64_t key, uint64_t offset, std::span<std::byte> out) {
  const uint64_t first = offset / 8;
  const size_t words = out.size() / 8;
  for (size_t i = 0; i < words; ++i) put(out.data() + 8 * i, random_word(key, first + i));
  if (const size_t rest = out.size() % 8; rest > 0) {
    const uint64_t last = random_word(key, first + words);
    std::memcpy(out.data() + 8 * words, &last, rest);
  }
}

/// A value near a normal distribution of standard deviation 1, by exact arithmetic: the sum of four
/// uniform numbers of 16 bits, so that no mathematical library changes a bit.
float bell(uint64_t word) {
  constexpr float deviation = 37837.227F;  // sqrt((2^32 - 1) / 3)
  const auto sum = static_cast<int32_t>((word & 0xffff) + (word >> 16 & 0xffff) +
                                        (word >> 32 & 0xffff) + (word >> 48));
  return static_cast<float>(sum - 131070) / deviation;
}

/// One value a word; `store` writes it.
template <typename T, typename Make>
void fill_values(uint64_t key, uint64_t first, std::span<std::byte> out, Make make) {
  const size_t count = out.size() / sizeof(T);
  for (size_t i = 0; i < count; ++i) {
    put<T>(out.data() + i * sizeof(T), make(random_word(key, first + i)));
  }
}

/// A block's scale: the f16 at `offset` is `factor` times the standard deviation that is wanted.
struct Scale {
  size_t offset;
  float factor;
};

/// The factors are 1 over the standard deviation of a block of uniform bits whose scale is 1. q4_k
/// comes out 1.3 times wider than the rest: the factor of the Python script, whose files these
/// stand in for. The second scale of q4_k and q5_k is of the minima and centres the values.
std::span<const Scale> scales_of(QuantType type) {
  static constexpr Scale q4_0[] = {{0, 1 / 4.6F}};
  static constexpr Scale q8_0[] = {{0, 1 / 74.F}};
  static constexpr Scale q4_k[] = {{0, 1 / 200.F}, {2, 7.5F / 200}};
  static constexpr Scale q5_k[] = {{0, 1 / 527.F}, {2, 15.5F / 527}};
  static constexpr Scale q6_k[] = {{208, 1 / 1332.F}};
  static constexpr Scale iq4_xs[] = {{0, 1 / 1246.F}};
  switch (type) {
    case QuantType::q4_0:
      return q4_0;
    case QuantType::q8_0:
      return q8_0;
    case QuantType::q4_k:
      return q4_k;
    case QuantType::q5_k:
      return q5_k;
    case QuantType::q6_k:
      return q6_k;
    case QuantType::iq4_xs:
      return iq4_xs;
    default:
      return {};
  }
}

/// mxfp4 has powers of two for scales: two neighbours, in the proportion that gives the variance.
class PowerScales {
 public:
  explicit PowerScales(float deviation) {
    constexpr float codes_deviation = 2.926F;  // of the 16 e2m1 codes
    const float wanted = deviation / codes_deviation;
    const int exponent = std::ilogb(wanted);
    low_ = static_cast<uint8_t>(exponent + 127);
    const float excess = wanted / std::ldexp(1.F, exponent);  // 1 … 2
    share_of_high_ = static_cast<uint32_t>((excess * excess - 1) / 3 * 256);
  }
  /// `choice`: a uniform byte.
  std::byte exponent(std::byte choice) const {
    return std::byte(low_ + (std::to_integer<uint32_t>(choice) < share_of_high_ ? 1 : 0));
  }

 private:
  uint8_t low_ = 0;
  uint32_t share_of_high_ = 0;
};

void fill_quantised(const SynthTensor& tensor, uint64_t key, uint64_t first, float deviation,
                    std::span<std::byte> out) {
  const size_t block = quant_traits(tensor.type).block_bytes;
  fill_bits(key, first * block, out);
  for (const Scale& scale : scales_of(tensor.type)) {
    const uint16_t half = f32_to_f16(scale.factor * deviation);
    for (size_t at = scale.offset; at < out.size(); at += block) put(out.data() + at, half);
  }
  if (tensor.type == QuantType::mxfp4) {
    const PowerScales powers(deviation);
    for (size_t at = 0; at < out.size(); at += block) out[at] = powers.exponent(out[at]);
  }
}

}  // namespace

uint64_t tensor_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return random_word(random_word(seed, 0), hash);
}

void fill_blocks(const SynthTensor& tensor, uint64_t key, uint64_t first,
                 std::span<std::byte> out) {
  const float deviation = 1 / std::sqrt(static_cast<float>(tensor.shape[0]));
  if (tensor.values == Values::one) {
    return fill_values<float>(key, first, out, [](uint64_t) { return 1.F; });
  }
  if (tensor.values == Values::decay) {
    return fill_values<float>(key, first, out, [](uint64_t word) {
      return static_cast<float>(-std::exp(3 * (static_cast<double>(word >> 11) * 0x1p-53) - 1));
    });
  }
  switch (tensor.type) {
    case QuantType::f32:
      return fill_values<float>(key, first, out,
                                [=](uint64_t word) { return deviation * bell(word); });
    case QuantType::f16:
      return fill_values<uint16_t>(
          key, first, out, [=](uint64_t word) { return f32_to_f16(deviation * bell(word)); });
    case QuantType::bf16:
      return fill_values<uint16_t>(
          key, first, out, [=](uint64_t word) { return f32_to_bf16(deviation * bell(word)); });
    default:
      return fill_quantised(tensor, key, first, deviation, out);
  }
}

}  // namespace quern::synth
