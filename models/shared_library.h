#pragma once

#include <filesystem>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace quern {

/// A library that is loaded when it is first needed, and where to look for it.
struct LibrarySearch {
  std::string_view thing;   ///< As messages call it: "NVRTC".
  const char* variable;     ///< Environment: names a file; then no other is tried.
  std::string_view wanted;  ///< What "was not found on this machine": "libnvrtc".
  std::vector<std::filesystem::path> candidates;
  std::string_view remedy;           ///< Where none of them can be loaded ...
  std::string_view remedy_of_given;  ///< ... and where the one that the variable names cannot.
};

struct LoadedLibrary {
  void* handle = nullptr;  ///< For dlsym. Never closed: CUDA's libraries do not survive it.
  std::filesystem::path path;
};

/// Throws Error (`failed`).
LoadedLibrary load_library(const LibrarySearch& search);

/// A library of the CUDA toolkits 13 and 12 by its stem ("libnvrtc"): where the loader finds it,
/// then in these of the toolkit's folders ("lib64").
std::vector<std::filesystem::path> cuda_toolkit_candidates(
    std::string_view stem, std::initializer_list<const char*> folders);

}  // namespace quern
