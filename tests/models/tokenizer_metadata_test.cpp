#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "models/error.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/models/tokenizer_vocabularies.h"

// Metadata that lies: each is refused with the key named, or has a defined meaning.

namespace quern {
namespace {

using Change = std::function<void(gguf::Metadata&)>;

gguf::Metadata byte_level() {
  auto builder = test::byte_level_builder();
  builder.merge("a", "b");
  builder.add("<bos>", test::control);
  return test::byte_level_metadata(builder);
}

gguf::Metadata sentencepiece() {
  auto builder = test::sentencepiece_builder();
  builder.add("a");
  return test::sentencepiece_metadata(builder);
}

void expect_refused(gguf::Metadata metadata, const Change& change, std::string_view key) {
  ASSERT_NO_THROW(Tokenizer::from_metadata(metadata)) << "the unchanged metadata must load";
  change(metadata);
  try {
    Tokenizer::from_metadata(metadata);
    ADD_FAILURE() << "it was not refused; expected an error about " << key;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_model) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(std::string(key)));
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n")));
  }
}

/// The metadata without one key.
gguf::Metadata without(const gguf::Metadata& metadata, std::string_view key) {
  gguf::Metadata rest;
  for (const std::string& name : metadata.keys()) {
    if (name != key) rest.set(name, *metadata.find(name));
  }
  return rest;
}

void expect_required(const gguf::Metadata& metadata, std::string_view key) {
  expect_refused(metadata, [&](gguf::Metadata& m) { m = without(m, key); }, key);
}

/// An array of strings as the file has it, changed.
Change edit(const std::string& key, std::function<void(std::vector<std::string>&)> change) {
  return [key, change = std::move(change)](gguf::Metadata& metadata) {
    auto values = metadata.get_strings(key);
    change(values);
    metadata.set_string_array(key, std::move(values));
  };
}

TEST(TokenizerMetadata, required_keys_are_named_when_absent) {
  for (const char* key :
       {"tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"}) {
    expect_required(byte_level(), key);
  }
  for (const char* key :
       {"tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.scores"}) {
    expect_required(sentencepiece(), key);
  }
}

TEST(TokenizerMetadata, unknown_kinds_and_pre_tokenisers_are_named) {
  const auto set = [](const char* key, const char* value) {
    return [=](gguf::Metadata& m) { m.set_string(key, value); };
  };
  expect_refused(byte_level(), set("tokenizer.ggml.model", "bert"), "tokenizer.ggml.model");
  expect_refused(byte_level(), set("tokenizer.ggml.pre", "klingon"), "tokenizer.ggml.pre");
  expect_refused(byte_level(), set("tokenizer.ggml.pre", ""), "tokenizer.ggml.pre");
}

TEST(TokenizerMetadata, every_key_of_a_wrong_type_is_named) {
  for (const char* key :
       {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type", "tokenizer.ggml.merges", "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id", "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id",
        "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
        "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.remove_extra_whitespaces"}) {
    expect_refused(byte_level(), [&](gguf::Metadata& m) { m.set_f32(key, 1.5f); }, key);
  }
  for (const char* key : {"tokenizer.ggml.scores", "tokenizer.ggml.token_type"}) {
    expect_refused(
        sentencepiece(), [&](gguf::Metadata& m) { m.set_string_array(key, {"a"}); }, key);
  }
}

TEST(TokenizerMetadata, an_empty_vocabulary_is_refused) {
  expect_refused(byte_level(), edit("tokenizer.ggml.tokens", [](auto& t) { t.clear(); }),
                 "tokenizer.ggml.tokens");
  expect_refused(sentencepiece(), edit("tokenizer.ggml.tokens", [](auto& t) { t.clear(); }),
                 "tokenizer.ggml.tokens");
}

TEST(TokenizerMetadata, arrays_of_another_length_are_named) {
  for (const int step : {-1, 1}) {
    const auto resize = [step](auto values) {
      values.resize(values.size() + static_cast<size_t>(step), values.back());
      return values;
    };
    for (const auto& metadata : {byte_level(), sentencepiece()}) {
      expect_refused(
          metadata,
          [&](gguf::Metadata& m) {
            m.set_i32_array("tokenizer.ggml.token_type",
                            resize(m.get_ints("tokenizer.ggml.token_type")));
          },
          "tokenizer.ggml.token_type");
    }
    expect_refused(
        sentencepiece(),
        [&](gguf::Metadata& m) {
          m.set_f32_array("tokenizer.ggml.scores", resize(m.get_floats("tokenizer.ggml.scores")));
        },
        "tokenizer.ggml.scores");
  }
}

TEST(TokenizerMetadata, token_types_that_do_not_exist_are_refused) {
  for (const int64_t type : {-1, 7, 1000}) {
    expect_refused(
        byte_level(),
        [&](gguf::Metadata& m) {
          auto types = m.get_ints("tokenizer.ggml.token_type");
          types[5] = type;
          m.set_i32_array("tokenizer.ggml.token_type", types);
        },
        "tokenizer.ggml.token_type");
  }
}

TEST(TokenizerMetadata, scores_that_are_not_finite_are_refused) {
  for (const double score :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    expect_refused(
        sentencepiece(),
        [&](gguf::Metadata& m) {
          auto scores = m.get_floats("tokenizer.ggml.scores");
          scores[5] = score;
          m.set_f32_array("tokenizer.ggml.scores", scores);
        },
        "tokenizer.ggml.scores");
  }
}

TEST(TokenizerMetadata, malformed_merges_and_merges_of_unknown_tokens_are_refused) {
  for (const char* merge : {"ab", "", " ", "a ", " b", "a  b", "zz a", "a zz", "a c"}) {
    SCOPED_TRACE(merge);
    expect_refused(byte_level(),
                   edit("tokenizer.ggml.merges", [&](auto& merges) { merges.emplace_back(merge); }),
                   "tokenizer.ggml.merges");
  }
}

TEST(TokenizerMetadata, ids_outside_the_vocabulary_are_refused) {
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                          "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    for (const uint32_t id : {258u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
      expect_refused(byte_level(), [&](gguf::Metadata& m) { m.set_u32(key, id); }, key);
    }
  }
}

TEST(TokenizerMetadata, adding_a_token_that_has_no_id_is_refused) {
  expect_refused(
      byte_level(), [](gguf::Metadata& m) { m.set_bool("tokenizer.ggml.add_bos_token", true); },
      "tokenizer.ggml.bos_token_id");
  expect_refused(
      byte_level(), [](gguf::Metadata& m) { m.set_bool("tokenizer.ggml.add_eos_token", true); },
      "tokenizer.ggml.eos_token_id");
}

TEST(TokenizerMetadata, byte_tokens_need_two_hex_digits) {
  for (const char* text : {"<0xG0>", "<0x4>", "<0x041>", "0x41", "<0x-1>", "<0x 1>", ""}) {
    SCOPED_TRACE(text);
    expect_refused(sentencepiece(), edit("tokenizer.ggml.tokens", [&](auto& t) { t[10] = text; }),
                   "tokenizer.ggml.tokens");
  }
}

TEST(TokenizerMetadata, a_text_must_be_encodable_with_bytes_or_an_unknown_token) {
  expect_refused(
      sentencepiece(),
      [](gguf::Metadata& m) {
        auto types = m.get_ints("tokenizer.ggml.token_type");
        types[0] = test::normal;
        types[10] = test::normal;
        m.set_i32_array("tokenizer.ggml.token_type", types);
      },
      "tokenizer.ggml.unknown_token_id");
}

TEST(TokenizerMetadata, collapsing_of_white_space_is_refused_by_name) {
  expect_refused(
      sentencepiece(),
      [](gguf::Metadata& m) { m.set_bool("tokenizer.ggml.remove_extra_whitespaces", true); },
      "tokenizer.ggml.remove_extra_whitespaces");
}

TEST(TokenizerMetadata, of_equal_texts_the_lowest_id_counts) {
  auto builder = test::byte_level_builder();
  builder.add("a");
  const TokenId control = builder.add("<c>", test::control);
  builder.add("<c>", test::control);
  const auto tokenizer = Tokenizer::from_metadata(test::byte_level_metadata(builder));
  EXPECT_EQ(tokenizer.find("a"), 'a');
  EXPECT_EQ(tokenizer.find("<c>"), control);
  EXPECT_THAT(tokenizer.encode("a<c>", {.add_special = false, .parse_special = true}),
              testing::ElementsAre('a', control));
}

TEST(TokenizerMetadata, empty_texts_are_never_found) {
  for (const int64_t type : {test::normal, test::control, test::user_defined, test::unknown}) {
    auto builder = test::byte_level_builder();
    const TokenId empty = builder.add("", type);
    const auto tokenizer = Tokenizer::from_metadata(test::byte_level_metadata(builder));
    EXPECT_THAT(tokenizer.encode("ab", {.add_special = false, .parse_special = true}),
                testing::ElementsAre('a', 'b'));
    EXPECT_FALSE(tokenizer.find("").has_value());
    EXPECT_EQ(tokenizer.decode({empty}, true), "");
  }
}

TEST(TokenizerMetadata, a_byte_without_a_token_is_left_out) {
  test::VocabularyBuilder builder;
  builder.add("a");
  const auto tokenizer = Tokenizer::from_metadata(test::byte_level_metadata(builder));
  EXPECT_THAT(tokenizer.encode("abcba", {}), testing::ElementsAre(0, 0));
  EXPECT_THAT(tokenizer.encode("bcb", {}), testing::ElementsAre());
}

TEST(TokenizerMetadata, absent_types_mean_ordinary_tokens_and_absent_pre_means_default) {
  auto metadata = without(byte_level(), "tokenizer.ggml.token_type");
  metadata = without(metadata, "tokenizer.ggml.pre");
  const auto tokenizer = Tokenizer::from_metadata(metadata);
  EXPECT_FALSE(tokenizer.is_control(257));
  EXPECT_THAT(tokenizer.encode("ab", {}), testing::ElementsAre(256));
}

}  // namespace
}  // namespace quern
