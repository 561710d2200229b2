#include "runtime/state_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "models/error.h"
#include "models/sha256.h"

// Layout, little-endian: magic "QUERNST1", SHA-256 of all that follows it (64 hex digits),
// fingerprint (64 hex digits), position u64, bytes of the state u64, number of runs u64; then the
// runs: offset u64, length u64, bytes.

namespace quern {
namespace {

constexpr std::string_view kMagic = "QUERNST1";
constexpr size_t kHexBytes = 64;
constexpr size_t kBodyAt = 8 + kHexBytes;
constexpr size_t kPage = 4096;

bool is_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

/// Calls run(offset, length) for each maximal stretch of pages that hold anything.
template <class Use>
void for_nonzero_runs(std::span<const std::byte> state, Use&& use) {
  size_t begin = 0;
  bool open = false;
  for (size_t at = 0; at < state.size(); at += kPage) {
    const bool zero = is_zero(state.subspan(at, std::min(kPage, state.size() - at)));
    if (!zero && !open) begin = at;
    if (zero && open) use(begin, at - begin);
    open = !zero;
  }
  if (open) use(begin, state.size() - begin);
}

void put_u64(std::vector<std::byte>& out, uint64_t value) {
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void put(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  const size_t at = out.size();
  out.resize(at + bytes.size());
  std::copy(bytes.begin(), bytes.end(), out.begin() + static_cast<ptrdiff_t>(at));
}

void put(std::vector<std::byte>& out, std::string_view text) {
  put(out, std::as_bytes(std::span(text)));
}

[[noreturn]] void refuse(std::string_view reason) {
  throw Error(ErrorKind::failed, "saved state", reason, "save it again with the same plan");
}

/// Reads forward through an image; never beyond its end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> rest) : rest_(rest) {}
  std::span<const std::byte> bytes(uint64_t count) {
    if (count > rest_.size()) refuse("it ends too early");
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  std::string_view text(uint64_t count) {
    const auto taken = bytes(count);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  uint64_t u64() {
    uint64_t value = 0;
    const auto taken = bytes(8);
    for (size_t i = 0; i < 8; ++i) value |= std::to_integer<uint64_t>(taken[i]) << (8 * i);
    return value;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

std::string state_fingerprint(const Plan& plan) {
  std::string text = fmt::format("state 1\n{}\n{} {} {}\n{} {} {}\n", plan.model_fingerprint,
                                 plan.target.kind, plan.target.name, plan.target.features,
                                 plan.options.context, plan.options.kv, plan.state_bytes);
  for (const StateBuffer& state : plan.states) {
    text += fmt::format("{} {} {} {}\n", static_cast<int>(state.kind), state.layer, state.bytes,
                        state.offset);
  }
  for (const Step& step : plan.steps) {
    const PlanKernel& kernel = plan.kernels[step.kernel];
    text += fmt::format("{} {}\n", kernel.key_digest, spec_to_text(kernel.spec));
  }
  return sha256_hex(std::as_bytes(std::span(text)));
}

std::vector<std::byte> encode_state(std::span<const std::byte> state, std::string_view fingerprint,
                                    uint32_t position) {
  uint64_t runs = 0;
  uint64_t bytes = 0;
  for_nonzero_runs(state, [&](size_t, size_t length) {
    ++runs;
    bytes += 16 + length;
  });
  std::vector<std::byte> image;
  image.reserve(kBodyAt + kHexBytes + 24 + bytes);
  put(image, kMagic);
  image.resize(kBodyAt);
  put(image, fingerprint);
  put_u64(image, position);
  put_u64(image, state.size());
  put_u64(image, runs);
  for_nonzero_runs(state, [&](size_t offset, size_t length) {
    put_u64(image, offset);
    put_u64(image, length);
    put(image, state.subspan(offset, length));
  });
  const std::string digest = sha256_hex(std::span(image).subspan(kBodyAt));
  std::memcpy(image.data() + kMagic.size(), digest.data(), digest.size());
  return image;
}

StateImage decode_state(std::span<const std::byte> image, std::string_view fingerprint,
                        uint64_t state_bytes, uint32_t capacity) {
  Cursor cursor(image);
  if (cursor.text(kMagic.size()) != kMagic) refuse("it is no saved state");
  const std::string_view digest = cursor.text(kHexBytes);
  if (digest != sha256_hex(image.subspan(kBodyAt))) refuse("it is damaged");
  if (cursor.text(kHexBytes) != fingerprint) refuse("it belongs to another plan");
  StateImage result;
  const uint64_t position = cursor.u64();
  if (position > capacity) refuse("its position is beyond the context");
  result.position = static_cast<uint32_t>(position);
  if (cursor.u64() != state_bytes) refuse("it belongs to another plan");
  for (uint64_t runs = cursor.u64(); runs > 0; --runs) {
    const uint64_t offset = cursor.u64();
    const uint64_t length = cursor.u64();
    if (offset > state_bytes || length > state_bytes - offset) refuse("it is damaged");
    result.runs.push_back({offset, cursor.bytes(length)});
  }
  if (!cursor.at_end()) refuse("something follows its end");
  return result;
}

void copy_nonzero(std::span<const std::byte> from, std::span<std::byte> to) {
  for_nonzero_runs(from, [&](size_t offset, size_t length) {
    std::memcpy(to.data() + offset, from.data() + offset, length);
  });
}

}  // namespace quern
