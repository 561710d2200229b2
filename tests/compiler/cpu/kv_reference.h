#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "models/quant/quant_type.h"
#include "templates/cpu/kv_layout.h"
#include "templates/spec/types.h"
#include "tests/compiler/cpu/launch.h"

namespace quern::cpu {

/// A K or V cache of one layer in plain scalar code, written from the description in kv_layout.h.
class KvReference {
 public:
  KvReference(spec::KvType type, bool key, uint32_t n_head_kv, uint32_t dim, uint32_t capacity)
      : type_(type),
        key_(key),
        dim_(dim),
        capacity_(capacity),
        bytes_(kv_bytes(type, n_head_kv, dim, capacity)) {
    // Garbage (NaN in every float type) wherever nothing is stored.
    std::memset(bytes_.data(), 0xff, bytes_.size());
  }

  void* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }

  /// Stores `dim` values of one head at one position as the type rounds them.
  void store(uint32_t head, uint32_t position, const float* x) {
    for (uint32_t begin = 0; begin < dim_; begin += kv_quant_values) {
      const uint32_t end = std::min(dim_, begin + kv_quant_values);
      float scale = 0;
      for (uint32_t i = begin; i < end; ++i) scale = std::max(scale, std::abs(x[i]));
      const uint16_t d = f32_to_f16(scale / 127.0f);
      if (type_ == spec::KvType::q8_0) write(scale_at(head, position, begin), d);
      const uint32_t stored_end = type_ == spec::KvType::q8_0 ? begin + kv_quant_values : end;
      for (uint32_t i = begin; i < stored_end; ++i) {
        store_value(head, position, i, i < end ? x[i] : 0, f16_to_f32(d));
      }
    }
  }

  float value(uint32_t head, uint32_t position, uint32_t i) const {
    const uint64_t e = element(position, i);
    const std::byte* plane = plane_of(head);
    switch (type_) {
      case spec::KvType::f32:
        return read<float>(plane + e * 4);
      case spec::KvType::f16:
        return f16_to_f32(read<uint16_t>(plane + e * 2));
      case spec::KvType::bf16:
        return bf16_to_f32(read<uint16_t>(plane + e * 2));
      case spec::KvType::q8_0:
        break;
    }
    const float d = f16_to_f32(read<uint16_t>(scale_at(head, position, i)));
    return static_cast<float>(read<int8_t>(plane + e)) * d;
  }

  /// All values of one head, [positions][dim].
  std::vector<float> decode(uint32_t head, uint32_t positions) const {
    std::vector<float> x(size_t{positions} * dim_);
    for (uint32_t p = 0; p < positions; ++p) {
      for (uint32_t i = 0; i < dim_; ++i) x[size_t{p} * dim_ + i] = value(head, p, i);
    }
    return x;
  }

 private:
  std::byte* plane_of(uint32_t head) const {
    return bytes_.data() + head * kv_plane_bytes(type_, dim_, capacity_);
  }
  uint64_t element(uint32_t position, uint64_t i) const {
    const uint64_t padded = kv_padded_dim(type_, dim_);
    return key_ ? (position / 16 * padded + i) * 16 + position % 16 : position * padded + i;
  }
  std::byte* scale_at(uint32_t head, uint32_t position, uint32_t i) const {
    const uint64_t padded = kv_padded_dim(type_, dim_), blocks = padded / 32;
    const uint64_t block =
        key_ ? (position / 16 * blocks + i / 32) * 16 + position % 16 : position * blocks + i / 32;
    return plane_of(head) + padded * capacity_ + block * 2;
  }
  void store_value(uint32_t head, uint32_t position, uint32_t i, float x, float d) {
    std::byte* plane = plane_of(head);
    const uint64_t e = element(position, i);
    switch (type_) {
      case spec::KvType::f32:
        write(plane + e * 4, x);
        break;
      case spec::KvType::f16:
        write(plane + e * 2, f32_to_f16(x));
        break;
      case spec::KvType::bf16:
        write(plane + e * 2, f32_to_bf16(x));
        break;
      case spec::KvType::q8_0: {
        const float q = d > 0 ? std::nearbyint(std::fmin(std::fmax(x / d, -127.0f), 127.0f)) : 0;
        write(plane + e, static_cast<int8_t>(q));
        break;
      }
    }
  }
  template <class T>
  static T read(const std::byte* p) {
    T x;
    std::memcpy(&x, p, sizeof(T));
    return x;
  }
  template <class T>
  static void write(std::byte* p, T x) {
    std::memcpy(p, &x, sizeof(T));
  }

  spec::KvType type_;
  bool key_;
  uint32_t dim_, capacity_;
  Aligned<std::byte> bytes_;
};

inline constexpr spec::KvType all_kv_types[] = {spec::KvType::f32, spec::KvType::f16,
                                                spec::KvType::bf16, spec::KvType::q8_0};

}  // namespace quern::cpu
