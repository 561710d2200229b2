// Speed of the GPU's kernels at the shapes of Llama-3.1-8B, as JSON lines: projections by tile and
// type, attention by length. Weights of a decode step rotate over more memory than the L2 cache
// holds.

#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "models/quant/quant_type.h"
#include "tests/gpu/support/attention_case.h"
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/weights.h"

namespace quern::test {
namespace {

using spec::AttentionSpec;
using spec::Epilogue;
using spec::GemmSpec;
using spec::QuantType;

struct Tile {
  uint32_t tokens, cells, stages, shared_groups = 0, sharers = 0, turn_slabs = 0;
};
/// A projection: rows of `type`, then rows of `other` (a fused QKV's values).
struct Projection {
  std::string name;
  uint32_t rows, other_rows, k;
  Epilogue epilogue;
};
const Projection projections[] = {{"qkv", 5120, 1024, 4096, Epilogue::store},
                                  {"o", 4096, 0, 4096, Epilogue::residual},
                                  {"gate_up", 28672, 0, 4096, Epilogue::swiglu},
                                  {"down", 4096, 0, 14336, Epilogue::residual}};
constexpr QuantType types[] = {QuantType::q4_k, QuantType::q6_k, QuantType::f16};
constexpr Tile prefill_tiles[] = {{64, 8, 4}, {128, 8, 4}, {256, 8, 3}, {256, 8, 4}};
constexpr Tile decode_tiles[] = {{8, 14, 2},         {8, 4, 3},          {8, 14, 2, 2, 2, 4},
                                 {8, 2, 2, 2, 4, 4}, {8, 2, 2, 2, 4, 8}, {8, 3, 2},
                                 {8, 2, 4},          {8, 3, 2, 3, 4, 4}, {8, 7, 2, 7, 2, 4}};

std::string name_of(QuantType type) {
  return std::string(quant_traits(static_cast<quern::QuantType>(type)).name);
}

GemmSpec gemm_spec(const Projection& p, QuantType type, const Tile& tile) {
  GemmSpec s{.n_segments = p.other_rows == 0 ? 1u : 2u,
             .k = p.k,
             .epilogue = p.epilogue,
             .tile_tokens = tile.tokens,
             .tile_cells = tile.cells,
             .tier = spec::Tier::mma,
             .stages = tile.stages,
             .shared_groups = tile.shared_groups,
             .sharers = tile.sharers,
             .turn_slabs = tile.turn_slabs};
  s.segments[0] = {type, p.rows};
  if (p.other_rows != 0)
    s.segments[1] = {type == QuantType::q4_k ? QuantType::q6_k : type, p.other_rows};
  return s;
}

bool fits(const GemmSpec& s) {
  const spec::LaunchShape shape = launch_shape(s, 1);
  const cuda::TargetTraits& target = cuda::target_for_device(gpu()->compute_capability());
  return shape.shared_bytes <= target.shared_bytes_block && shape.threads <= 1024;
}

/// Packed random rows: 1,024 of them, again and again.
Array<std::byte> random_packed(QuantType type, uint32_t rows, uint32_t k) {
  std::mt19937 random(rows + k);
  const std::vector<std::byte> some = random_weight(type, std::min(rows, 1024u), k, random);
  std::vector<std::byte> raw(row_bytes(static_cast<quern::QuantType>(type), k) * rows);
  for (size_t at = 0; at < raw.size(); at += some.size()) {
    std::memcpy(raw.data() + at, some.data(), std::min(some.size(), raw.size() - at));
  }
  return pack_on_gpu(type, raw, rows, k);
}

std::vector<uint16_t> random_halves(size_t count) {
  RandomNormal random(1);
  std::vector<uint16_t> some(1 << 16), halves(count);
  for (uint16_t& v : some) v = f32_to_f16(random());
  for (size_t i = 0; i < count; ++i) halves[i] = some[(i * 31 + i / 65536) % some.size()];
  return halves;
}

constexpr uint32_t most_tokens = 2048;

/// Times one projection's kernels.
class GemmBench {
 public:
  GemmBench(const Projection& p, QuantType type)
      : p_(p),
        type_(type),
        x_(random_halves(static_cast<size_t>(p.k) * most_tokens)),
        y_(size_t{28672} * most_tokens) {
    const GemmSpec s = gemm_spec(p, type, prefill_tiles[0]);
    for (uint32_t i = 0; i < s.n_segments; ++i) {
      bytes_ +=
          static_cast<double>(row_bytes(static_cast<quern::QuantType>(s.segments[i].type), p.k)) *
          s.segments[i].rows;
    }
    const int copies = std::min(12, static_cast<int>(256e6 / bytes_) + 1);
    for (int copy = 0; copy < copies; ++copy) {
      for (uint32_t i = 0; i < s.n_segments; ++i) {
        weights_.push_back(random_packed(s.segments[i].type, s.segments[i].rows, p.k));
      }
    }
    y_.zero();
  }

  void run(const Tile& tile, uint32_t tokens) {
    const GemmSpec s = gemm_spec(p_, type_, tile);
    if (!fits(s)) return;
    const spec::LaunchShape shape = launch_shape(s, tokens);
    std::vector<cuda::KernelArgs> variants;
    for (size_t first = 0; first < weights_.size(); first += s.n_segments) {
      cuda::KernelArgs args = plain_args();
      args.buffers[0] = x_.pointer();
      args.buffers[1] = y_.pointer();
      args.buffers[2] = y_.pointer();
      for (uint32_t i = 0; i < s.n_segments; ++i)
        args.buffers[3 + i] = weights_[first + i].pointer();
      args.operand_rows = most_tokens;
      args.x_scale = 0.01f;
      variants.push_back(args);
    }
    Kernel kernel(s, shape);
    const double us = kernel.time(
        variants, {.n_tokens = tokens, .start_position = 0, .n_outputs = 0, .reserved = 0},
        shape.grid_x, shape.grid_y);
    const double flops = 2.0 * tokens * (p_.rows + p_.other_rows) * p_.k;
    fmt::print(
        "{{\"kernel\":\"gemm\",\"shape\":\"{}\",\"type\":\"{}\",\"tokens\":{},\"tile_tokens\":{},"
        "\"tile_cells\":{},"
        "\"stages\":{},\"shared_groups\":{},\"sharers\":{},\"turn_slabs\":{},\"us\":{:.1f},"
        "\"tflops\":{:.1f},\"gb_s\":{:.0f}}}\n",
        p_.name, name_of(type_), tokens, tile.tokens, tile.cells, tile.stages, tile.shared_groups,
        tile.sharers, tile.turn_slabs, us, flops / us * 1e-6, bytes_ / us * 1e-3);
    std::fflush(stdout);
  }

 private:
  Projection p_;
  QuantType type_;
  Array<uint16_t> x_;
  Array<float> y_;
  std::vector<Array<std::byte>> weights_;
  double bytes_ = 0;
};

AttentionSpec attention_spec(uint32_t head_dim) {
  AttentionSpec s = flash_spec(head_dim);
  s.n_head = head_dim == 256 ? 16 : 32;
  s.n_head_kv = head_dim == 256 ? 4 : 8;
  s.q_row_width = s.n_head * head_dim;
  return s;
}
AttentionSpec wave_of(AttentionSpec s) {
  s.path = spec::AttentionPath::wave;
  s.kv = spec::KvType::f32;
  return s;
}

void bench_attention(uint32_t head_dim, uint32_t length, bool decode, bool wave) {
  AttentionSpec s = attention_spec(head_dim);
  if (wave) s = wave_of(s);
  s.decode = decode && !wave ? 1 : 0;
  const uint32_t tokens = decode ? 1 : wave ? 512 : length, width = s.n_head * head_dim;
  const size_t cache = size_t{s.n_head_kv} * length * head_dim;
  Array<uint16_t> k(random_halves(wave ? 2 * cache : cache)),
      v(random_halves(wave ? 2 * cache : cache));
  Array<uint16_t> q(random_halves(static_cast<size_t>(tokens) * width * 2)),
      out(static_cast<size_t>(tokens + 8) * width);
  Array<float> scratch(
      std::max<size_t>({static_cast<size_t>(tokens) * width, attention_partial_floats(s, length),
                        static_cast<size_t>(wave ? spec::attention_wave_floats(length) : 0)}));
  Array<uint32_t> counters(std::vector<uint32_t>(s.n_head_kv, 0));
  const spec::LaunchShape shape = wave     ? attention_wave_shape(s, tokens, length)
                                  : decode ? attention_decode_shape(s, length)
                                           : attention_prefill_shape(s, tokens);
  cuda::KernelArgs args = plain_args();
  void* buffers[] = {q.pointer(), k.pointer(),       v.pointer(),       out.pointer(),
                     nullptr,     scratch.pointer(), counters.pointer()};
  std::copy(std::begin(buffers), std::end(buffers), args.buffers);
  args.operand_rows = tokens + 7;
  args.kv_capacity = length;
  Kernel kernel(s, shape);
  const double us = kernel.time(
      {args, args},
      {.n_tokens = tokens, .start_position = length - tokens, .n_outputs = 0, .reserved = 0},
      shape.grid_x, shape.grid_y, 3);
  const double pairs = (length - (tokens - 1) / 2.0) * tokens;
  fmt::print(
      "{{\"kernel\":\"attention\",\"path\":\"{}\",\"head_dim\":{},\"heads\":{},\"kv_heads\":{},"
      "\"tokens\":{},\"length\":{},"
      "\"us\":{:.1f},\"tflops\":{:.1f},\"gb_s\":{:.0f}}}\n",
      wave     ? "wave"
      : decode ? "decode"
               : "prefill",
      head_dim, s.n_head, s.n_head_kv, tokens, length, us, 4 * pairs * width / us * 1e-6,
      2.0 * static_cast<double>(cache) * (wave ? 4 : 2) / us * 1e-3);
  std::fflush(stdout);
}

int bench() {
  if (gpu() == nullptr) {
    fmt::print(stderr, "no GPU: {}\n", cuda::Driver::problem());
    return 1;
  }
  std::vector<spec::AnySpec> specs;
  for (const uint32_t dim : {64u, 128u, 256u}) {
    AttentionSpec s = attention_spec(dim);
    specs.insert(specs.end(), {s, decode_of(s), wave_of(s)});
  }
  for (const QuantType type : types) {
    for (const Projection& p : projections) {
      specs.emplace_back(repack_spec(type, p.k));
      for (const Tile& tile : prefill_tiles) specs.emplace_back(gemm_spec(p, type, tile));
      for (const Tile& tile : decode_tiles) specs.emplace_back(gemm_spec(p, type, tile));
    }
  }
  precompile(specs);
  for (const uint32_t dim : {64u, 128u, 256u}) {
    for (const uint32_t length : {2048u, 8192u, 32768u}) {
      bench_attention(dim, length, false, false);
      bench_attention(dim, length, true, false);
    }
    if (dim == 64) continue;
    bench_attention(dim, 8192, false, true);
    bench_attention(dim, 8192, true, true);
  }
  for (const Projection& p : projections) {
    for (const QuantType type : types) {
      GemmBench bench(p, type);
      for (const Tile& tile : prefill_tiles) bench.run(tile, 512), bench.run(tile, 2048);
      for (const Tile& tile : decode_tiles) bench.run(tile, 1);
      bench.run(decode_tiles[2], 4);
      bench.run(decode_tiles[3], 4);
    }
  }
  return 0;
}

}  // namespace
}  // namespace quern::test

int main() {
  return quern::test::bench();
}
