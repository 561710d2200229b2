#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/gguf/metadata.h"
#include "models/quant/quant_type.h"

namespace quern::gguf {

/// One tensor of a file: name, shape (first dimension is the row length, as GGUF has it), type and
/// bytes. The bytes live in the file's mapping.
struct Tensor {
  std::string name;
  std::vector<uint64_t> shape;
  QuantType type;
  std::span<const std::byte> data;

  uint64_t elements() const;
  uint64_t row_length() const { return shape.empty() ? 1 : shape[0]; }
  uint64_t rows() const;  ///< Product of all dimensions but the first.
};

/// Which tensor types a file may hold. `any` also accepts types that the format defines and Quern
/// does not decode (their `type` is then the file's id, outside QuantType's list): for reading test
/// data and for looking at a file, never for running it.
enum class TensorTypes { decodable, any };

/// A GGUF file (v2 or v3, one file or all of a split set) opened over mmap. Opening checks every
/// length, offset and type before use: afterwards nothing in it can point outside the mapping.
class File {
 public:
  /// Opens `path`; where it is the first part of a split set ("-00001-of-000NN.gguf") the other
  /// parts are opened too. Throws Error: `failed` where the file cannot be read, `bad_model` where
  /// it is not a sound GGUF file, holds a tensor type that Quern does not decode or lacks a part,
  /// `usage` where it is a later part of a split set.
  static File open(const std::filesystem::path& path, TensorTypes types = TensorTypes::decodable);
  /// Parses a file image that the caller keeps alive (tests, fuzzing).
  static File parse(std::span<const std::byte> image, std::string_view name,
                    TensorTypes types = TensorTypes::decodable);

  File(File&&) noexcept;
  File& operator=(File&&) noexcept;
  ~File();

  const std::string& name() const;
  uint32_t version() const;
  uint64_t alignment() const;
  const Metadata& metadata() const;
  /// All tensors in file order (parts in their order).
  const std::vector<Tensor>& tensors() const;
  /// The tensor, or null.
  const Tensor* find(std::string_view name) const;
  /// Sum of the sizes of the files.
  uint64_t file_bytes() const;
  /// SHA-256 (hex) of metadata, tensor table and sampled data blocks: the model's fingerprint.
  /// Reads up to 64 KiB of every tensor.
  std::string fingerprint() const;

 private:
  struct Impl;
  explicit File(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quern::gguf
