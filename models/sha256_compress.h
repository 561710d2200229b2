#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

// SHA-256's compression function: one block of 64 bytes into the state, by plain code or by the
// processor's instructions for it. Both give the same state.
namespace quern::sha256 {

using State = std::array<uint32_t, 8>;

void compress_portable(State& state, const std::byte* block);

/// Whether this processor runs `compress_x86`.
bool has_instructions();
void compress_x86(State& state, const std::byte* block);

}  // namespace quern::sha256
