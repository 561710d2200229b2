#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/file.h"
#include "models/gguf/metadata.h"
#include "models/graph.h"

namespace quern::test {

/// A model file taken apart, so that a test can change what it says and put it together again.
struct EditedModel {
  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;
    QuantType type = QuantType::f32;
    std::vector<std::byte> data;
  };

  gguf::Metadata metadata;
  std::vector<Tensor> tensors;

  /// Takes tests' fixture "qwen3" or "variants/qwen3-fused-qkv" apart.
  static EditedModel from(const std::filesystem::path& path);

  std::string architecture() const { return metadata.get_string("general.architecture"); }
  /// "rope.freq_base" -> "llama.rope.freq_base"; keys of `general` and `tokenizer` stay.
  std::string full_key(std::string_view key) const;
  /// Sets or, with `erase_key`, drops a key of the architecture.
  void set(std::string_view key, gguf::Value value);
  void erase_key(std::string_view key);

  Tensor& tensor(std::string_view name);
  void erase_tensor(std::string_view name);
  /// Adds a tensor of zeros.
  void add_zeros(std::string name, std::vector<uint64_t> shape, QuantType type = QuantType::f32);
  /// Replaces tensors by one that holds their rows, one after the other, expert by expert.
  void concatenate(const std::vector<std::string>& parts, const std::string& whole);

  std::vector<std::byte> image() const;
  /// The graph of the file. Throws as build_graph does.
  ModelGraph graph() const;
  /// The graph's logits by the reference interpreter.
  std::vector<std::vector<double>> logits(const std::vector<int32_t>& tokens) const;
};

gguf::Value u32(uint64_t value);
gguf::Value f32(double value);
gguf::Value text(std::string value);
gguf::Value flag(bool value);
gguf::Value ints(std::vector<int64_t> values);
gguf::Value flags(std::vector<uint8_t> values);
gguf::Value texts(std::vector<std::string> values);

}  // namespace quern::test
