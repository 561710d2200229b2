#include "runtime/store/entry.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/sha256.h"
#include "runtime/store/kernel_store.h"

// Layout of an entry file, little-endian:
//   0  magic "QUERNKRN"            8 bytes
//   8  schema                      u32
//  12  zero                        u32
//  16  bytes of the record         u64
//  24  bytes of the payload        u64
//  32  SHA-256 of all that is not this field, as 64 hex digits
//  96  record: one line of JSON and a newline
//      payload: the machine code
// Nothing may follow the payload.

namespace quern {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kMagic = "QUERNKRN";
constexpr uint32_t kSchema = 1;
constexpr size_t kDigestAt = 32;
constexpr size_t kDigestBytes = 64;
constexpr size_t kHeaderBytes = kDigestAt + kDigestBytes;

template <class T>
void put(std::vector<std::byte>& out, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out[at + i] = static_cast<std::byte>(value >> (8 * i));
}

template <class T>
T take(std::span<const std::byte> image, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (static_cast<T>(std::to_integer<T>(image[at + i])) << (8 * i)));
  }
  return value;
}

std::string image_digest(std::span<const std::byte> image) {
  Sha256 sha;
  sha.update(image.first(kDigestAt));
  sha.update(image.subspan(kHeaderBytes));
  return sha.hex();
}

Json pairs_to_json(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json json = Json::array();
  for (const auto& [name, value] : pairs) json.push_back(Json::array({name, value}));
  return json;
}

[[noreturn]] void bad(std::string_view name, std::string_view reason) {
  throw Error(ErrorKind::failed, fmt::format("kernel store entry {}", name), reason,
              "run again without --store strict to rebuild it");
}

std::string text_field(const Json& record, const char* field, std::string_view name) {
  const auto found = record.find(field);
  if (found == record.end() || !found->is_string()) {
    bad(name, fmt::format("its record has no text field \"{}\"", field));
  }
  return found->get<std::string>();
}

std::vector<std::pair<std::string, std::string>> pairs_field(const Json& record, const char* field,
                                                             std::string_view name) {
  const auto found = record.find(field);
  if (found == record.end() || !found->is_array()) {
    bad(name, fmt::format("its record has no list \"{}\"", field));
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const Json& pair : *found) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
      bad(name, fmt::format("\"{}\" holds something that is no pair of texts", field));
    }
    pairs.emplace_back(pair[0].get<std::string>(), pair[1].get<std::string>());
  }
  return pairs;
}

}  // namespace

namespace store {

std::vector<std::byte> encode(const CompiledKernel& kernel, std::string_view family,
                              std::string_view spec) {
  Json json = Json::object();
  json["family"] = family;
  json["spec"] = spec;
  json["key"] = pairs_to_json(kernel.key.fields);
  json["symbol"] = kernel.symbol;
  json["scratch_bytes"] = kernel.scratch_bytes;
  json["record"] = pairs_to_json(kernel.record);
  // Compiler logs may hold bytes that are no UTF-8: replace them rather than fail.
  const std::string record = json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";

  std::vector<std::byte> image(kHeaderBytes + record.size() + kernel.code.size());
  std::memcpy(image.data(), kMagic.data(), kMagic.size());
  put<uint32_t>(image, 8, kSchema);
  put<uint64_t>(image, 16, record.size());
  put<uint64_t>(image, 24, kernel.code.size());
  std::memcpy(image.data() + kHeaderBytes, record.data(), record.size());
  if (!kernel.code.empty()) {
    std::memcpy(image.data() + kHeaderBytes + record.size(), kernel.code.data(),
                kernel.code.size());
  }
  const std::string digest = image_digest(image);
  std::memcpy(image.data() + kDigestAt, digest.data(), digest.size());
  return image;
}

DecodedEntry decode(std::span<const std::byte> image, std::string_view name) {
  if (image.size() < kHeaderBytes) {
    bad(name, fmt::format("the file has {} bytes, less than a header", image.size()));
  }
  if (std::memcmp(image.data(), kMagic.data(), kMagic.size()) != 0) bad(name, "not an entry file");
  if (const auto schema = take<uint32_t>(image, 8); schema != kSchema) {
    bad(name, fmt::format("its schema is {}, this build reads {}", schema, kSchema));
  }
  const auto record_bytes = take<uint64_t>(image, 16);
  const auto payload_bytes = take<uint64_t>(image, 24);
  const uint64_t rest = image.size() - kHeaderBytes;
  if (record_bytes > rest || payload_bytes != rest - record_bytes) {
    bad(name, fmt::format("the file has {} bytes, not the {} + {} that its header says", rest,
                          record_bytes, payload_bytes));
  }
  const std::string digest = image_digest(image);
  if (std::memcmp(image.data() + kDigestAt, digest.data(), kDigestBytes) != 0) {
    bad(name, "its digest does not match its content");
  }

  const auto* text = reinterpret_cast<const char*>(image.data() + kHeaderBytes);
  const Json json = Json::parse(text, text + record_bytes, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) bad(name, "its record is not JSON");
  DecodedEntry entry;
  entry.family = text_field(json, "family", name);
  entry.spec = text_field(json, "spec", name);
  entry.kernel.symbol = text_field(json, "symbol", name);
  entry.kernel.key.fields = pairs_field(json, "key", name);
  entry.kernel.record = pairs_field(json, "record", name);
  const auto scratch = json.find("scratch_bytes");
  if (scratch == json.end() || !scratch->is_number_unsigned()) {
    bad(name, "its record has no number \"scratch_bytes\"");
  }
  entry.kernel.scratch_bytes = scratch->get<uint64_t>();
  const auto payload = image.subspan(kHeaderBytes + record_bytes);
  entry.kernel.code.assign(payload.begin(), payload.end());
  return entry;
}

}  // namespace store

std::vector<std::byte> encode_entry(const CompiledKernel& kernel, const spec::AnySpec& spec) {
  return store::encode(kernel, spec_family(spec), spec_to_text(spec));
}

CompiledKernel decode_entry(std::span<const std::byte> image, std::string_view name) {
  return store::decode(image, name).kernel;
}

std::string entry_digest(const CompiledKernel& kernel) {
  Sha256 sha;
  const std::string head = fmt::format("quern entry 1\n{}\n{}\n{}\n{}\n", kernel.key.digest(),
                                       kernel.symbol, kernel.scratch_bytes, kernel.code.size());
  sha.update(std::as_bytes(std::span(head)));
  sha.update(kernel.code);
  return sha.hex();
}

}  // namespace quern
