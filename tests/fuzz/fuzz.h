#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

/// The entry point that libFuzzer, or replay_main.cpp, calls with each input.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace quern::fuzz {

/// Ends the process, so that the fuzzer keeps the input, where a promised property does not hold.
inline void require(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "property broken: %s\n", property);
  std::abort();
}

}  // namespace quern::fuzz
