#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "models/gguf/file.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/models/tokenizer_vocabularies.h"
#include "tests/support/fixtures.h"

namespace quern {
namespace {

constexpr Tokenizer::EncodeOptions plain{.add_special = false, .parse_special = false};

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Case {
  std::string text;
  std::vector<TokenId> ids;
};

/// Cases stand between separator lines; the line end before a separator is the separator's.
std::vector<Case> read_cases(const std::filesystem::path& vocabulary) {
  constexpr std::string_view separator = "\n__ggml_vocab_test__\n";
  const std::string inputs = read_all(vocabulary.string() + ".inp");
  std::istringstream outputs(read_all(vocabulary.string() + ".out"));
  std::vector<Case> cases;
  size_t at = 0;
  for (std::string line; std::getline(outputs, line);) {
    const size_t end = inputs.find(separator, at);
    if (end == std::string::npos) throw std::runtime_error("fewer inputs than outputs");
    Case next{inputs.substr(at, end - at), {}};
    at = end + separator.size();
    std::istringstream ids(line);
    for (TokenId id = 0; ids >> id;) next.ids.push_back(id);
    cases.push_back(std::move(next));
  }
  return cases;
}

Tokenizer load(const std::filesystem::path& path) {
  return Tokenizer::from_metadata(gguf::File::open(path).metadata());
}

class SharedVocabulary : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = std::string("tokenizers/ggml-vocab-") + GetParam() + ".gguf";
    const auto path = test::shared_file(name);
    if (!path) GTEST_SKIP() << test::missing_shared(name);
    path_ = *path;
  }
  std::filesystem::path path_;
};

TEST_P(SharedVocabulary, every_case_has_the_expected_ids_and_round_trips) {
  const Tokenizer tokenizer = load(path_);
  const auto cases = read_cases(path_);
  ASSERT_GE(cases.size(), 46u);
  for (const Case& expected : cases) {
    EXPECT_EQ(tokenizer.encode(expected.text, plain), expected.ids) << expected.text;
    EXPECT_EQ(tokenizer.decode(expected.ids), expected.text);
    StreamDecoder decoder(tokenizer);
    std::string text;
    for (const TokenId id : expected.ids) text += decoder.push(id);
    EXPECT_EQ(text + decoder.finish(), expected.text);
  }
}

TEST_P(SharedVocabulary, a_megabyte_takes_well_under_two_seconds) {
  const Tokenizer tokenizer = load(path_);
  std::string text;
  while (text.size() < 1'000'000) {
    for (const Case& one : read_cases(path_)) text += one.text + "\n";
  }
  // Processor time, which other programs of the machine do not lengthen.
  const std::clock_t start = std::clock();
  const auto ids = tokenizer.encode(text, plain);
  [[maybe_unused]] const double taken = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(taken, 2.0);
#endif
  EXPECT_EQ(tokenizer.decode(ids), text);
}

INSTANTIATE_TEST_SUITE_P(All, SharedVocabulary,
                         testing::Values("gpt-2", "llama-bpe", "llama-spm", "qwen2", "qwen35"),
                         [](const auto& param) {
                           std::string name = param.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

const std::vector<std::string>& sample_texts() {
  static const std::vector<std::string> texts = {
      "The capital of France is Paris.",
      "  two spaces,\ttabs\t\tand\n\n\nlines \n ",
      "int main() {\n    return 0;  // 12345\n}\n",
      "\u00C4pfel, \u043D\u0435\u0449\u043E, \u6211\u60F3\u5728apple, \U0001F999\u200D\U0001F680",
      "<s>not</s> <b>markup</b> <|im_end|> <eos>",
      std::string("nul\0byte", 8),
      "cut off \xE6\x88 and \xC3",
      " ",
      "",
  };
  return texts;
}

TEST(RealVocabulary, smollm2_loads_and_round_trips) {
  const auto path = test::model_file(test::smollm2);
  if (!path) GTEST_SKIP() << test::missing_model(test::smollm2);
  const Tokenizer tokenizer = load(*path);
  EXPECT_FALSE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.end_of_generation(), (std::vector<TokenId>{0, 2}));
  for (const std::string& text : sample_texts()) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, plain)), text);
  }
  // This vocabulary has no token for a byte that never occurs in UTF-8, nor for some controls.
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xFF\x04z", plain)), "az");
  // Digits stand alone, each with its own token.
  EXPECT_EQ(tokenizer.encode("123", plain).size(), 3u);
}

TEST(RealVocabulary, gemma_loads_and_round_trips) {
  const auto path = test::model_file(test::gemma_270m);
  if (!path) GTEST_SKIP() << test::missing_model(test::gemma_270m);
  const Tokenizer tokenizer = load(*path);
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.end_of_generation(), (std::vector<TokenId>{1, 106}));
  for (const std::string& text : sample_texts()) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, plain)), text);
  }
  EXPECT_EQ(tokenizer.encode("\n\n\n", plain), (std::vector<TokenId>{109}));
  EXPECT_EQ(tokenizer.encode("    ", plain), (std::vector<TokenId>{140}));
  EXPECT_EQ(tokenizer.encode("<b>", plain), (std::vector<TokenId>{200}));
}

}  // namespace
}  // namespace quern
