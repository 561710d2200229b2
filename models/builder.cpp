#include "models/builder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "models/error.h"

namespace quern {
namespace {

constexpr Bounds block_bounds = {1, 4096};
constexpr Bounds head_bounds = {1, 1 << 16};
constexpr Bounds head_length_bounds = {1, 1 << 16};
constexpr Bounds width_bounds = {1, 1 << 20};
constexpr Bounds feed_forward_bounds = {1, 1 << 24};
constexpr Bounds expert_bounds = {0, 1 << 16};
constexpr Bounds context_bounds = {1, (uint64_t{1} << 31) - 1};
constexpr Bounds vocabulary_bounds = {1, 1 << 28};

/// N of "blk.N.name"; a number beyond 32 bits counts as the largest.
std::optional<uint32_t> block_of(std::string_view tensor) {
  constexpr std::string_view prefix = "blk.";
  if (!tensor.starts_with(prefix)) return std::nullopt;
  tensor.remove_prefix(prefix.size());
  uint32_t block = 0;
  const auto [end, error] = std::from_chars(tensor.data(), tensor.data() + tensor.size(), block);
  if (end == tensor.data() || end == tensor.data() + tensor.size() || *end != '.') {
    return std::nullopt;
  }
  return error == std::errc{} ? block : ~uint32_t{0};
}

/// Any tensor that holds routed experts, or null.
const gguf::Tensor* expert_tensor(const gguf::File& file) {
  const auto found = std::ranges::find_if(file.tensors(), [](const gguf::Tensor& tensor) {
    return tensor.name.find("_exps.") != std::string::npos;
  });
  return found == file.tensors().end() ? nullptr : &*found;
}

std::vector<uint64_t> without_trailing_ones(std::vector<uint64_t> shape) {
  while (shape.size() > 1 && shape.back() == 1) shape.pop_back();
  return shape;
}

}  // namespace

GraphBuilder::GraphBuilder(const gguf::File& file, std::string architecture)
    : file_(file), keys_(file.metadata(), std::move(architecture)) {
  context_length_ = keys_.size("context_length", context_bounds);
  n_embd_ = keys_.size("embedding_length", width_bounds);
  n_blocks_ = keys_.size("block_count", block_bounds);
  const uint64_t extra =
      keys_.size_or("nextn_predict_layers", {0, ""}, {0, n_blocks_.value - 1}).value;
  eps_ =
      static_cast<float>(keys_.real("attention.layer_norm_rms_epsilon", {.low = 0, .high = 0.1}));
  // A double that is above zero may still vanish as a float.
  if (eps_ <= 0) keys_.refuse("attention.layer_norm_rms_epsilon", "is too small for a float");

  graph_.architecture = keys_.architecture();
  graph_.name = file.metadata().get_string_or("general.name", "");
  graph_.n_layers = static_cast<uint32_t>(n_blocks_.value - extra);
  graph_.embedding_length = n_embd_.u32();
  graph_.context_length = context_length_.u32();
  check_blocks();
  check_vocabulary();
}

void GraphBuilder::check_blocks() const {
  std::vector<bool> seen(n_blocks_.value, false);
  for (const gguf::Tensor& tensor : file_.tensors()) {
    const std::optional<uint32_t> block = block_of(tensor.name);
    if (!block) continue;
    if (*block >= seen.size()) {
      keys_.refuse("block_count",
                   fmt::format("is {} but the file has tensor {}", seen.size(), tensor.name));
    }
    seen[*block] = true;
  }
  const auto missing = std::ranges::find(seen, false);
  if (missing != seen.end()) {
    keys_.refuse("block_count", fmt::format("is {} but the file has no tensors of block {}",
                                            seen.size(), missing - seen.begin()));
  }
  for (uint32_t block = graph_.n_layers; block < n_blocks_.value; ++block) {
    const std::string name = fmt::format("blk.{}.nextn.eh_proj.weight", block);
    if (file_.find(name) == nullptr) {
      keys_.refuse("nextn_predict_layers", fmt::format("is {} but tensor {} is missing",
                                                       n_blocks_.value - graph_.n_layers, name));
    }
  }
}

void GraphBuilder::check_vocabulary() {
  constexpr std::string_view tokens_key = "tokenizer.ggml.tokens";
  const uint64_t tokens = keys_.global_strings(tokens_key);
  if (tokens == 0 || keys_.has("vocab_size")) {
    vocabulary_ = keys_.size("vocab_size", vocabulary_bounds);
  } else {
    vocabulary_ = {tokens, std::string(tokens_key)};
  }
  if (tokens != 0 && tokens != vocabulary_.value) {
    keys_.refuse("vocab_size",
                 fmt::format("is {} but {} has {} entries", vocabulary_.value, tokens_key, tokens));
  }
  graph_.vocabulary = vocabulary_.u32();
}

Heads GraphBuilder::read_heads() const {
  Heads heads;
  heads.n_head = keys_.uniform("attention.head_count", n_blocks_.value, head_bounds);
  heads.n_head_kv =
      keys_.uniform_or("attention.head_count_kv", n_blocks_.value, heads.n_head, head_bounds);
  if (heads.n_head.value % heads.n_head_kv.value != 0) {
    keys_.refuse("attention.head_count_kv",
                 fmt::format("is {}, which does not divide {} {}", heads.n_head_kv.value,
                             heads.n_head.origin, heads.n_head.value));
  }
  const bool lengths_given =
      keys_.has("attention.key_length") && keys_.has("attention.value_length");
  if (!lengths_given && n_embd_.value % heads.n_head.value != 0) {
    keys_.refuse("attention.head_count",
                 fmt::format("is {}, which does not divide {} {}", heads.n_head.value,
                             n_embd_.origin, n_embd_.value));
  }
  const Size even_split = {n_embd_.value / heads.n_head.value,
                           fmt::format("({} / {})", n_embd_.origin, heads.n_head.origin)};
  heads.key_length = keys_.size_or("attention.key_length", even_split, head_length_bounds);
  heads.value_length = keys_.size_or("attention.value_length", even_split, head_length_bounds);
  return heads;
}

uint32_t GraphBuilder::read_rotary_dimensions(const Heads& heads, bool partial) const {
  constexpr std::string_view key = "rope.dimension_count";
  const Size& head = heads.key_length;
  if (partial && !keys_.has(key)) keys_.refuse(key, "is missing");
  const Size n_rot = keys_.size_or(key, head, {2, head_length_bounds.high});
  if (n_rot.value > head.value || (!partial && n_rot.value != head.value)) {
    keys_.refuse(key, fmt::format("is {} where heads are {} wide by {}", n_rot.value, head.value,
                                  head.origin));
  }
  if (n_rot.value % 2 != 0) {
    throw Error(ErrorKind::bad_model, fmt::format("metadata key {}", n_rot.origin),
                fmt::format("gives {} rotary dimensions, an odd number", n_rot.value));
  }
  return n_rot.u32();
}

double GraphBuilder::read_rope_base(std::string_view key) const {
  return keys_.real_or(key, 10000, {.low = 1, .high = 1e12});
}

Size GraphBuilder::read_feed_forward_length() const {
  return keys_.uniform("feed_forward_length", n_blocks_.value, feed_forward_bounds);
}

Experts GraphBuilder::read_experts(ExpertOptions options) const {
  Experts experts;
  experts.n_expert = keys_.size_or("expert_count", {0, keys_.full("expert_count")}, expert_bounds);
  if (!experts.present()) {
    refuse_experts();
    if (options.required) keys_.refuse("expert_count", "is absent or 0");
    return experts;
  }
  if (expert_tensor(file_) == nullptr) {
    keys_.refuse("expert_count", fmt::format("is {} but the file has no tensors of experts",
                                             experts.n_expert.value));
  }
  experts.renormalised = options.renormalised;
  experts.n_used = keys_.uniform("expert_used_count", n_blocks_.value, {1, expert_bounds.high});
  if (experts.n_used.value > experts.n_expert.value) {
    keys_.refuse("expert_used_count", fmt::format("is {}, more than {} {}", experts.n_used.value,
                                                  experts.n_expert.origin, experts.n_expert.value));
  }
  check_routing_keys(options.renormalised);
  if (keys_.has("expert_feed_forward_length")) {
    experts.feed_forward_length =
        keys_.uniform("expert_feed_forward_length", n_blocks_.value, feed_forward_bounds);
    return experts;
  }
  Size& length = experts.feed_forward_length = read_feed_forward_length();
  if (!options.divided) return experts;
  if (length.value % experts.n_used.value != 0) {
    keys_.refuse("expert_used_count",
                 fmt::format("is {}, which does not divide {} {}", experts.n_used.value,
                             length.origin, length.value));
  }
  length = {length.value / experts.n_used.value,
            fmt::format("({} / {})", length.origin, experts.n_used.origin)};
  return experts;
}

void GraphBuilder::check_routing_keys(bool renormalised) const {
  constexpr uint64_t softmax_gate = 1;
  const uint64_t gate = keys_.size_or("expert_gating_func", {softmax_gate, ""}, {0, 255}).value;
  if (gate > softmax_gate) {
    keys_.refuse("expert_gating_func", fmt::format("is {}, which is not supported", gate),
                 "experts are routed by softmax (1) alone");
  }
  if (keys_.flag_or("expert_weights_norm", renormalised) != renormalised) {
    keys_.refuse("expert_weights_norm",
                 fmt::format("is {}, unlike the {} family", !renormalised, keys_.architecture()));
  }
  const double scale =
      keys_.real_or("expert_weights_scale", 1, {.low = 0, .high = 1, .with_low = true});
  if (scale != 0 && scale != 1) {
    keys_.refuse("expert_weights_scale", fmt::format("is {}, which the {} family does not apply",
                                                     scale, keys_.architecture()));
  }
}

void GraphBuilder::refuse_experts() const {
  const uint64_t count = keys_.size_or("expert_count", {0, ""}, expert_bounds).value;
  if (count != 0) {
    keys_.refuse("expert_count",
                 fmt::format("is {}, but {} has no routed experts", count, keys_.architecture()));
  }
  if (const gguf::Tensor* tensor = expert_tensor(file_)) {
    keys_.refuse("expert_count",
                 fmt::format("is absent or 0 but the file has tensor {}", tensor->name));
  }
}

uint32_t GraphBuilder::add_rope(Rope rope) {
  graph_.ropes.push_back(std::move(rope));
  return static_cast<uint32_t>(graph_.ropes.size() - 1);
}

std::vector<float> GraphBuilder::optional_values(const std::string& name, const Size& n) {
  const gguf::Tensor* tensor = find(name);
  if (tensor == nullptr) return {};
  const VectorRef ref = vector(name, {n});
  std::vector<float> values(ref.size);
  std::memcpy(values.data(), tensor->data.data(), values.size() * sizeof(float));
  for (const float value : values) {
    if (!(value > 0 && value < 1e30f)) {
      throw Error(ErrorKind::bad_model, fmt::format("tensor {}", name),
                  fmt::format("holds {} where positive numbers are needed", value));
    }
  }
  return values;
}

void GraphBuilder::begin_layer(uint32_t layer, std::string kind) {
  layer_ = static_cast<int32_t>(layer);
  layer_kind_ = std::move(kind);
}

std::string GraphBuilder::tensor_name(std::string_view name) const {
  return layer_ < 0 ? fmt::format("{}.weight", name)
                    : fmt::format("blk.{}.{}.weight", layer_, name);
}

const gguf::Tensor* GraphBuilder::find(const std::string& name) {
  const gguf::Tensor* tensor = file_.find(name);
  if (tensor != nullptr) used_.insert(name);
  return tensor;
}

const gguf::Tensor& GraphBuilder::need(const std::string& name, const std::vector<Size>& shape) {
  const gguf::Tensor* tensor = find(name);
  if (tensor == nullptr) {
    const std::string why =
        layer_kind_.empty() ? "" : fmt::format(" (layer {} {})", layer_, layer_kind_);
    throw Error(ErrorKind::bad_model, fmt::format("tensor {}", name),
                fmt::format("is missing{}", why));
  }
  check_shape(*tensor, shape);
  return *tensor;
}

void GraphBuilder::check_shape(const gguf::Tensor& tensor, const std::vector<Size>& shape) const {
  std::vector<uint64_t> expected;
  std::vector<std::string_view> origins;
  for (const Size& size : shape) {
    expected.push_back(size.value);
    origins.push_back(size.origin);
  }
  // A file may leave dimensions of one out at the end, or write them.
  if (without_trailing_ones(tensor.shape) == without_trailing_ones(expected)) return;
  throw Error(
      ErrorKind::bad_model, fmt::format("tensor {}", tensor.name),
      fmt::format("has shape [{}] where [{}] is needed, by [{}]", fmt::join(tensor.shape, ", "),
                  fmt::join(expected, ", "), fmt::join(origins, ", ")));
}

WeightSlice GraphBuilder::matrix(const std::string& name, const Size& k, const Size& rows) {
  const gguf::Tensor& tensor = need(name, {k, rows});
  return {.tensor = name,
          .type = tensor.type,
          .k = k.value,
          .rows = rows.value,
          .experts = 1,
          .tensor_rows = rows.value,
          .offset = 0,
          .block = rows.value,
          .stride = rows.value};
}

WeightSlice GraphBuilder::expert_matrix(const std::string& name, const Size& k, const Size& rows,
                                        const Size& n_expert) {
  const gguf::Tensor& tensor = need(name, {k, rows, n_expert});
  return {.tensor = name,
          .type = tensor.type,
          .k = k.value,
          .rows = rows.value,
          .experts = n_expert.value,
          .tensor_rows = rows.value,
          .offset = 0,
          .block = rows.value,
          .stride = rows.value};
}

VectorRef GraphBuilder::vector(const std::string& name, const std::vector<Size>& shape) {
  const gguf::Tensor& tensor = need(name, shape);
  if (tensor.type != QuantType::f32) {
    throw Error(ErrorKind::bad_model, fmt::format("tensor {}", name),
                fmt::format("has type {} where f32 is needed", quant_traits(tensor.type).name));
  }
  return {.tensor = name, .size = tensor.elements(), .offset = 0};
}

VectorRef GraphBuilder::optional_vector(const std::string& name, const Size& n) {
  return file_.find(name) == nullptr ? VectorRef{} : vector(name, {n});
}

void GraphBuilder::account_for_tensors() {
  for (const gguf::Tensor& tensor : file_.tensors()) {
    const std::string_view name = tensor.name;
    if (used_.contains(name)) {
      graph_.parameters += tensor.elements();
      graph_.weight_bytes += tensor.data.size();
      continue;
    }
    const std::optional<uint32_t> block = block_of(name);
    if (block && *block >= graph_.n_layers) continue;  // Blocks that predict further tokens.
    // These would change the result, not merely lie idle.
    const bool changes_the_result =
        name.ends_with(".bias") || name.ends_with(".scale") || name.starts_with("rope_factors_");
    if (changes_the_result) {
      throw Error(ErrorKind::bad_model, fmt::format("tensor {}", name),
                  fmt::format("has no place in the {} family", keys_.architecture()));
    }
    graph_.unused_tensors.emplace_back(name);
  }
  graph_.keys_read = keys_.asked();
  graph_.fingerprint = file_.fingerprint();
}

}  // namespace quern
