#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/compiler/cpu/gemm_case.h"

namespace quern::cpu {
namespace {

using spec::Epilogue;
using spec::QuantType;

/// Experts of one matrix (or gate and up), their packed form, and pairs grouped by expert.
struct ExpertsCase {
  spec::ExpertsSpec spec;
  std::vector<std::vector<RandomWeights>> weights;  ///< [segment][expert]
  std::vector<Aligned<std::byte>> packed;           ///< [segment]
  std::vector<int32_t> ids, offsets, pairs;
  uint32_t tokens = 0;

  ExpertsCase(uint32_t k, Epilogue epilogue, uint32_t n_expert, uint32_t n_used) {
    spec.k = k;
    spec.epilogue = epilogue;
    spec.n_expert = n_expert;
    spec.n_used = n_used;
    const GemmTile tile = choose_gemm_tile(resolve_target("native"), k, epilogue);
    spec.tile_tokens = tile.tile_tokens;
    spec.tile_cells = tile.tile_cells;
    spec.k_block = tile.k_block;
    spec.gemv_max_tokens = tile.gemv_max_tokens;
  }

  void add(QuantType type, uint32_t rows) {
    const auto s = static_cast<uint32_t>(weights.size());
    spec.segments[s] = {type, rows};
    spec.n_segments = s + 1;
    const uint64_t one = packed_bytes(type, rows, spec.k);
    packed.emplace_back(one * spec.n_expert);
    weights.emplace_back();
    for (uint32_t e = 0; e < spec.n_expert; ++e) {
      weights[s].push_back(random_weights(type, rows, spec.k, 100 * s + e));
      const Aligned<std::byte> p = pack(weights[s][e]);
      std::copy_n(p.data(), one, packed[s].data() + one * e);
    }
  }

  /// Sends every token to n_used experts, never to expert 1.
  void route(uint32_t n_tokens, uint64_t seed) {
    tokens = n_tokens;
    std::mt19937_64 rng(seed);
    ids.clear();
    std::vector<int32_t> order;
    for (uint32_t e = 0; e < spec.n_expert; ++e) {
      if (e != 1) order.push_back(static_cast<int32_t>(e));
    }
    for (uint32_t t = 0; t < n_tokens; ++t) {
      std::shuffle(order.begin(), order.end(), rng);
      ids.insert(ids.end(), order.begin(), order.begin() + spec.n_used);
    }
    offsets = {0};
    pairs.clear();
    for (uint32_t e = 0; e < spec.n_expert; ++e) {
      for (size_t p = 0; p < ids.size(); ++p) {
        if (ids[p] == static_cast<int32_t>(e)) pairs.push_back(static_cast<int32_t>(p));
      }
      offsets.push_back(static_cast<int32_t>(pairs.size()));
    }
  }

  uint32_t used_experts() const {
    uint32_t n = 0;
    for (uint32_t e = 0; e < spec.n_expert; ++e) n += offsets[e + 1] > offsets[e] ? 1 : 0;
    return n;
  }

  std::vector<float> run(TestKernel& kernel, std::vector<float> x, uint32_t workers = 1,
                         uint64_t* decoded = nullptr) {
    std::vector<float> y(ids.size() * weights[0][0].rows, NAN);
    std::vector<void*> buffers = {x.data(), y.data(), offsets.data(), pairs.data()};
    for (const auto& p : packed) buffers.push_back(p.data());
    buffers.push_back(decoded);
    kernel.run({.n_tokens = tokens, .params = {decoded != nullptr ? 1u : 0u}}, buffers, workers);
    return y;
  }

  /// Sums of one segment for every pair: naive chains in plain C++.
  std::vector<float> sums(uint32_t s, const std::vector<float>& x) const {
    std::vector<float> y;
    for (size_t p = 0; p < ids.size(); ++p) {
      const RandomWeights& w = weights[s][static_cast<size_t>(ids[p])];
      const float* row = x.data() + (spec.in_per_pair != 0 ? p : p / spec.n_used) * spec.k;
      for (uint32_t r = 0; r < w.rows; ++r) y.push_back(dot_chain(w, r, row));
    }
    return y;
  }
};

TEST(Experts, bits_are_those_of_each_experts_matrix_alone) {
  for (const uint32_t per_pair : {0u, 1u}) {
    ExpertsCase c(96, Epilogue::store, 6, 2);
    c.spec.in_per_pair = per_pair;
    c.add(QuantType::q4_0, 40);
    TestKernel kernel(c.spec);
    for (const uint32_t tokens : {1u, 3u, 40u}) {
      c.route(tokens, tokens);
      const std::vector<float> x = random_floats(c.ids.size() * c.spec.k, 3);
      const std::vector<uint32_t> expected = bits_of(c.sums(0, x));
      EXPECT_EQ(bits_of(c.run(kernel, x)), expected) << tokens << " tokens";
      EXPECT_EQ(bits_of(c.run(kernel, x, 3)), expected) << tokens << " tokens, 3 workers";
    }
  }
}

TEST(Experts, gated_bits_are_those_of_a_gated_gemm_of_the_experts_matrices) {
  ExpertsCase c(256, Epilogue::swiglu, 4, 2);
  c.add(QuantType::q4_k, 72);
  c.add(QuantType::q6_k, 72);
  TestKernel kernel(c.spec);
  GemmCase one{};
  one.spec.k = 256;
  one.spec.epilogue = Epilogue::swiglu;
  one.spec.segments[0] = {QuantType::q4_k, 72};
  one.spec.segments[1] = {QuantType::q6_k, 72};
  one.spec.n_segments = 2;
  TestKernel gemm(one.spec);
  for (const uint32_t tokens : {1u, 2u, 29u}) {
    c.route(tokens, 7);
    const std::vector<float> x = random_floats(tokens * c.spec.k, 4);
    const std::vector<float> y = c.run(kernel, x);
    for (size_t p = 0; p < c.ids.size(); ++p) {
      GemmCase matrix{.spec = one.spec, .weights = {}, .packed = {}, .biases = {{}, {}}};
      for (uint32_t s = 0; s < 2; ++s) {
        matrix.weights.push_back(c.weights[s][static_cast<size_t>(c.ids[p])]);
        matrix.packed.push_back(pack(matrix.weights.back()));
      }
      const auto row = x.begin() + static_cast<ptrdiff_t>(p / c.spec.n_used * c.spec.k);
      const std::vector<float> expected = matrix.run(gemm, {row, row + c.spec.k}, 1);
      const auto got = y.begin() + static_cast<ptrdiff_t>(p * 72);
      ASSERT_EQ(bits_of({got, got + 72}), bits_of(expected)) << "pair " << p;
    }
  }
}

TEST(Experts, each_used_experts_weights_are_decoded_once_a_chunk) {
  ExpertsCase c(512, Epilogue::swiglu, 8, 3);
  c.add(QuantType::q5_0, 80);
  c.add(QuantType::q5_0, 80);
  TestKernel kernel(c.spec);
  for (const uint32_t tokens : {1u, 64u, 200u}) {
    c.route(tokens, 11);
    uint64_t decoded = 0;
    c.run(kernel, random_floats(tokens * c.spec.k, 4), 2, &decoded);
    EXPECT_EQ(decoded, uint64_t{c.used_experts()} * 2 * 80 * c.spec.k) << tokens << " tokens";
  }
}

}  // namespace
}  // namespace quern::cpu
