#pragma once

#include "models/quant/quant_type.h"
#include "tests/gpu/support/gpu.h"

namespace quern::test {

/// Random valid blocks of a type, values of standard deviation about 1 / sqrt(k).
inline std::vector<std::byte> random_weight(spec::QuantType type, uint32_t rows, uint32_t k,
                                            std::mt19937& random) {
  const auto host_type = static_cast<QuantType>(type);
  const QuantTraits& traits = quant_traits(host_type);
  const size_t blocks = static_cast<size_t>(rows) * k / traits.block_values;
  std::vector<std::byte> raw(blocks * traits.block_bytes);
  for (std::byte& b : raw) b = static_cast<std::byte>(random());
  const float s = 1.0f / std::sqrt(static_cast<float>(k));
  std::uniform_real_distribution<float> spread(0.6f, 1.4f);
  std::normal_distribution<float> normal;
  auto put_half = [&](std::byte* at, float v) {
    const uint16_t bits = f32_to_f16(v * spread(random));
    std::memcpy(at, &bits, 2);
  };
  for (size_t b = 0; b < blocks; ++b) {
    std::byte* at = raw.data() + b * traits.block_bytes;
    switch (host_type) {
      case QuantType::f32: {
        const float v = normal(random) * s;
        std::memcpy(at, &v, 4);
        break;
      }
      case QuantType::f16:
        put_half(at, normal(random) * s);
        break;
      case QuantType::bf16: {
        const uint16_t bits = f32_to_bf16(normal(random) * s);
        std::memcpy(at, &bits, 2);
        break;
      }
      case QuantType::q4_0:
        put_half(at, s / 4.6f);
        break;
      case QuantType::q4_1:
        put_half(at, s / 4.6f), put_half(at + 2, -7.5f * s / 4.6f);
        break;
      case QuantType::q5_0:
        put_half(at, s / 9.2f);
        break;
      case QuantType::q5_1:
        put_half(at, s / 9.2f), put_half(at + 2, -15.5f * s / 9.2f);
        break;
      case QuantType::q8_0:
        put_half(at, s / 74);
        break;
      case QuantType::q2_k:
        put_half(at + 80, s / 9), put_half(at + 82, 1.5f * s / 9);
        break;
      case QuantType::q3_k:
        put_half(at + 108, s / 43);
        break;
      case QuantType::q4_k:
        put_half(at, s / 200), put_half(at + 2, 7.5f * s / 200);
        break;
      case QuantType::q5_k:
        put_half(at, s / 400), put_half(at + 2, 15.5f * s / 400);
        break;
      case QuantType::q6_k:
        put_half(at + 208, s / 1332);
        break;
      case QuantType::iq4_nl:
        put_half(at, s / 70);
        break;
      case QuantType::iq4_xs:
        put_half(at, s / 1300);
        break;
      case QuantType::mxfp4:
        at[0] = static_cast<std::byte>(118 + random() % 5);
        break;
    }
  }
  return raw;
}

inline std::vector<float> decode_weight(spec::QuantType type, const std::vector<std::byte>& raw,
                                        uint32_t rows, uint32_t k) {
  const auto host_type = static_cast<QuantType>(type);
  std::vector<float> values(static_cast<size_t>(rows) * k);
  for (uint32_t r = 0; r < rows; ++r) {
    decode_row(host_type, raw.data() + r * row_bytes(host_type, k),
               values.data() + static_cast<size_t>(r) * k, k);
  }
  return values;
}

inline spec::RepackSpec repack_spec(spec::QuantType type, uint32_t k) {
  return {.type = type, .k = k, .tier = spec::Tier::mma};
}

/// Packs rows into GPU cells with the repack kernel. `up`: the other half of a glu, interleaved
/// by 8.
inline Array<std::byte> pack_on_gpu(spec::QuantType type, const std::vector<std::byte>& raw,
                                    uint32_t rows, uint32_t k,
                                    const std::vector<std::byte>* up = nullptr) {
  const spec::QuantType resident = spec::gpu_resident_type(type);
  const uint32_t out_rows = up == nullptr ? rows : 2 * rows, cell_k = spec::gpu_cell_k(resident);
  const uint32_t cells = spec::gpu_row_tiles(out_rows) * 8 * ((k + cell_k - 1) / cell_k);
  Array<std::byte> source(raw), packed(static_cast<size_t>(cells) * spec::gpu_cell_bytes(resident));
  std::optional<Array<std::byte>> second;
  if (up != nullptr) second.emplace(*up);
  packed.poison();
  Kernel kernel(repack_spec(type, k), {.threads = 128});
  cuda::KernelArgs args = plain_args();
  args.buffers[0] = source.pointer();
  args.buffers[1] = packed.pointer();
  args.buffers[2] = second ? second->pointer() : nullptr;
  args.params[0] = args.params[1] = rows;
  kernel.run(args, {.n_tokens = out_rows, .start_position = 0, .n_outputs = 0, .reserved = 0},
             cells, 1);
  return packed;
}

}  // namespace quern::test
