#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/file.h"

// Where tests find their data. The build defines QUERN_TEST_DATA (tests/data) and
// QUERN_SHARED_DEFAULT (the shared folder beside the checkout). A test program that was built on
// another machine is told where tests/data is by QUERN_TEST_DATA_DIR.
namespace quern::test {

/// What the environment says, or what the build has compiled in.
inline std::filesystem::path test_folder(const char* variable, const char* built) {
  const char* folder = std::getenv(variable);
  return folder != nullptr && *folder != '\0' ? folder : built;
}

/// A file of tests/data, which every clone has.
inline std::filesystem::path data_file(std::string_view relative) {
  return test_folder("QUERN_TEST_DATA_DIR", QUERN_TEST_DATA) / relative;
}

/// A file of the shared folder ("fixtures/llama.gguf", "tokenizers/…"): under $QUERN_SHARED, beside
/// the checkout, or in tests/data, which holds the small fixtures in the same layout. Nothing where
/// none has it: skip the case with `missing_shared`.
inline std::optional<std::filesystem::path> shared_file(std::string_view relative) {
  std::vector<std::filesystem::path> roots;
  if (const char* root = std::getenv("QUERN_SHARED"); root != nullptr && *root != '\0') {
    roots.emplace_back(root);
  }
  roots.emplace_back(QUERN_SHARED_DEFAULT);
  roots.push_back(data_file(""));
  for (const auto& root : roots) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(root / relative, ignored)) return root / relative;
  }
  return std::nullopt;
}

/// The line to skip with: GTEST_SKIP() << missing_shared("fixtures/wide/llama.gguf").
inline std::string missing_shared(std::string_view relative) {
  return std::string(relative) + " is not there: set QUERN_SHARED to the shared folder";
}

/// What a *.golden.gguf holds.
struct Golden {
  std::vector<int32_t> token_ids;
  std::vector<int32_t>
      positions;  ///< Of the rows of `logits`; all of them where the file has none.
  size_t vocabulary = 0;
  std::vector<float> logits;  ///< positions × vocabulary.
};

inline Golden load_golden(const std::filesystem::path& path) {
  const auto file = gguf::File::open(path, gguf::TensorTypes::any);
  const auto copy = [&](const gguf::Tensor& tensor, auto& out) {
    if (tensor.data.size() != tensor.elements() * 4) {
      throw std::runtime_error(path.string() + ": " + tensor.name + " is not of 4-byte values");
    }
    out.resize(tensor.elements());
    std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  };
  const gguf::Tensor* ids = file.find("token_ids");
  const gguf::Tensor* logits = file.find("logits");
  if (ids == nullptr || logits == nullptr) {
    throw std::runtime_error(path.string() + ": token_ids or logits are missing");
  }
  Golden golden;
  copy(*ids, golden.token_ids);
  copy(*logits, golden.logits);
  golden.vocabulary = logits->row_length();
  if (const gguf::Tensor* positions = file.find("positions")) {
    copy(*positions, golden.positions);
  } else {
    for (size_t i = 0; i < golden.token_ids.size(); ++i) {
      golden.positions.push_back(static_cast<int32_t>(i));
    }
  }
  return golden;
}

}  // namespace quern::test
