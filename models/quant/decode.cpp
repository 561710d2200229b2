#include "models/quant/decode.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "models/quant/quant_type.h"

namespace quern::decode {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF blocks are read as they lie");

/// A view of one block: reads at byte offsets, never assuming alignment (q6_k blocks are 2-byte
/// aligned, mxfp4 blocks not at all).
class Block {
 public:
  Block(const std::byte* src, size_t bytes, size_t index) : p_(src + bytes * index) {}

  uint32_t u8(size_t at) const { return std::to_integer<uint32_t>(p_[at]); }
  int32_t i8(size_t at) const { return static_cast<int8_t>(std::to_integer<uint8_t>(p_[at])); }
  uint32_t u16(size_t at) const { return u8(at) | (u8(at + 1) << 8); }
  uint32_t u32(size_t at) const { return u16(at) | (u16(at + 2) << 16); }
  float half(size_t at) const { return f16_to_f32(static_cast<uint16_t>(u16(at))); }

 private:
  const std::byte* p_;
};

float as_float(uint32_t q) {
  return static_cast<float>(q);
}
float as_float(int32_t q) {
  return static_cast<float>(q);
}

constexpr std::array<int32_t, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
// e2m1 codes, doubled so that they are integers.
constexpr std::array<int32_t, 16> kE2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// The 6-bit scale and minimum of sub-block j (0..7) of q4_k and q5_k; `at` is where the 12 packed
/// bytes start.
struct ScaleMin {
  uint32_t scale;
  uint32_t min;
};
ScaleMin scale_min_k4(const Block& b, size_t at, size_t j) {
  if (j < 4) return {b.u8(at + j) & 63, b.u8(at + j + 4) & 63};
  return {(b.u8(at + j + 4) & 15) | ((b.u8(at + j - 4) >> 6) << 4),
          (b.u8(at + j + 4) >> 4) | ((b.u8(at + j) >> 6) << 4)};
}

}  // namespace

void f32(const std::byte* src, float* dst, size_t blocks) {
  std::memcpy(dst, src, blocks * sizeof(float));
}

void f16(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) dst[i] = Block(src, 2, i).half(0);
}

void bf16(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) {
    dst[i] = bf16_to_f32(static_cast<uint16_t>(Block(src, 2, i).u16(0)));
  }
}

void q4_0(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 32) {
    const Block b(src, 18, i);
    const float d = b.half(0);
    for (size_t j = 0; j < 16; ++j) {
      const uint32_t pair = b.u8(2 + j);
      dst[j] = as_float(static_cast<int32_t>(pair & 15) - 8) * d;
      dst[j + 16] = as_float(static_cast<int32_t>(pair >> 4) - 8) * d;
    }
  }
}

void q4_1(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 32) {
    const Block b(src, 20, i);
    const float d = b.half(0);
    const float m = b.half(2);
    for (size_t j = 0; j < 16; ++j) {
      const uint32_t pair = b.u8(4 + j);
      dst[j] = as_float(pair & 15) * d + m;
      dst[j + 16] = as_float(pair >> 4) * d + m;
    }
  }
}

void q5_0(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 32) {
    const Block b(src, 22, i);
    const float d = b.half(0);
    const uint32_t high = b.u32(2);
    for (size_t j = 0; j < 16; ++j) {
      const uint32_t pair = b.u8(6 + j);
      const uint32_t low_q = (pair & 15) | (((high >> j) & 1) << 4);
      const uint32_t high_q = (pair >> 4) | (((high >> (j + 16)) & 1) << 4);
      dst[j] = as_float(static_cast<int32_t>(low_q) - 16) * d;
      dst[j + 16] = as_float(static_cast<int32_t>(high_q) - 16) * d;
    }
  }
}

void q5_1(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 32) {
    const Block b(src, 24, i);
    const float d = b.half(0);
    const float m = b.half(2);
    const uint32_t high = b.u32(4);
    for (size_t j = 0; j < 16; ++j) {
      const uint32_t pair = b.u8(8 + j);
      dst[j] = as_float((pair & 15) | (((high >> j) & 1) << 4)) * d + m;
      dst[j + 16] = as_float((pair >> 4) | (((high >> (j + 16)) & 1) << 4)) * d + m;
    }
  }
}

void q8_0(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 32) {
    const Block b(src, 34, i);
    const float d = b.half(0);
    for (size_t j = 0; j < 32; ++j) dst[j] = as_float(b.i8(2 + j)) * d;
  }
}

void q2_k(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 256) {
    const Block b(src, 84, i);  // scales[16], qs[64], d, dmin
    const float d = b.half(80);
    const float dmin = b.half(82);
    for (size_t e = 0; e < 256; ++e) {
      const size_t half = e / 128;
      const size_t group = (e % 128) / 32;
      const uint32_t q = (b.u8(16 + 32 * half + e % 32) >> (2 * group)) & 3;
      const uint32_t packed = b.u8(e / 16);
      dst[e] = d * as_float(packed & 15) * as_float(q) - dmin * as_float(packed >> 4);
    }
  }
}

void q3_k(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 256) {
    const Block b(src, 110, i);  // hmask[32], qs[64], scales[12], d
    const float d = b.half(108);
    std::array<float, 16> scale;
    for (size_t s = 0; s < 16; ++s) {
      const uint32_t low = s < 8 ? b.u8(96 + s) & 15 : b.u8(96 + s - 8) >> 4;
      const uint32_t high = (b.u8(96 + 8 + s % 4) >> (2 * (s / 4))) & 3;
      scale[s] = d * as_float(static_cast<int32_t>(low | (high << 4)) - 32);
    }
    for (size_t e = 0; e < 256; ++e) {
      const size_t group = e / 32;
      const uint32_t low = (b.u8(32 + 32 * (e / 128) + e % 32) >> (2 * (group % 4))) & 3;
      const bool keep = ((b.u8(e % 32) >> group) & 1) != 0;
      dst[e] = scale[e / 16] * as_float(static_cast<int32_t>(low) - (keep ? 0 : 4));
    }
  }
}

void q4_k(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 256) {
    const Block b(src, 144, i);  // d, dmin, scales[12], qs[128]
    const float d = b.half(0);
    const float dmin = b.half(2);
    for (size_t group = 0; group < 8; ++group) {
      const auto [sc, m] = scale_min_k4(b, 4, group);
      const float scale = d * as_float(sc);
      const float min = dmin * as_float(m);
      for (size_t l = 0; l < 32; ++l) {
        const uint32_t pair = b.u8(16 + 32 * (group / 2) + l);
        const uint32_t q = group % 2 == 0 ? pair & 15 : pair >> 4;
        dst[32 * group + l] = scale * as_float(q) - min;
      }
    }
  }
}

void q5_k(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 256) {
    const Block b(src, 176, i);  // d, dmin, scales[12], qh[32], qs[128]
    const float d = b.half(0);
    const float dmin = b.half(2);
    for (size_t group = 0; group < 8; ++group) {
      const auto [sc, m] = scale_min_k4(b, 4, group);
      const float scale = d * as_float(sc);
      const float min = dmin * as_float(m);
      for (size_t l = 0; l < 32; ++l) {
        const uint32_t pair = b.u8(48 + 32 * (group / 2) + l);
        const uint32_t low = group % 2 == 0 ? pair & 15 : pair >> 4;
        const uint32_t high = (b.u8(16 + l) >> group) & 1;
        dst[32 * group + l] = scale * as_float(low | (high << 4)) - min;
      }
    }
  }
}

void q6_k(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 256) {
    const Block b(src, 210, i);  // ql[128], qh[64], scales[16], d
    const float d = b.half(208);
    for (size_t e = 0; e < 256; ++e) {
      const size_t half = e / 128;
      const size_t quarter = (e % 128) / 32;  // Picks the nibble of ql and the bit pair of qh.
      const size_t l = e % 32;
      const uint32_t byte = b.u8(64 * half + 32 * (quarter % 2) + l);
      const uint32_t low = quarter < 2 ? byte & 15 : byte >> 4;
      const uint32_t high = (b.u8(128 + 32 * half + l) >> (2 * quarter)) & 3;
      const int32_t q = static_cast<int32_t>(low | (high << 4)) - 32;
      dst[e] = d * as_float(b.i8(192 + e / 16)) * as_float(q);
    }
  }
}

void iq4_nl(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 32) {
    const Block b(src, 18, i);
    const float d = b.half(0);
    for (size_t j = 0; j < 16; ++j) {
      const uint32_t pair = b.u8(2 + j);
      dst[j] = d * as_float(kIq4[pair & 15]);
      dst[j + 16] = d * as_float(kIq4[pair >> 4]);
    }
  }
}

void iq4_xs(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 256) {
    const Block b(src, 136, i);  // d, scales_h, scales_l[4], qs[128]
    const float d = b.half(0);
    const uint32_t scales_high = b.u16(2);
    for (size_t group = 0; group < 8; ++group) {
      const uint32_t low = (b.u8(4 + group / 2) >> (4 * (group % 2))) & 15;
      const uint32_t high = (scales_high >> (2 * group)) & 3;
      const float scale = d * as_float(static_cast<int32_t>(low | (high << 4)) - 32);
      for (size_t j = 0; j < 16; ++j) {
        const uint32_t pair = b.u8(8 + 16 * group + j);
        dst[32 * group + j] = scale * as_float(kIq4[pair & 15]);
        dst[32 * group + j + 16] = scale * as_float(kIq4[pair >> 4]);
      }
    }
  }
}

void mxfp4(const std::byte* src, float* dst, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i, dst += 32) {
    const Block b(src, 17, i);
    // 2^(e - 128), half of the E8M0 value, since the codes are doubled. Below 2^-126 it is
    // subnormal.
    const uint32_t e = b.u8(0);
    const float scale = std::bit_cast<float>(e < 2 ? 0x200000u << e : (e - 1) << 23);
    for (size_t j = 0; j < 16; ++j) {
      const uint32_t pair = b.u8(1 + j);
      dst[j] = scale * as_float(kE2m1[pair & 15]);
      dst[j + 16] = scale * as_float(kE2m1[pair >> 4]);
    }
  }
}

}  // namespace quern::decode
