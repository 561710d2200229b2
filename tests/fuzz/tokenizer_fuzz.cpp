// Feeds arbitrary bytes to the tokenizer. The first byte picks what they are: a text for one of the
// fixed vocabularies below, or a GGUF image whose metadata becomes a tokenizer.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.h"
#include "models/gguf/file.h"
#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/utf8.h"
#include "tests/fuzz/fuzz.h"
#include "tests/models/tokenizer_vocabularies.h"

namespace quern::fuzz {
namespace {

using Ids = std::vector<TokenId>;

gguf::Metadata byte_level(std::string_view pre) {
  auto builder = test::byte_level_builder();
  const std::string space = test::byte_character(' ');
  const std::string newline = test::byte_character('\n');
  builder.merge("h", "e");
  builder.merge("l", "l");
  builder.merge("he", "ll");
  builder.merge("hell", "o");
  builder.merge(space, "t");
  builder.merge(space + "t", "he");
  builder.merge(space, space);
  builder.merge(newline, newline);
  builder.merge("1", "2");
  builder.merge("a", "a");
  builder.merge("aa", "aa");
  builder.merge(test::byte_character(0xc3), test::byte_character(0xa9));
  builder.add("<|im_start|>", test::control);
  builder.add("<|im_end|>", test::control);
  builder.add("<think>", test::user_defined);
  builder.add("<thinking>", test::user_defined);
  return test::byte_level_metadata(builder, pre);
}

gguf::Metadata sentencepiece(bool space_before) {
  auto builder = test::sentencepiece_builder();
  const std::string space = "\u2581";
  double score = 0;
  for (const char* piece : {"h", "e", "l", "o", "he", "ll", "hell", "hello", "t", "th", "the", "a",
                            "aa", "aaaa", "\u00e9", "1", "2"}) {
    builder.add(piece, test::normal, score -= 1);
  }
  builder.add(space, test::normal, score -= 1);
  builder.add(space + "the", test::normal, score -= 1);
  builder.add(space + space, test::normal, score -= 1);
  builder.add("<start_of_turn>", test::control);
  builder.add("[multi word]", test::user_defined);
  auto metadata = test::sentencepiece_metadata(builder);
  metadata.set_bool("tokenizer.ggml.add_space_prefix", space_before);
  return metadata;
}

const std::vector<Tokenizer>& fixed_tokenizers() {
  static const std::vector<Tokenizer> tokenizers = [] {
    std::vector<Tokenizer> made;
    for (const char* pre : {"gpt-2", "llama-bpe", "qwen2", "qwen35", "smollm", "tekken"}) {
      made.push_back(Tokenizer::from_metadata(byte_level(pre)));
    }
    for (const bool space_before : {false, true}) {
      made.push_back(Tokenizer::from_metadata(sentencepiece(space_before)));
    }
    return made;
  }();
  return tokenizers;
}
constexpr size_t kByteLevelTokenizers = 6;

/// Ids of any tokenizer lie in its vocabulary and decode, at once and as a stream, to the same.
void use_ids(const Tokenizer& tokenizer, const Ids& ids) {
  for (const TokenId id : ids) {
    require(id >= 0 && static_cast<size_t>(id) < tokenizer.vocabulary_size(),
            "ids lie in the vocabulary");
    tokenizer.token_bytes(id, true);
    tokenizer.is_control(id);
  }
  tokenizer.decode(ids, true);
  StreamDecoder stream(tokenizer);
  std::string streamed;
  for (const TokenId id : ids) {
    const std::string text = stream.push(id);
    require(utf8::valid_prefix(text) == text.size(), "streamed text is UTF-8");
    streamed += text;
  }
  streamed += stream.finish();
  require(streamed == utf8::sanitize(tokenizer.decode(ids)), "a stream joins to the whole text");
}

void fuzz_text(size_t which, std::string_view text) {
  const Tokenizer& tokenizer = fixed_tokenizers()[which];
  const Ids plain = tokenizer.encode(text, {.add_special = false, .parse_special = false});
  use_ids(tokenizer, plain);
  const std::string decoded = tokenizer.decode(plain);
  if (which < kByteLevelTokenizers) {
    require(decoded == text, "byte-level text survives encoding");
  } else {
    // SentencePiece writes spaces as U+2581 and cannot tell the two apart.
    constexpr std::string_view kMark = "\u2581";
    std::string expected;
    for (std::string_view rest = text; !rest.empty();) {
      const bool mark = rest.starts_with(kMark);
      expected.push_back(mark ? ' ' : rest[0]);
      rest.remove_prefix(mark ? kMark.size() : 1);
    }
    require(decoded == expected, "SentencePiece text survives encoding");
  }
  use_ids(tokenizer, tokenizer.encode(text, {.add_special = true, .parse_special = true}));
  const size_t middle = text.size() / 2;
  const std::vector<Tokenizer::Piece> pieces = {{.text = text.substr(0, middle)},
                                                {.text = text.substr(middle)}};
  require(tokenizer.encode_pieces(pieces, false) == plain, "pieces encode as their joined text");
}

void fuzz_vocabulary(std::span<const std::byte> image) {
  try {
    const gguf::File file = gguf::File::parse(image, "fuzzed", gguf::TensorTypes::any);
    const Tokenizer tokenizer = Tokenizer::from_metadata(file.metadata());
    for (const TokenId id : tokenizer.end_of_generation()) tokenizer.token_bytes(id);
    if (!tokenizer.has_text()) return;
    for (const std::string_view text :
         {"", " ", "hello the 12 <|im_start|> \u00e9\u2581\n\n", "\xff\xc3 aaaa"}) {
      for (const bool special : {false, true}) {
        use_ids(tokenizer, tokenizer.encode(text, {special, special}));
      }
    }
    Ids all;
    for (size_t id = 0; id < std::min<size_t>(tokenizer.vocabulary_size(), 300); ++id) {
      all.push_back(static_cast<TokenId>(id));
    }
    use_ids(tokenizer, all);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::bad_model, "a vocabulary is refused as a bad_model");
  }
}

}  // namespace
}  // namespace quern::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quern::fuzz;
  if (size == 0) return 0;
  const size_t which = data[0] % (fixed_tokenizers().size() + 1);
  const auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  if (which == fixed_tokenizers().size()) {
    fuzz_vocabulary(rest);
  } else {
    fuzz_text(which, {reinterpret_cast<const char*>(rest.data()), rest.size()});
  }
  return 0;
}
