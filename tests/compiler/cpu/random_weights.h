#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "models/quant/quant_type.h"
#include "templates/spec/types.h"

namespace quern::cpu {

/// Every type that a weight may have.
inline const std::vector<spec::QuantType>& all_types() {
  using enum spec::QuantType;
  static const std::vector<spec::QuantType> types = {f32,  f16,    bf16,   q4_0, q4_1, q5_0,
                                                     q5_1, q8_0,   q2_k,   q3_k, q4_k, q5_k,
                                                     q6_k, iq4_nl, iq4_xs, mxfp4};
  return types;
}

inline quern::QuantType model_type(spec::QuantType type) {
  return static_cast<quern::QuantType>(static_cast<uint32_t>(type));
}

enum class Scales {
  ordinary,  ///< Weights of about 0.1 to 1.
  extreme,   ///< The whole range of finite scales, subnormal halves included.
};

/// A matrix of random valid blocks.
struct RandomWeights {
  spec::QuantType type;
  uint32_t rows, k;
  std::vector<std::byte> raw;
  std::vector<float> values;  ///< Decoded by the reference, [rows][k].
};

/// Where a block's f16 scales lie (bytes), for the types that have any.
inline std::vector<size_t> scale_offsets(spec::QuantType type) {
  using enum spec::QuantType;
  switch (type) {
    case q4_0:
    case q5_0:
    case q8_0:
    case iq4_nl:
    case iq4_xs:
      return {0};
    case q4_1:
    case q5_1:
    case q4_k:
    case q5_k:
      return {0, 2};
    case q2_k:
      return {80, 82};
    case q3_k:
      return {108};
    case q6_k:
      return {208};
    default:
      return {};
  }
}

inline RandomWeights random_weights(spec::QuantType type, uint32_t rows, uint32_t k, uint64_t seed,
                                    Scales scales = Scales::ordinary) {
  const QuantTraits& traits = quant_traits(model_type(type));
  RandomWeights w{.type = type, .rows = rows, .k = k, .raw = {}, .values = {}};
  const size_t row = row_bytes(traits.type, k);
  w.raw.resize(row * rows);
  std::mt19937_64 rng(seed);
  for (std::byte& b : w.raw) b = static_cast<std::byte>(rng());
  const auto put16 = [&](size_t at, uint16_t v) {
    w.raw[at] = static_cast<std::byte>(v & 255);
    w.raw[at + 1] = static_cast<std::byte>(v >> 8);
  };
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (size_t block = 0; block < w.raw.size(); block += traits.block_bytes) {
    for (const size_t at : scale_offsets(type)) {
      uint16_t bits = static_cast<uint16_t>(rng());
      if ((bits & 0x7c00) == 0x7c00) bits &= 0x83ff;
      put16(block + at, scales == Scales::extreme ? bits : f32_to_f16(uniform(rng) * 0.03f));
    }
    const float element = uniform(rng);
    switch (type) {
      case spec::QuantType::mxfp4:
        w.raw[block] =
            static_cast<std::byte>(scales == Scales::extreme ? rng() % 253 : 122 + rng() % 6);
        break;
      case spec::QuantType::f32:
        std::memcpy(&w.raw[block], &element, 4);
        break;
      case spec::QuantType::f16:
        put16(block, f32_to_f16(element));
        break;
      case spec::QuantType::bf16:
        put16(block, f32_to_bf16(element));
        break;
      default:
        break;
    }
  }
  w.values.resize(static_cast<size_t>(rows) * k);
  for (uint32_t r = 0; r < rows; ++r) {
    decode_row(traits.type, w.raw.data() + row * r, w.values.data() + static_cast<size_t>(r) * k,
               k);
  }
  return w;
}

/// Some k that rows of the type may have, smallest first.
inline std::vector<uint32_t> sample_k(spec::QuantType type) {
  const uint32_t block = quant_traits(model_type(type)).block_values;
  if (block == 1) return {1, 7, 33, 100, 264};
  if (block == 32) return {32, 96, 320};
  return {256, 768};
}

inline std::vector<float> random_floats(size_t count, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::uniform_real_distribution<float> uniform(-2, 2);
  std::vector<float> v(count);
  for (float& f : v) f = uniform(rng);
  return v;
}

}  // namespace quern::cpu
