#include "models/gguf/file.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "models/error.h"
#include "models/gguf/mapping.h"
#include "models/gguf/parse.h"
#include "models/gguf/split.h"
#include "models/sha256.h"

namespace quern::gguf {

uint64_t Tensor::elements() const {
  uint64_t product = 1;
  for (const uint64_t extent : shape) product *= extent;
  return product;
}

uint64_t Tensor::rows() const {
  uint64_t product = 1;
  for (size_t i = 1; i < shape.size(); ++i) product *= shape[i];
  return product;
}

struct File::Impl {
  std::string name;
  uint32_t version = 0;
  uint64_t alignment = 0;
  uint64_t file_bytes = 0;
  Metadata metadata;
  std::vector<Tensor> tensors;
  std::vector<std::span<const std::byte>> headers;
  std::vector<Mapping> mappings;
  std::unordered_map<std::string_view, size_t> index;  ///< Views of the names in `tensors`.

  /// Takes over a part's tensors; the first part gives metadata, version and alignment too.
  void add(ParsedImage part, uint64_t bytes) {
    if (headers.empty()) {
      version = part.version;
      alignment = part.alignment;
      metadata = std::move(part.metadata);
    }
    headers.push_back(part.header);
    file_bytes += bytes;
    for (Tensor& tensor : part.tensors) tensors.push_back(std::move(tensor));
  }

  void build_index() {
    index.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!index.emplace(tensors[i].name, i).second) {
        throw Error(ErrorKind::bad_model, name,
                    fmt::format("two parts hold tensor {}", tensors[i].name));
      }
    }
  }
};

namespace {

/// Opens the other parts of the set whose first part is already in `impl`.
template <typename Impl>
void open_other_parts(Impl& impl, const std::filesystem::path& path, uint64_t count,
                      TensorTypes types) {
  const auto split_name = parse_split_name(path);
  if (!split_name) {
    throw Error(ErrorKind::bad_model, impl.name,
                fmt::format("is one of {} parts but is not named -00001-of-{:05}.gguf, so the "
                            "others cannot be found",
                            count, count),
                "give the parts the names they were published with");
  }
  if (split_name->count != count) {
    throw Error(ErrorKind::bad_model, impl.name,
                fmt::format("metadata key {} is {} but the file is named as one of {} parts",
                            kSplitCountKey, count, split_name->count));
  }
  for (uint64_t number = 1; number < count; ++number) {
    const auto part_path = split_part_path(path, *split_name, number);
    if (!std::filesystem::exists(part_path)) {
      throw Error(ErrorKind::bad_model, part_path.string(),
                  fmt::format("is missing: the model has {} parts", count),
                  "put all parts into one folder");
    }
    impl.mappings.emplace_back(part_path);
    const auto bytes = impl.mappings.back().bytes();
    ParsedImage part = parse_image(bytes, part_path.string(), types);
    check_split_part(part.metadata, part_path.string(), number, count);
    impl.add(std::move(part), bytes.size());
  }
}

}  // namespace

File::File(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
File::File(File&&) noexcept = default;
File& File::operator=(File&&) noexcept = default;
File::~File() = default;

File File::open(const std::filesystem::path& path, TensorTypes types) {
  auto impl = std::make_unique<Impl>();
  impl->name = path.string();
  impl->mappings.emplace_back(path);
  const auto bytes = impl->mappings.back().bytes();
  impl->add(parse_image(bytes, impl->name, types), bytes.size());

  const uint64_t count = split_count(impl->metadata, impl->name);
  const auto split_name = parse_split_name(path);
  if (count <= 1 && split_name && split_name->count > 1) {
    throw Error(ErrorKind::bad_model, impl->name,
                fmt::format("is named as one of {} parts but metadata key {} does not say so",
                            split_name->count, kSplitCountKey),
                "rename the file if it is whole");
  }
  if (count > 1) {
    const uint64_t number = split_number(impl->metadata, impl->name);
    if (number != 0) {
      const std::string first =
          split_name ? split_part_path(path, *split_name, 0).string() : "the first part";
      throw Error(ErrorKind::usage, impl->name,
                  fmt::format("is part {} of {} of a model", number + 1, count), "open " + first);
    }
    open_other_parts(*impl, path, count, types);
    check_split_total(impl->metadata, impl->name, impl->tensors.size());
  }
  impl->build_index();
  return File(std::move(impl));
}

File File::parse(std::span<const std::byte> image, std::string_view name, TensorTypes types) {
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  impl->add(parse_image(image, name, types), image.size());
  if (split_count(impl->metadata, name) > 1) {
    throw Error(ErrorKind::bad_model, name, "is one part of a split model",
                "open the first part by its path");
  }
  impl->build_index();
  return File(std::move(impl));
}

const std::string& File::name() const {
  return impl_->name;
}
uint32_t File::version() const {
  return impl_->version;
}
uint64_t File::alignment() const {
  return impl_->alignment;
}
const Metadata& File::metadata() const {
  return impl_->metadata;
}
const std::vector<Tensor>& File::tensors() const {
  return impl_->tensors;
}
uint64_t File::file_bytes() const {
  return impl_->file_bytes;
}

const Tensor* File::find(std::string_view name) const {
  const auto it = impl_->index.find(name);
  return it == impl_->index.end() ? nullptr : &impl_->tensors[it->second];
}

std::string File::fingerprint() const {
  // Sixteen blocks a tensor, its first and last among them: about 10 MB for a small model and 40 MB
  // for the largest, so that a start does not wait for it.
  constexpr size_t kBlock = 4096;
  constexpr size_t kBlocks = 16;
  Sha256 digest;
  for (const auto& header : impl_->headers) digest.update(header);
  for (const Tensor& tensor : impl_->tensors) {
    const auto data = tensor.data;
    if (data.size() <= kBlock * kBlocks) {
      digest.update(data);
      continue;
    }
    const size_t last = data.size() - kBlock;
    for (size_t i = 0; i < kBlocks; ++i) {
      // Exact without overflow: last / 15 * i plus the share of the remainder.
      const size_t start = last / (kBlocks - 1) * i + last % (kBlocks - 1) * i / (kBlocks - 1);
      digest.update(data.subspan(start, kBlock));
    }
  }
  return digest.hex();
}

}  // namespace quern::gguf
