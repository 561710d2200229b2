#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "models/synth/shapes.h"

namespace quern::synth {

/// Word `index` of the random stream of `key`: splitmix64 (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014) of a counter, so that any piece of a tensor can be made
/// by itself and is the same on every machine.
constexpr uint64_t random_word(uint64_t key, uint64_t index) {
  uint64_t z = key + (index + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// The key of a tensor's stream: values depend on the seed, the name and the position alone.
uint64_t tensor_key(uint64_t seed, std::string_view name);

/// Pieces begin at a multiple of so many blocks, where blocks of every type begin a random word.
inline constexpr uint64_t piece_alignment = 8;

/// Writes the blocks of `tensor` from block `first` on (a multiple of piece_alignment) until `out`
/// is full; `out` holds whole blocks. Codes are uniform bits. For the types that mixes use, scales
/// are finite and of a size that makes the values' standard deviation about 1 / sqrt(row length).
void fill_blocks(const SynthTensor& tensor, uint64_t key, uint64_t first, std::span<std::byte> out);

}  // namespace quern::synth
