#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace quern::test {

/// A synthetic model that `quern synth SHAPE --mix MIX` has written to $QUERN_SYNTH.
inline std::filesystem::path synthetic_model(const std::string& shape, const std::string& mix) {
  const char* folder = std::getenv("QUERN_SYNTH");
  const auto path =
      std::filesystem::path(folder == nullptr ? "." : folder) / (shape + "-" + mix + ".gguf");
  if (!std::filesystem::exists(path)) throw std::runtime_error(path.string() + " is not there");
  return path;
}

}  // namespace quern::test
