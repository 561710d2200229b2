#include "models/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/error.h"
#include "models/tokenizer/pre_tokenizer.h"
#include "models/tokenizer/utf8.h"
#include "tests/models/tokenizer_vocabularies.h"

namespace quern {
namespace {

using testing::ElementsAre;
using Ids = std::vector<TokenId>;

constexpr Tokenizer::EncodeOptions plain{.add_special = false, .parse_special = false};
constexpr Tokenizer::EncodeOptions markup{.add_special = false, .parse_special = true};

std::vector<std::string> pieces_of(std::string_view pre, std::string_view text) {
  const PreTokenizerRow* row = find_pre_tokenizer(pre);
  if (row == nullptr) throw std::runtime_error("no such pre-tokeniser");
  std::vector<std::string> pieces;
  PreTokenizer(*row).split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

/// Processor time, which other programs of the machine do not lengthen.
double seconds_to_encode(const Tokenizer& tokenizer, std::string_view text) {
  const std::clock_t start = std::clock();
  const Ids ids = tokenizer.encode(text, plain);
  const double taken = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(tokenizer.decode(ids), text);
  return taken;
}

// Pre-tokenisers.

TEST(PreTokenizer, digits_are_grouped_as_each_family_wants) {
  EXPECT_THAT(pieces_of("gpt-2", "a 12345"), ElementsAre("a", " 12345"));
  EXPECT_THAT(pieces_of("llama-bpe", "a 12345"), ElementsAre("a", " ", "123", "45"));
  EXPECT_THAT(pieces_of("qwen2", "a 123"), ElementsAre("a", " ", "1", "2", "3"));
  EXPECT_THAT(pieces_of("smollm", "a 12"), ElementsAre("a", " ", "1", "2"));
  EXPECT_THAT(pieces_of("tekken", "a 12"), ElementsAre("a", " ", "1", "2"));
}

TEST(PreTokenizer, combining_marks_belong_to_words_in_qwen35_alone) {
  const std::string text = "re\u0301su";
  EXPECT_THAT(pieces_of("qwen35", text), ElementsAre(text));
  EXPECT_THAT(pieces_of("qwen2", text), ElementsAre("re", "\u0301su"));
}

TEST(PreTokenizer, contractions_ignore_case_where_the_family_does) {
  EXPECT_THAT(pieces_of("gpt-2", "I'LL we'll"), ElementsAre("I", "'", "LL", " we", "'ll"));
  EXPECT_THAT(pieces_of("llama-bpe", "I'LL we'll"), ElementsAre("I", "'LL", " we", "'ll"));
}

TEST(PreTokenizer, tekken_cuts_where_case_turns) {
  EXPECT_THAT(pieces_of("mistral-nemo", "camelCase HTML/x"),
              ElementsAre("camel", "Case", " HTML", "/x"));
}

TEST(PreTokenizer, line_ends_stay_with_what_the_family_says) {
  EXPECT_THAT(pieces_of("gpt-2", "a\n\n b"), ElementsAre("a", "\n\n", " b"));
  EXPECT_THAT(pieces_of("qwen2", "a!\n\n b"), ElementsAre("a", "!\n\n", " b"));
  EXPECT_THAT(pieces_of("qwen2", "a  \n  b"), ElementsAre("a", "  \n", " ", " b"));
}

TEST(PreTokenizer, white_space_is_unicodes_and_not_pcre2s) {
  // U+180E is no White_Space (PCRE2's \s takes it for some), U+0085 and U+2028 are.
  EXPECT_THAT(pieces_of("gpt-2", "a \u180E"), ElementsAre("a", " \u180E"));
  EXPECT_THAT(pieces_of("gpt-2", "a \u0085\u2028"), ElementsAre("a", " \u0085\u2028"));
}

TEST(PreTokenizer, pieces_join_to_the_text_for_any_bytes) {
  uint32_t state = 7;
  for (const std::string_view pre : {"gpt-2", "llama-bpe", "qwen2", "qwen35", "smollm", "tekken"}) {
    for (int round = 0; round < 50; ++round) {
      std::string text;
      for (int i = 0; i < 200; ++i) {
        state = state * 1664525u + 1013904223u;
        const auto value = static_cast<unsigned char>(state >> 24);
        if (round % 2 == 0) {
          text += static_cast<char>(value);
        } else {
          utf8::append(text, static_cast<char32_t>((state >> 8) % 0x3000));
        }
      }
      const auto pieces = pieces_of(pre, text);
      EXPECT_EQ(std::accumulate(pieces.begin(), pieces.end(), std::string()), text)
          << pre << ", round " << round;
    }
  }
}

TEST(PreTokenizer, bytes_that_are_not_utf8_form_pieces_of_their_own) {
  EXPECT_THAT(pieces_of("gpt-2", "ab\xFF\xFE cd\xE2\x82"),
              ElementsAre("ab", "\xFF\xFE", " cd", "\xE2\x82"));
}

// Byte-level BPE.

TEST(ByteLevelTokenizer, merges_go_by_rank_and_leftmost_first) {
  auto builder = test::byte_level_builder();
  const TokenId bc = builder.merge("b", "c");
  const TokenId ab = builder.merge("a", "b");
  const TokenId aa = builder.merge("a", "a");
  const auto tokenizer = Tokenizer::from_metadata(test::byte_level_metadata(builder));
  EXPECT_THAT(tokenizer.encode("abc", plain), ElementsAre('a', bc));
  EXPECT_THAT(tokenizer.encode("abab", plain), ElementsAre(ab, ab));
  EXPECT_THAT(tokenizer.encode("aaa", plain), ElementsAre(aa, 'a'));
}

TEST(ByteLevelTokenizer, a_listed_twice_merge_keeps_its_first_rank) {
  auto builder = test::byte_level_builder();
  const TokenId ab = builder.merge("a", "b");
  builder.merge("b", "c");
  builder.merges.push_back("a b");
  const auto tokenizer = Tokenizer::from_metadata(test::byte_level_metadata(builder));
  EXPECT_THAT(tokenizer.encode("abc", plain), ElementsAre(ab, 'c'));
}

TEST(ByteLevelTokenizer, whole_words_ignore_merges_for_llama3_alone) {
  auto builder = test::byte_level_builder();
  builder.merge("b", "c");
  const TokenId abc = builder.add("abc");
  const auto llama3 = Tokenizer::from_metadata(test::byte_level_metadata(builder, "llama-bpe"));
  EXPECT_THAT(llama3.encode("abc", plain), ElementsAre(abc));
  const auto gpt2 = Tokenizer::from_metadata(test::byte_level_metadata(builder, "gpt-2"));
  EXPECT_THAT(gpt2.encode("abc", plain), ElementsAre('a', 256));
}

TEST(ByteLevelTokenizer, every_byte_round_trips) {
  const auto tokenizer =
      Tokenizer::from_metadata(test::byte_level_metadata(test::byte_level_builder()));
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  const Ids ids = tokenizer.encode(text, plain);
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_EQ(ids.size(), 256u);
}

TEST(ByteLevelTokenizer, long_words_and_runs_do_not_take_quadratic_time) {
  auto builder = test::byte_level_builder();
  std::string word = "a";
  for (int i = 0; i < 6; ++i) {
    builder.merge(word, word);
    word += word;
  }
  for (const std::string_view pre : {"gpt-2", "llama-bpe", "tekken"}) {
    const auto tokenizer = Tokenizer::from_metadata(test::byte_level_metadata(builder, pre));
    // Quadratic work on these would take minutes.
    for (const char character : {'a', ' ', '\n', 'A', '!', '1', '\xFF'}) {
      EXPECT_LT(seconds_to_encode(tokenizer, std::string(1'000'000, character)), 20)
          << pre << ", character " << int{character};
    }
  }
}

TEST(ByteLevelTokenizer, bos_follows_the_key_and_else_the_family) {
  auto builder = test::byte_level_builder();
  const TokenId bos = builder.add("<bos>", test::control);
  const auto with = [&](std::string_view pre, std::optional<bool> add_bos) {
    auto metadata = test::byte_level_metadata(builder, pre);
    metadata.set_u32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(bos));
    if (add_bos) metadata.set_bool("tokenizer.ggml.add_bos_token", *add_bos);
    const auto tokenizer = Tokenizer::from_metadata(metadata);
    const Ids ids = tokenizer.encode("x", {.add_special = true, .parse_special = false});
    EXPECT_EQ(tokenizer.adds_bos(), ids.size() == 2);
    return ids;
  };
  EXPECT_THAT(with("llama-bpe", {}), ElementsAre(bos, 'x'));
  EXPECT_THAT(with("llama-bpe", false), ElementsAre('x'));
  EXPECT_THAT(with("qwen2", {}), ElementsAre('x'));
  EXPECT_THAT(with("qwen2", true), ElementsAre(bos, 'x'));
}

// SentencePiece-style.

/// "▁", "h", "e", "l", "o" and what they make; prefixed unless `space_prefix` is false.
struct Hello {
  test::VocabularyBuilder builder = test::sentencepiece_builder();
  TokenId space = builder.add("\u2581", test::normal, -100);
  TokenId h = builder.add("h", test::normal, -101);
  TokenId e = builder.add("e", test::normal, -102);
  TokenId l = builder.add("l", test::normal, -103);
  TokenId o = builder.add("o", test::normal, -104);
  TokenId he = builder.add("he", test::normal, -1);
  TokenId ll = builder.add("ll", test::normal, -2);
  TokenId el = builder.add("el", test::normal, -0.5);
  TokenId space_h = builder.add("\u2581h", test::normal, -3);
  TokenId newline = builder.add("\n\n", test::user_defined, -1000);

  Tokenizer make(bool space_prefix = true) {
    auto metadata = test::sentencepiece_metadata(builder);
    metadata.set_bool("tokenizer.ggml.add_space_prefix", space_prefix);
    return Tokenizer::from_metadata(metadata);
  }
};

TEST(SentencePieceTokenizer, the_best_score_merges_first_and_leftmost_among_equals) {
  Hello hello;
  const TokenId oo = hello.builder.add("oo", test::normal, -2);
  const auto tokenizer = hello.make(false);
  EXPECT_THAT(tokenizer.encode("hello", plain), ElementsAre(hello.h, hello.el, hello.l, hello.o));
  EXPECT_THAT(tokenizer.encode("ooo", plain), ElementsAre(oo, hello.o));
  EXPECT_THAT(tokenizer.encode("llooo", plain), ElementsAre(hello.ll, oo, hello.o));
}

TEST(SentencePieceTokenizer, the_space_prefix_comes_before_each_text_and_leaves_with_it) {
  Hello hello;
  const auto tokenizer = hello.make();
  const Ids ids = tokenizer.encode("ho</s>ho", markup);
  EXPECT_THAT(ids, ElementsAre(hello.space_h, hello.o, 2, hello.space_h, hello.o));
  EXPECT_EQ(tokenizer.decode(ids), "hoho");
  EXPECT_EQ(tokenizer.decode(ids, true), "ho</s>ho");
  EXPECT_THAT(hello.make(false).encode("ho ho", plain),
              ElementsAre(hello.h, hello.o, hello.space_h, hello.o));
}

TEST(SentencePieceTokenizer, empty_text_is_bos_alone) {
  const auto tokenizer = Hello().make();
  EXPECT_THAT(tokenizer.encode("", plain), ElementsAre());
  EXPECT_THAT(tokenizer.encode("", {.add_special = true, .parse_special = false}), ElementsAre(1));
}

TEST(SentencePieceTokenizer, unknown_characters_become_their_bytes) {
  Hello hello;
  const auto tokenizer = hello.make(false);
  const Ids ids = tokenizer.encode("h\u00E9\xFF", plain);
  EXPECT_THAT(ids, ElementsAre(hello.h, 3 + 0xC3, 3 + 0xA9, 3 + 0xFF));
  EXPECT_EQ(tokenizer.decode(ids), "h\u00E9\xFF");
}

TEST(SentencePieceTokenizer, without_byte_tokens_a_character_becomes_unknown) {
  test::VocabularyBuilder builder;
  builder.add("<unk>", test::unknown);
  const TokenId a = builder.add("a");
  auto metadata = test::sentencepiece_metadata(builder);
  metadata.set_bool("tokenizer.ggml.add_space_prefix", false);
  metadata.set_bool("tokenizer.ggml.add_bos_token", false);
  const auto tokenizer = Tokenizer::from_metadata(metadata);
  EXPECT_THAT(tokenizer.encode("a\u00E9"
                               "a",
                               plain),
              ElementsAre(a, 0, a));
}

TEST(SentencePieceTokenizer, merging_never_makes_control_or_byte_tokens) {
  Hello hello;
  for (const char* text : {"<", "s", ">", "<s", "0", "x", "4", "1", "<0", "<0x", "<0x4", "<0x41"}) {
    hello.builder.add(text, test::normal, -5);
  }
  const auto tokenizer = hello.make(false);
  for (const std::string text : {"<s>", "<0x41>", "<unk>"}) {
    const Ids ids = tokenizer.encode(text, plain);
    for (const TokenId id : ids) EXPECT_FALSE(tokenizer.is_control(id)) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
  EXPECT_THAT(tokenizer.encode("<s>", markup), ElementsAre(1));
}

TEST(SentencePieceTokenizer, user_defined_tokens_are_always_cut_out) {
  Hello hello;
  const auto tokenizer = hello.make(false);
  EXPECT_THAT(tokenizer.encode("h\n\n\nh", plain),
              ElementsAre(hello.h, hello.newline, 3 + '\n', hello.h));
}

TEST(SentencePieceTokenizer, long_words_do_not_take_quadratic_time) {
  Hello hello;
  std::string word = "o";
  for (int i = 0; i < 6; ++i) {
    word += word;
    hello.builder.add(word, test::normal, -i);
  }
  const auto tokenizer = hello.make();
  for (const char character : {'o', 'h', ' ', '!'}) {
    EXPECT_LT(seconds_to_encode(tokenizer, std::string(1'000'000, character)), 20)
        << "character " << character;
  }
}

// Special tokens.

struct Special {
  test::VocabularyBuilder builder = test::byte_level_builder();
  TokenId end = builder.add("<|end|>", test::control);
  TokenId end_of = builder.add("<|end|>of", test::control);
  TokenId tool = builder.add("<tool>", test::user_defined);
  Tokenizer tokenizer = Tokenizer::from_metadata(test::byte_level_metadata(builder));
};

TEST(SpecialTokens, control_tokens_are_parsed_only_when_asked_for) {
  const Special special;
  EXPECT_THAT(special.tokenizer.encode("a<|end|>b", markup), ElementsAre('a', special.end, 'b'));
  const Ids ids = special.tokenizer.encode("a<|end|>b", plain);
  EXPECT_THAT(ids, testing::Not(testing::Contains(special.end)));
  EXPECT_EQ(special.tokenizer.decode(ids), "a<|end|>b");
}

TEST(SpecialTokens, the_longest_of_those_that_begin_at_a_place_wins) {
  const Special special;
  EXPECT_THAT(special.tokenizer.encode("<|end|>of", markup), ElementsAre(special.end_of));
  EXPECT_THAT(special.tokenizer.encode("<|end|>o", markup), ElementsAre(special.end, 'o'));
  EXPECT_THAT(special.tokenizer.encode("<|end<|end|>", markup).back(), special.end);
}

TEST(SpecialTokens, user_defined_tokens_are_parsed_always_and_shown) {
  const Special special;
  const Ids ids = special.tokenizer.encode("x<tool>", plain);
  EXPECT_THAT(ids, ElementsAre('x', special.tool));
  EXPECT_EQ(special.tokenizer.decode(ids), "x<tool>");
}

TEST(SpecialTokens, pieces_encode_as_one_text_with_control_tokens_where_allowed) {
  const Special special;
  const std::vector<Tokenizer::Piece> pieces = {
      {"<|end|>", true}, {"<|end|><to", false}, {"ol>", false}, {"<|end", true}, {"|>", false}};
  const Ids ids = special.tokenizer.encode_pieces(pieces, false);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), special.end), 1);
  EXPECT_EQ(ids.front(), special.end);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), special.tool), 1);
  EXPECT_EQ(special.tokenizer.decode(ids, true), "<|end|><|end|><tool><|end|>");
}

TEST(SpecialTokens, a_control_token_does_not_reach_into_text_that_forbids_it) {
  const Special special;
  const auto encode = [&](std::string_view allowed, std::string_view forbidden) {
    const std::vector<Tokenizer::Piece> pieces = {{allowed, true}, {forbidden, false}};
    return special.tokenizer.encode_pieces(pieces, false);
  };
  EXPECT_THAT(encode("<|end|>", "of"), ElementsAre(special.end, 'o', 'f'));
  EXPECT_THAT(encode("<|end|>o", "f"), ElementsAre(special.end, 'o', 'f'));
  EXPECT_THAT(encode("<|end|>of", ""), ElementsAre(special.end_of));
  EXPECT_THAT(encode("<|end|", ">"), testing::Not(testing::Contains(special.end)));
}

TEST(SpecialTokens, merges_cross_from_piece_to_piece) {
  auto builder = test::byte_level_builder();
  const TokenId ab = builder.merge("a", "b");
  const auto tokenizer = Tokenizer::from_metadata(test::byte_level_metadata(builder));
  const std::vector<Tokenizer::Piece> pieces = {{"a", true}, {"b", false}};
  EXPECT_THAT(tokenizer.encode_pieces(pieces, false), ElementsAre(ab));
}

// End of generation.

TEST(EndOfGeneration, holds_eos_eot_eom_and_known_end_of_turn_tokens) {
  auto builder = test::byte_level_builder();
  const TokenId eos = builder.add("<eos>", test::control);
  const TokenId eot = builder.add("<eot>", test::control);
  const TokenId eom = builder.add("<eom>", test::control);
  const TokenId im_end = builder.add("<|im_end|>", test::user_defined);
  const TokenId end_of_turn = builder.add("<end_of_turn>", test::control);
  const TokenId eot_id = builder.add("<|eot_id|>", test::normal);
  const TokenId html = builder.add("</s>", test::user_defined);
  auto metadata = test::byte_level_metadata(builder);
  metadata.set_u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(eos));
  metadata.set_u32("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(eot));
  metadata.set_u32("tokenizer.ggml.eom_token_id", static_cast<uint32_t>(eom));
  const auto tokenizer = Tokenizer::from_metadata(metadata);
  EXPECT_THAT(tokenizer.end_of_generation(), ElementsAre(eos, eot, eom, im_end, end_of_turn));
  EXPECT_THAT(tokenizer.end_of_generation(),
              testing::Not(testing::AnyOf(testing::Contains(eot_id), testing::Contains(html))));
}

TEST(Tokenizer, without_a_vocabulary_text_is_refused_and_ids_stay) {
  gguf::Metadata metadata;
  metadata.set_string("tokenizer.ggml.model", "none");
  const auto tokenizer = Tokenizer::from_metadata(metadata);
  EXPECT_FALSE(tokenizer.has_text());
  EXPECT_EQ(tokenizer.vocabulary_size(), 0u);
  EXPECT_TRUE(tokenizer.end_of_generation().empty());
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { tokenizer.encode("a", plain); }, [&] { tokenizer.decode({1}); },
           [&] { tokenizer.encode_pieces({}, false); }, [&] { tokenizer.token_bytes(1); },
           [&] { tokenizer.is_control(0); }}) {
    try {
      use();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
    }
  }
}

TEST(Tokenizer, ids_outside_the_vocabulary_are_a_usage_error) {
  const Special special;
  for (const TokenId id : {-1, 259, 1'000'000}) {
    EXPECT_THROW(special.tokenizer.decode({id}), Error) << id;
    EXPECT_THROW(special.tokenizer.token_bytes(id), Error) << id;
    EXPECT_THROW(special.tokenizer.is_control(id), Error) << id;
    EXPECT_THROW(StreamDecoder(special.tokenizer).push(id), Error) << id;
  }
}

}  // namespace
}  // namespace quern
