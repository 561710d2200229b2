#include "models/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "models/error.h"
#include "models/families/families.h"

namespace quern {
namespace {

struct Family {
  std::string_view architecture;
  ModelGraph (*build)(const gguf::File& file);
};

constexpr std::array families = {
    Family{"llama", build_llama},         Family{"qwen2", build_qwen2},
    Family{"qwen3", build_qwen3},         Family{"qwen3moe", build_qwen3moe},
    Family{"olmoe", build_olmoe},         Family{"gemma3", build_gemma3},
    Family{"qwen3next", build_qwen3next}, Family{"qwen35", build_qwen35},
    Family{"qwen35moe", build_qwen35moe},
};

}  // namespace

ModelGraph build_graph(const gguf::File& file) {
  const std::string& architecture = file.metadata().get_string("general.architecture");
  const auto family = std::ranges::find(families, architecture, &Family::architecture);
  if (family == families.end()) {
    throw Error(ErrorKind::bad_model, "metadata key general.architecture",
                fmt::format("is \"{}\", which is not supported", architecture),
                fmt::format("known are {}", fmt::join(known_architectures(), ", ")));
  }
  return family->build(file);
}

std::vector<std::string> known_architectures() {
  std::vector<std::string> names;
  for (const Family& family : families) names.emplace_back(family.architecture);
  return names;
}

}  // namespace quern
