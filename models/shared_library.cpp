#include "models/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "models/error.h"

namespace quern {

LoadedLibrary load_library(const LibrarySearch& search) {
  const char* given = std::getenv(search.variable);
  const bool named = given != nullptr && *given != '\0';
  std::vector<std::filesystem::path> candidates = search.candidates;
  if (named) candidates = {given};
  std::string last;
  for (const std::filesystem::path& path : candidates) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); handle != nullptr) {
      return {handle, path};
    }
    const char* why = dlerror();
    last = why == nullptr ? "" : why;
  }
  if (named) {
    throw Error(ErrorKind::failed, search.thing,
                fmt::format("{}={} cannot be loaded ({})", search.variable, given, last),
                search.remedy_of_given);
  }
  throw Error(ErrorKind::failed, search.thing,
              fmt::format("{} was not found on this machine", search.wanted), search.remedy);
}

std::vector<std::filesystem::path> cuda_toolkit_candidates(
    std::string_view stem, std::initializer_list<const char*> folders) {
  std::vector<std::filesystem::path> paths;
  for (const char* version : {".13", ".12", ""}) {
    paths.emplace_back(fmt::format("{}.so{}", stem, version));
  }
  for (const char* root : {"/usr/local/cuda", "/usr/local/cuda-13", "/usr/local/cuda-12"}) {
    for (const char* folder : folders) {
      for (const char* version : {".13", ".12"}) {
        paths.emplace_back(fmt::format("{}/{}/{}.so{}", root, folder, stem, version));
      }
    }
  }
  return paths;
}

}  // namespace quern
