// Runs a fuzz target over the files of one or more folders, so that every build replays the corpus,
// with any compiler. Prints how many inputs ran; a fault ends the process.

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  size_t inputs = 0;
  std::string current;
  try {
    for (int i = 1; i < argc; ++i) {
      for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
        current = entry.path().string();
        std::ifstream in(entry.path(), std::ios::binary);
        const std::string bytes(std::istreambuf_iterator<char>(in), {});
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
        ++inputs;
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", current.c_str(), error.what());
    return 1;
  }
  std::printf("%zu inputs\n", inputs);
  return inputs > 0 ? 0 : 1;
}
