#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "models/gguf/metadata.h"
#include "models/quant/quant_type.h"

namespace quern::gguf {

/// A tensor to write. `fill` is called once, in order, to produce the bytes piece by piece, so that
/// files larger than memory can be written: it calls its sink as often as it likes.
struct TensorToWrite {
  using Sink = std::function<void(std::span<const std::byte>)>;
  std::string name;
  std::vector<uint64_t> shape;
  QuantType type;
  std::function<void(const Sink&)> fill;
};

/// Writes a GGUF v3 file to a temporary name beside `path` and renames it when complete, so that
/// `path` never holds half a file. Throws Error (`failed`) on any I/O error, and `usage` where a
/// tensor's bytes do not match its shape.
void write_file(const std::filesystem::path& path, const Metadata& metadata,
                const std::vector<TensorToWrite>& tensors);
/// The same bytes into a sink of the caller's, in order; what became of them is the caller's to
/// say.
void write_stream(const TensorToWrite::Sink& sink, const Metadata& metadata,
                  const std::vector<TensorToWrite>& tensors);
/// The same into memory (tests).
std::vector<std::byte> write_image(const Metadata& metadata,
                                   const std::vector<TensorToWrite>& tensors);

}  // namespace quern::gguf
