#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "templates/spec/attention_launch.h"
#include "templates/spec/kv_launch.h"
#include "tests/gpu/support/gpu.h"

namespace quern::test {

/// 8 query heads over 2 KV heads of 128, f16 cache: the shape that most cases vary.
spec::AttentionSpec flash_spec(uint32_t head_dim = 128);
/// The same for the kernel of one token.
spec::AttentionSpec decode_of(spec::AttentionSpec s);
/// f32 attention over an f32 cache.
spec::AttentionSpec wave_spec(uint32_t head_dim = 128);

/// Cheap random numbers, about normal (a sum of uniform ones), standard deviation 1.
class RandomNormal {
 public:
  explicit RandomNormal(uint32_t seed) : state_(seed * 2654435761u + 12345u) {}
  float operator()();

 private:
  uint64_t state_;
};

/// One layer's attention over random q, K and V: a chunk of `tokens` queries from `start` on. The
/// cache holds every position of the chunk (also those a shorter chunk must not see yet); what lies
/// beyond is poison.
class AttentionCase {
 public:
  AttentionCase(const spec::AttentionSpec& spec, uint32_t start, uint32_t tokens);

  /// f16 outputs [tokens][n_head * value_dim], the tokens run in chunks of these sizes, one after
  /// the other. `mutant`: that kernel instead of the spec's. With `scratch_bytes` wave attention
  /// has that much memory for scores.
  std::vector<uint16_t> run(const std::vector<uint32_t>& chunks,
                            const CompiledKernel* mutant = nullptr,
                            uint32_t scratch_bytes = spec::attention_wave_scratch_bytes);
  /// The same, one token a launch of the decode kernel.
  std::vector<uint16_t> run_decode(const CompiledKernel* mutant = nullptr);

  /// Largest error against double precision over the standard deviation of the exact outputs, at up
  /// to `most_tokens` tokens (the first and the last among them); half a unit of the f16 output's
  /// last place is free. 1e30 where an output is no number.
  double error(const std::vector<uint16_t>& out, uint32_t most_tokens = 3) const;
  uint32_t saturated() const { return saturated_count_; }

 private:
  void make_cache(std::vector<std::byte>& bytes, std::vector<float>& values, uint32_t dim,
                  RandomNormal& random) const;
  cuda::KernelArgs args_for(uint32_t first_token, Array<uint16_t>& out,
                            uint32_t operand_rows) const;
  void launch(Kernel& kernel, const cuda::KernelArgs& args, const spec::LaunchShape& shape,
              uint32_t first, uint32_t tokens) const;
  void take(const Array<uint16_t>& operand, uint32_t operand_rows, uint32_t first, uint32_t tokens,
            std::vector<uint16_t>& out);
  void exact(uint32_t token, uint32_t head, std::vector<double>& out) const;

  spec::AttentionSpec s_;
  uint32_t start_, tokens_, capacity_, width_;
  uint32_t saturated_count_ = 0;
  std::vector<float> q_, k_, v_, gate_;
  std::optional<Array<uint16_t>> q16_;
  std::optional<Array<float>> q32_, gate_rows_;
  std::optional<Array<std::byte>> k_cache_, v_cache_;
};

}  // namespace quern::test
