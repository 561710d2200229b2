#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "tests/compiler/cpu/launch.h"
#include "tests/compiler/cpu/random_weights.h"

namespace quern::cpu {

/// The repack kernel of a type and width, compiled once a program.
inline TestKernel& repack_kernel(spec::QuantType type, uint32_t k) {
  static std::map<std::pair<spec::QuantType, uint32_t>, TestKernel> kernels;
  return kernels.try_emplace({type, k}, spec::RepackSpec{.type = type, .k = k}).first->second;
}

/// Packs a matrix by the repack kernel of its type.
inline Aligned<std::byte> pack(const RandomWeights& w, uint32_t workers = 1) {
  Aligned<std::byte> packed(packed_bytes(w.type, w.rows, w.k));
  repack_kernel(w.type, w.k)
      .run({.n_tokens = w.rows, .params = {0, w.rows, w.rows}},
           {const_cast<std::byte*>(w.raw.data()), packed.data()}, workers);
  return packed;
}

/// sum over k of w[row][k] * x[k]: the chain that every kernel must reproduce.
inline float dot_chain(const RandomWeights& w, uint32_t row, const float* x) {
  float sum = 0;
  for (uint32_t k = 0; k < w.k; ++k) {
    sum = std::fma(w.values[static_cast<size_t>(row) * w.k + k], x[k], sum);
  }
  return sum;
}

/// The matrices of one GEMM with their packed form.
struct GemmCase {
  spec::GemmSpec spec;
  std::vector<RandomWeights> weights;
  std::vector<Aligned<std::byte>> packed;
  std::vector<std::vector<float>> biases;

  void add(spec::QuantType type, uint32_t rows, uint64_t seed, bool bias = false) {
    const uint32_t s = static_cast<uint32_t>(weights.size());
    spec.segments[s] = {type, rows};
    spec.n_segments = s + 1;
    if (bias) spec.bias |= 1u << s;
    weights.push_back(random_weights(type, rows, spec.k, seed));
    packed.push_back(pack(weights.back()));
    biases.push_back(random_floats(bias ? rows : 0, seed + 1));
  }

  bool glu() const {
    return spec.epilogue == spec::Epilogue::swiglu || spec.epilogue == spec::Epilogue::gelu_glu;
  }
  uint32_t out_rows() const {
    if (glu()) return weights[0].rows;
    uint32_t rows = 0;
    for (const RandomWeights& w : weights) rows += w.rows;
    return rows;
  }

  /// What the kernel must give before softcap: naive chains in plain C++ (glu: nothing; see sums).
  std::vector<float> sums(uint32_t s, const std::vector<float>& x, uint32_t tokens) const {
    const RandomWeights& w = weights[s];
    std::vector<float> y;
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t r = 0; r < w.rows; ++r) {
        float v = dot_chain(w, r, x.data() + static_cast<size_t>(t) * w.k);
        if (!biases[s].empty()) v += biases[s][r];
        y.push_back(v);
      }
    }
    return y;
  }

  std::vector<float> run(TestKernel& kernel, std::vector<float> x, uint32_t tokens,
                         std::vector<float> residual = {}, uint32_t workers = 1) const {
    std::vector<float> y(static_cast<size_t>(tokens) * out_rows(), NAN);
    std::vector<void*> buffers = {x.data(), y.data(), residual.empty() ? nullptr : residual.data()};
    for (const auto& p : packed) buffers.push_back(p.data());
    for (const auto& b : biases)
      buffers.push_back(b.empty() ? nullptr : const_cast<float*>(b.data()));
    kernel.run({.n_tokens = tokens}, buffers, workers);
    return y;
  }
};

/// Bits of floats, so that comparisons see signs of zero and NaNs.
inline std::vector<uint32_t> bits_of(const std::vector<float>& v) {
  std::vector<uint32_t> bits(v.size());
  std::memcpy(bits.data(), v.data(), v.size() * sizeof(float));
  return bits;
}

}  // namespace quern::cpu
