#pragma once

#include <filesystem>
#include <fstream>
#include <ios>
#include <span>
#include <string>

#include "models/synth/synth.h"
#include "tests/support/temporary_folder.h"

namespace quern::test {

/// A synthetic model (`quern synth SHAPE --mix MIX`), written once a program.
inline std::filesystem::path synthetic_model(const std::string& shape, const std::string& mix) {
  static const TemporaryFolder folder;
  const auto path = folder.path() / (shape + "-" + mix + ".gguf");
  if (std::filesystem::exists(path)) return path;
  std::ofstream file(path, std::ios::binary);
  file.exceptions(std::ios::badbit | std::ios::failbit);
  synth::write_synthetic(synth::shape_named(shape), synth::mix_named(mix), {},
                         [&file](std::span<const std::byte> bytes) {
                           file.write(reinterpret_cast<const char*>(bytes.data()),
                                      static_cast<std::streamsize>(bytes.size()));
                         });
  return path;
}

}  // namespace quern::test
