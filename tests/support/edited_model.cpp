#include "tests/support/edited_model.h"

#include <algorithm>
#include <stdexcept>

#include "models/gguf/writer.h"
#include "models/model.h"
#include "tests/support/graph_reference.h"

namespace quern::test {

EditedModel EditedModel::from(const std::filesystem::path& path) {
  const gguf::File file = gguf::File::open(path);
  EditedModel model;
  model.metadata = file.metadata();
  for (const gguf::Tensor& tensor : file.tensors()) {
    model.tensors.push_back({.name = tensor.name,
                             .shape = tensor.shape,
                             .type = tensor.type,
                             .data = {tensor.data.begin(), tensor.data.end()}});
  }
  return model;
}

std::string EditedModel::full_key(std::string_view key) const {
  if (key.starts_with("general.") || key.starts_with("tokenizer.")) return std::string(key);
  return architecture() + "." + std::string(key);
}

void EditedModel::set(std::string_view key, gguf::Value value) {
  metadata.set(full_key(key), std::move(value));
}

void EditedModel::erase_key(std::string_view key) {
  const std::string erased = full_key(key);
  gguf::Metadata kept;
  for (const std::string& name : metadata.keys()) {
    if (name != erased) kept.set(name, *metadata.find(name));
  }
  metadata = std::move(kept);
}

EditedModel::Tensor& EditedModel::tensor(std::string_view name) {
  const auto found = std::ranges::find(tensors, name, &Tensor::name);
  if (found == tensors.end()) throw std::runtime_error("no tensor " + std::string(name));
  return *found;
}

void EditedModel::erase_tensor(std::string_view name) {
  std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
}

void EditedModel::add_zeros(std::string name, std::vector<uint64_t> shape, QuantType type) {
  size_t rows = 1;
  for (size_t i = 1; i < shape.size(); ++i) rows *= shape[i];
  const size_t bytes = rows * row_bytes(type, shape[0]);
  tensors.push_back({.name = std::move(name),
                     .shape = std::move(shape),
                     .type = type,
                     .data = std::vector<std::byte>(bytes)});
}

void EditedModel::concatenate(const std::vector<std::string>& parts, const std::string& whole) {
  Tensor result = tensor(parts.front());
  result.name = whole;
  result.data.clear();
  const size_t experts = result.shape.size() == 3 ? result.shape[2] : 1;
  const size_t rows_at = result.shape.size() == 1 ? 0 : 1;
  result.shape[rows_at] = 0;
  for (const std::string& part : parts) result.shape[rows_at] += tensor(part).shape[rows_at];
  for (size_t e = 0; e < experts; ++e) {
    for (const std::string& part : parts) {
      const std::vector<std::byte>& data = tensor(part).data;
      const size_t bytes = data.size() / experts;
      const auto begin = data.begin() + static_cast<std::ptrdiff_t>(e * bytes);
      result.data.insert(result.data.end(), begin, begin + static_cast<std::ptrdiff_t>(bytes));
    }
  }
  for (const std::string& part : parts) erase_tensor(part);
  tensors.push_back(std::move(result));
}

std::vector<std::byte> EditedModel::image() const {
  std::vector<gguf::TensorToWrite> list;
  for (const Tensor& tensor : tensors) {
    list.push_back({.name = tensor.name,
                    .shape = tensor.shape,
                    .type = tensor.type,
                    .fill = [&tensor](const auto& sink) { sink(tensor.data); }});
  }
  return gguf::write_image(metadata, list);
}

ModelGraph EditedModel::graph() const {
  const std::vector<std::byte> bytes = image();
  return build_graph(gguf::File::parse(bytes, "edited"));
}

std::vector<std::vector<double>> EditedModel::logits(const std::vector<int32_t>& tokens) const {
  const std::vector<std::byte> bytes = image();
  const gguf::File file = gguf::File::parse(bytes, "edited");
  return reference_logits(file, build_graph(file), tokens);
}

namespace {

gguf::Value scalar(gguf::ValueType type, gguf::Value::Storage data) {
  return {.type = type, .element = gguf::ValueType::u32, .data = std::move(data)};
}

gguf::Value array(gguf::ValueType element, gguf::Value::Storage data) {
  return {.type = gguf::ValueType::array, .element = element, .data = std::move(data)};
}

}  // namespace

gguf::Value u32(uint64_t value) {
  const bool narrow = value <= 0xffffffffu;
  return scalar(narrow ? gguf::ValueType::u32 : gguf::ValueType::u64, value);
}
gguf::Value f32(double value) {
  return scalar(gguf::ValueType::f32, value);
}
gguf::Value text(std::string value) {
  return scalar(gguf::ValueType::string, std::move(value));
}
gguf::Value flag(bool value) {
  return scalar(gguf::ValueType::boolean, value);
}
gguf::Value ints(std::vector<int64_t> values) {
  return array(gguf::ValueType::i32, std::move(values));
}
gguf::Value flags(std::vector<uint8_t> values) {
  return array(gguf::ValueType::boolean, std::move(values));
}
gguf::Value texts(std::vector<std::string> values) {
  return array(gguf::ValueType::string, std::move(values));
}

}  // namespace quern::test
