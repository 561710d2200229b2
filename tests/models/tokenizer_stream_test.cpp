#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/utf8.h"
#include "tests/models/tokenizer_vocabularies.h"

namespace quern {
namespace {

TEST(Utf8, ill_formed_parts_are_replaced_by_maximal_subparts) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(utf8::sanitize("a\u00E9\u20AC\U0001F999"), "a\u00E9\u20AC\U0001F999");
  EXPECT_EQ(utf8::sanitize("\xFFz"), r + "z");
  EXPECT_EQ(utf8::sanitize("\xE2\x82z"), r + "z");
  EXPECT_EQ(utf8::sanitize("\xE2\x82"), r);
  EXPECT_EQ(utf8::sanitize("\xF0\x9F\xA6"), r);
  EXPECT_EQ(utf8::sanitize("\xC0\xAF"), r + r);                  // Overlong.
  EXPECT_EQ(utf8::sanitize("\xE0\x80\x80"), r + r + r);          // Overlong.
  EXPECT_EQ(utf8::sanitize("\xED\xA0\x80"), r + r + r);          // A surrogate.
  EXPECT_EQ(utf8::sanitize("\xF4\x90\x80\x80"), r + r + r + r);  // Above U+10FFFF.
  EXPECT_EQ(utf8::sanitize("\xF1\x80\x80"
                           "a\x80"),
            r + "a" + r);
}

TEST(StreamDecoder, a_character_comes_out_when_its_last_byte_came_in) {
  const auto tokenizer =
      Tokenizer::from_metadata(test::byte_level_metadata(test::byte_level_builder()));
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push(0xA6), "");
  EXPECT_EQ(decoder.push(0x99), "\U0001F999");
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push('b'),
            "\uFFFD"
            "b");
  EXPECT_EQ(decoder.push(0xE2), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(StreamDecoder, the_first_space_of_a_sentencepiece_text_goes_and_others_stay) {
  auto builder = test::sentencepiece_builder();
  const TokenId hello = builder.add("\u2581hello");
  const auto tokenizer = Tokenizer::from_metadata(test::sentencepiece_metadata(builder));
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(1), "");
  EXPECT_EQ(decoder.push(hello), "hello");
  EXPECT_EQ(decoder.push(hello), " hello");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push(hello), "hello") << "finish() begins a new text";
}

/// Every kind of token, texts that are and are not UTF-8 by themselves.
std::vector<Tokenizer> sample_tokenizers() {
  std::vector<Tokenizer> tokenizers;
  auto bytes = test::byte_level_builder();
  bytes.add(test::byte_character(0xF0) + test::byte_character(0x9F));
  bytes.add(test::byte_character(' ') + "a" + test::byte_character(0xE2));
  bytes.add("<|im_end|>", test::control);
  bytes.add("<t\u00E9>", test::user_defined);
  bytes.add("");
  bytes.add("\u4E2D\xE2");  // Characters outside the byte alphabet, and a broken end.
  tokenizers.push_back(Tokenizer::from_metadata(test::byte_level_metadata(bytes)));
  for (const bool prefix : {true, false}) {
    auto pieces = test::sentencepiece_builder();
    pieces.add("\u2581");
    pieces.add("\u2581\u2581a");
    pieces.add("\u2581\xF0\x9F");
    pieces.add("\n\n", test::user_defined);
    pieces.add("<unused>", test::unused);
    auto metadata = test::sentencepiece_metadata(pieces);
    metadata.set_bool("tokenizer.ggml.add_space_prefix", prefix);
    tokenizers.push_back(Tokenizer::from_metadata(metadata));
  }
  return tokenizers;
}

TEST(StreamDecoder, pushed_parts_join_to_the_decoded_whole_for_any_ids) {
  constexpr unsigned seed = 20240607;
  std::mt19937 random(seed);
  for (const Tokenizer& tokenizer : sample_tokenizers()) {
    const auto size = static_cast<unsigned>(tokenizer.vocabulary_size());
    for (int round = 0; round < 2000; ++round) {
      std::vector<TokenId> ids(random() % 20);
      for (TokenId& id : ids) {
        // Bytes above ASCII and the last tokens, which are the ones that make trouble.
        const unsigned pick = random() % 3 == 0 ? size - 1 - random() % 8 : random() % size;
        id = static_cast<TokenId>(pick);
      }
      StreamDecoder decoder(tokenizer);
      std::string text;
      for (const TokenId id : ids) {
        const std::string part = decoder.push(id);
        EXPECT_EQ(utf8::valid_prefix(part), part.size()) << "part of a character came out";
        text += part;
      }
      text += decoder.finish();
      ASSERT_EQ(text, utf8::sanitize(tokenizer.decode(ids)))
          << "seed " << seed << ", round " << round;
    }
  }
}

}  // namespace
}  // namespace quern
