#include "models/synth/shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "models/error.h"

namespace quern::synth {
namespace {

constexpr std::array kShapes = std::to_array<Shape>({
    {.name = "llama-3.1-8b",
     .architecture = "llama",
     .layers = 32,
     .width = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .feed_forward = 14336,
     .vocabulary = 128256,
     .rope_base = 5e5F,
     .context = 131072},
    {.name = "qwen3-8b",
     .architecture = "qwen3",
     .layers = 36,
     .width = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .feed_forward = 12288,
     .vocabulary = 151936,
     .rope_base = 1e6F,
     .context = 40960},
    {.name = "olmoe-1b-7b",
     .architecture = "olmoe",
     .layers = 16,
     .width = 2048,
     .heads = 16,
     .kv_heads = 16,
     .head_dim = 128,
     .feed_forward = 1024,
     .vocabulary = 50304,
     .rope_base = 1e4F,
     .context = 65536,
     .experts = 64,
     .experts_used = 8},
    {.name = "qwen3-coder-30b-a3b",
     .architecture = "qwen3moe",
     .layers = 48,
     .width = 2048,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128,
     .feed_forward = 6144,
     .vocabulary = 151936,
     .rope_base = 1e7F,
     .context = 262144,
     .experts = 128,
     .experts_used = 8,
     .expert_feed_forward = 768},
    {.name = "qwen3.5-9b",
     .architecture = "qwen35",
     .layers = 32,
     .width = 4096,
     .heads = 16,
     .kv_heads = 4,
     .head_dim = 256,
     .feed_forward = 12288,
     .vocabulary = 248320,
     .rope_base = 1e7F,
     .context = 262144,
     .rotated = 64,
     .delta = DeltaShape{.key_heads = 16, .value_heads = 32, .head_dim = 128, .convolution = 4}},
    {.name = "qwen3.5-35b-a3b",
     .architecture = "qwen35moe",
     .layers = 40,
     .width = 2048,
     .heads = 16,
     .kv_heads = 2,
     .head_dim = 256,
     .feed_forward = 512,
     .vocabulary = 248320,
     .rope_base = 1e7F,
     .context = 262144,
     .rotated = 64,
     .experts = 256,
     .experts_used = 8,
     .expert_feed_forward = 512,
     .shared_feed_forward = 512,
     .delta = DeltaShape{.key_heads = 16, .value_heads = 32, .head_dim = 128, .convolution = 4}},
    {.name = "llama-long",
     .architecture = "llama",
     .layers = 2,
     .width = 512,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 128,
     .feed_forward = 1024,
     .vocabulary = 2048,
     .rope_base = 5e5F,
     .context = 65536},
    {.name = "qwen3-long",
     .architecture = "qwen3",
     .layers = 2,
     .width = 512,
     .heads = 8,
     .kv_heads = 2,
     .head_dim = 128,
     .feed_forward = 1024,
     .vocabulary = 2048,
     .rope_base = 1e6F,
     .context = 65536},
    {.name = "olmoe-long",
     .architecture = "olmoe",
     .layers = 2,
     .width = 512,
     .heads = 4,
     .kv_heads = 4,
     .head_dim = 128,
     .feed_forward = 256,
     .vocabulary = 2048,
     .rope_base = 1e4F,
     .context = 65536,
     .experts = 16,
     .experts_used = 4},
    {.name = "qwen3moe-long",
     .architecture = "qwen3moe",
     .layers = 2,
     .width = 512,
     .heads = 8,
     .kv_heads = 1,
     .head_dim = 128,
     .feed_forward = 1024,
     .vocabulary = 2048,
     .rope_base = 1e6F,
     .context = 65536,
     .experts = 32,
     .experts_used = 4,
     .expert_feed_forward = 256},
    {.name = "qwen35-long",
     .architecture = "qwen35",
     .layers = 4,
     .width = 512,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 256,
     .feed_forward = 1024,
     .vocabulary = 2048,
     .rope_base = 1e7F,
     .context = 131072,
     .rotated = 64,
     .delta = DeltaShape{.key_heads = 2, .value_heads = 4, .head_dim = 128, .convolution = 4}},
    {.name = "qwen35moe-long",
     .architecture = "qwen35moe",
     .layers = 4,
     .width = 512,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 256,
     .feed_forward = 256,
     .vocabulary = 2048,
     .rope_base = 1e7F,
     .context = 131072,
     .rotated = 64,
     .experts = 16,
     .experts_used = 4,
     .expert_feed_forward = 256,
     .shared_feed_forward = 256,
     .delta = DeltaShape{.key_heads = 2, .value_heads = 4, .head_dim = 128, .convolution = 4}},
    {.name = "qwen3.5-27b",
     .architecture = "qwen35",
     .layers = 64,
     .width = 5120,
     .heads = 24,
     .kv_heads = 4,
     .head_dim = 256,
     .feed_forward = 17408,
     .vocabulary = 248320,
     .rope_base = 1e7F,
     .context = 262144,
     .rotated = 64,
     .delta = DeltaShape{.key_heads = 16, .value_heads = 48, .head_dim = 128, .convolution = 4}},
    {.name = "llama-tiny",
     .architecture = "llama",
     .layers = 2,
     .width = 512,
     .heads = 8,
     .kv_heads = 2,
     .head_dim = 64,
     .feed_forward = 1024,
     .vocabulary = 1024,
     .rope_base = 1e4F,
     .context = 4096},
});

constexpr Mix uniform(std::string_view name, QuantType type) {
  return {name, type, type, type, type, type};
}

// The _k_m mixes give the output and, in half of the layers, attn_v and the down projections more
// bits, as published files do. iq4_xs does the same with q5_k there. mxfp4 is for the experts (or
// the feed-forward of a dense model) alone, the rest is q8_0, as in published files of experts.
constexpr std::array kMixes = std::to_array<Mix>({
    {"q4_k_m", QuantType::q4_k, QuantType::q4_k, QuantType::q4_k, QuantType::q6_k, QuantType::q6_k},
    {"q5_k_m", QuantType::q5_k, QuantType::q5_k, QuantType::q5_k, QuantType::q6_k, QuantType::q6_k},
    uniform("q6_k", QuantType::q6_k),
    uniform("q8_0", QuantType::q8_0),
    uniform("q4_0", QuantType::q4_0),
    {"iq4_xs", QuantType::iq4_xs, QuantType::iq4_xs, QuantType::iq4_xs, QuantType::q5_k,
     QuantType::q6_k},
    {"mxfp4", QuantType::q8_0, QuantType::q8_0, QuantType::mxfp4, QuantType::q8_0, QuantType::q8_0},
    uniform("f16", QuantType::f16),
    uniform("bf16", QuantType::bf16),
});

template <typename Row>
const Row& row_named(std::span<const Row> rows, std::string_view name, std::string_view kind) {
  const auto row = std::ranges::find(rows, name, &Row::name);
  if (row != rows.end()) return *row;
  std::vector<std::string_view> known;
  for (const Row& each : rows) known.push_back(each.name);
  throw Error(ErrorKind::usage, fmt::format("{} \"{}\"", kind, name), "is not known",
              fmt::format("use one of {}", fmt::join(known, ", ")));
}

}  // namespace

std::span<const Shape> shapes() {
  return kShapes;
}

std::span<const Mix> mixes() {
  return kMixes;
}

const Shape& shape_named(std::string_view name) {
  return row_named(shapes(), name, "shape");
}

const Mix& mix_named(std::string_view name) {
  return row_named(mixes(), name, "mix");
}

}  // namespace quern::synth
