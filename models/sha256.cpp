#include "models/sha256.h"

#include <algorithm>
#include <cstring>

#include "models/sha256_compress.h"

namespace quern {
namespace {

void compress(sha256::State& state, const std::byte* block) {
  static const bool fast = sha256::has_instructions();
  fast ? sha256::compress_x86(state, block) : sha256::compress_portable(state, block);
}

}  // namespace

void Sha256::update(std::span<const std::byte> data) {
  if (data.empty()) return;
  total_bytes_ += data.size();
  if (filled_ > 0) {
    const size_t take = std::min(data.size(), block_.size() - filled_);
    std::memcpy(block_.data() + filled_, data.data(), take);
    filled_ += take;
    data = data.subspan(take);
    if (filled_ < block_.size()) return;
    compress(state_, block_.data());
    filled_ = 0;
  }
  for (; data.size() >= block_.size(); data = data.subspan(block_.size())) {
    compress(state_, data.data());
  }
  std::copy(data.begin(), data.end(), block_.begin());
  filled_ = data.size();
}

std::string Sha256::hex() const {
  std::array<uint32_t, 8> state = state_;
  // The tail: a one bit, zeros, and the length in bits, filling one block or two.
  std::array<std::byte, 128> tail = {};
  std::copy_n(block_.begin(), filled_, tail.begin());
  tail[filled_] = std::byte{0x80};
  const size_t length = filled_ < 56 ? 64 : 128;
  const uint64_t bits = total_bytes_ * 8;
  for (size_t i = 0; i < 8; ++i) tail[length - 1 - i] = static_cast<std::byte>(bits >> (8 * i));
  for (size_t at = 0; at < length; at += 64) compress(state, tail.data() + at);

  std::string text;
  text.reserve(64);
  for (const uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[(word >> shift) & 15];
  }
  return text;
}

std::string sha256_hex(std::span<const std::byte> data) {
  Sha256 digest;
  digest.update(data);
  return digest.hex();
}

}  // namespace quern
