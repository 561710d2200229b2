// Feeds arbitrary bytes to the GGUF reader. Either they are refused as a bad model, or everything
// that the reader hands out can be used: every byte of every tensor, every decoder, every metadata
// look-up; and what was read survives the writer.

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "models/error.h"
#include "models/gguf/file.h"
#include "models/gguf/writer.h"
#include "tests/fuzz/fuzz.h"

namespace quern::fuzz {
namespace {

using gguf::File;
using gguf::Metadata;
using gguf::Tensor;

/// A look-up either works or says what is wrong with the model.
template <typename Call>
void look_up(Call call) {
  try {
    call();
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::bad_model, "a look-up fails with bad_model alone");
  }
}

void use_metadata(const Metadata& metadata) {
  for (const std::string& key : metadata.keys()) {
    require(metadata.find(key) != nullptr, "every key is found");
    look_up([&] { metadata.get_uint(key); });
    look_up([&] { metadata.get_float(key); });
    look_up([&] { metadata.get_bool(key); });
    look_up([&] { metadata.get_string(key); });
    look_up([&] { metadata.get_ints(key); });
    look_up([&] { metadata.get_floats(key); });
    look_up([&] { metadata.get_strings(key); });
    look_up([&] { metadata.get_bools(key); });
  }
}

void use_tensor(const File& file, const Tensor& tensor) {
  require(file.find(tensor.name) == &tensor, "every tensor is found by its name");
  unsigned sum = 0;
  for (const std::byte byte : tensor.data) sum += std::to_integer<unsigned>(byte);
  volatile unsigned used = sum;
  static_cast<void>(used);
  if (!quant_type_from_id(static_cast<uint32_t>(tensor.type))) return;
  if (tensor.elements() == 0) return;
  const size_t bytes = row_bytes(tensor.type, tensor.row_length());
  require(bytes * tensor.rows() == tensor.data.size(), "rows make up the tensor's bytes");
  std::vector<float> row(tensor.row_length());
  decode_row(tensor.type, tensor.data.data(), row.data(), row.size());
}

std::vector<std::byte> rewrite(const File& file) {
  std::vector<gguf::TensorToWrite> tensors;
  for (const Tensor& tensor : file.tensors()) {
    tensors.push_back({.name = tensor.name,
                       .shape = tensor.shape,
                       .type = tensor.type,
                       .fill = [data = tensor.data](const auto& sink) { sink(data); }});
  }
  return gguf::write_image(file.metadata(), tensors);
}

/// Writing gives a file that reads as the same tensors, and writing that again gives the same
/// bytes.
void round_trip(const File& file) {
  if (file.alignment() > 4096) return;  // The writer's padding alone would be gigabytes.
  const std::vector<std::byte> image = rewrite(file);
  const File again = File::parse(image, "rewritten", gguf::TensorTypes::any);
  require(again.metadata().keys() == file.metadata().keys(), "keys survive the writer");
  require(again.tensors().size() == file.tensors().size(), "tensors survive the writer");
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const Tensor& a = file.tensors()[i];
    const Tensor& b = again.tensors()[i];
    require(a.name == b.name && a.shape == b.shape && a.type == b.type &&
                std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end()),
            "a tensor survives the writer");
  }
  require(rewrite(again) == image, "writing is stable");
}

}  // namespace
}  // namespace quern::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quern;
  const std::span<const std::byte> image = std::as_bytes(std::span(data, size));
  for (const auto types : {gguf::TensorTypes::decodable, gguf::TensorTypes::any}) {
    try {
      const gguf::File file = gguf::File::parse(image, "fuzzed", types);
      fuzz::use_metadata(file.metadata());
      for (const gguf::Tensor& tensor : file.tensors()) fuzz::use_tensor(file, tensor);
      fuzz::require(file.fingerprint().size() == 64, "a fingerprint has 64 digits");
      fuzz::round_trip(file);
    } catch (const Error& error) {
      fuzz::require(error.kind() == ErrorKind::bad_model, "a refusal is a bad_model");
    }
  }
  return 0;
}
