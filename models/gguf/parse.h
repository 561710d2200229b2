#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "models/gguf/file.h"
#include "models/gguf/metadata.h"

namespace quern::gguf {

/// What one GGUF image holds; the tensors' bytes point into it.
struct ParsedImage {
  uint32_t version = 0;
  uint64_t alignment = 32;
  Metadata metadata;
  std::vector<Tensor> tensors;
  std::span<const std::byte> header;  ///< Everything up to the end of the tensor table.
};

/// Parses and checks one image; `name` is what errors call it. Throws Error (`bad_model`).
ParsedImage parse_image(std::span<const std::byte> image, std::string_view name,
                        TensorTypes accepted);

}  // namespace quern::gguf
