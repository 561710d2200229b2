#include "models/tokenizer/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>
#include <spdlog/spdlog.h>

#include <array>
#include <limits>

#include "models/error.h"
#include "models/tokenizer/utf8.h"

namespace quern {
namespace {

// The patterns are those that the models were trained with, as their publishers give them.

constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// cl100k with the contractions' case ignored: numbers in groups of three.
constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// As llama3, single digits.
constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// As qwen2, combining marks belong to words.
constexpr std::string_view qwen35_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Words are cut where lower case turns to upper case.
constexpr std::string_view tekken_pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view single_digit_pattern = R"(\p{N})";

const std::vector<PreTokenizerRow>& rows() {
  static const std::vector<PreTokenizerRow> table = {
      {.name = "default", .patterns = {gpt2_pattern}},
      {.name = "gpt-2", .patterns = {gpt2_pattern}},
      {.name = "phi-2", .patterns = {gpt2_pattern}},
      {.name = "olmo", .patterns = {gpt2_pattern}},
      {.name = "smollm", .patterns = {single_digit_pattern, gpt2_pattern}},
      {.name = "starcoder", .patterns = {single_digit_pattern, gpt2_pattern}},
      {.name = "llama-bpe", .patterns = {llama3_pattern}, .ignore_merges = true, .add_bos = true},
      {.name = "llama3", .patterns = {llama3_pattern}, .ignore_merges = true, .add_bos = true},
      {.name = "llama-v3", .patterns = {llama3_pattern}, .ignore_merges = true, .add_bos = true},
      {.name = "dbrx", .patterns = {llama3_pattern}},
      {.name = "smaug-bpe", .patterns = {llama3_pattern}},
      {.name = "qwen2", .patterns = {qwen2_pattern}},
      {.name = "deepseek-r1-qwen", .patterns = {qwen2_pattern}},
      {.name = "qwen35", .patterns = {qwen35_pattern}},
      {.name = "tekken", .patterns = {tekken_pattern}, .ignore_merges = true, .add_bos = true},
      {.name = "mistral-nemo",
       .patterns = {tekken_pattern},
       .ignore_merges = true,
       .add_bos = true},
  };
  return table;
}

/// PCRE2's \s holds U+180E besides Unicode's White_Space, which is what the models' own engines
/// take it for: the pattern with that written out.
std::string with_white_space(std::string_view pattern) {
  constexpr std::string_view white_space = R"(\p{Z}\t-\r\x{85})";
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      if (pattern[i] == '[' || pattern[i] == ']') in_class = pattern[i] == '[';
      result += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's' && in_class) {
      result += white_space;
    } else if (escaped == 's' || escaped == 'S') {
      result += fmt::format("[{}{}]", escaped == 'S' ? "^" : "", white_space);
    } else {
      result += {'\\', escaped};
    }
  }
  return result;
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

template <auto function>
struct Free {
  template <typename T>
  void operator()(T* pointer) const {
    function(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;

}  // namespace

const PreTokenizerRow* find_pre_tokenizer(std::string_view name) {
  for (const PreTokenizerRow& row : rows()) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

/// One compiled pattern.
struct PreTokenizer::Stage {
  Code code;
  MatchContext context;

  explicit Stage(std::string_view published) {
    const std::string pattern = with_white_space(published);
    int error = 0;
    PCRE2_SIZE offset = 0;
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
    if (!code) {
      throw Error(ErrorKind::failed, "pre-tokeniser",
                  fmt::format("PCRE2 refuses its pattern: {}", pcre2_message(error)),
                  "use a PCRE2 built with Unicode support");
    }
    if (pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE) != 0) {
      spdlog::debug("pre-tokeniser: PCRE2 has no JIT here, patterns are interpreted");
    }
    context.reset(pcre2_match_context_create(nullptr));
    if (!context) throw std::bad_alloc();
    // The default limits stop a run of white space of some megabytes, which is honest text.
    pcre2_set_match_limit(context.get(), std::numeric_limits<uint32_t>::max());
    pcre2_set_depth_limit(context.get(), std::numeric_limits<uint32_t>::max());
    pcre2_set_heap_limit(context.get(), std::numeric_limits<uint32_t>::max());
  }

  int match(std::string_view text, size_t start, uint32_t options, pcre2_match_data* data) const {
    return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                       options | PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data, context.get());
  }

  /// Appends the ends of the pieces of `text`, which is well-formed UTF-8, shifted by `base`.
  void cut(std::string_view text, size_t base, pcre2_match_data* data,
           std::vector<size_t>& ends) const {
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(data);
    size_t done = 0;
    while (done < text.size()) {
      int found = match(text, done, 0, data);
      // Compiled code has a small fixed stack; the interpreter takes what it needs from the heap.
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(text, done, PCRE2_NO_JIT, data);
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0) {
        throw Error(ErrorKind::failed, "pre-tokeniser",
                    fmt::format("PCRE2 gave up on the text: {}", pcre2_message(found)),
                    "split the text");
      }
      if (span[0] > done) ends.push_back(base + span[0]);
      ends.push_back(base + span[1]);
      done = span[1];
    }
    if (done < text.size()) ends.push_back(base + text.size());
  }
};

PreTokenizer::PreTokenizer(const PreTokenizerRow& row) {
  for (const std::string_view pattern : row.patterns) {
    stages_.push_back(std::make_unique<Stage>(pattern));
  }
}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

void PreTokenizer::split(std::string_view text,
                         const std::function<void(std::string_view)>& piece) const {
  std::vector<size_t> ends;
  std::vector<size_t> finer;
  // No pattern captures, so one pair of offsets serves them all.
  const MatchData data(pcre2_match_data_create(1, nullptr));
  if (!data) throw std::bad_alloc();
  while (!text.empty()) {
    const size_t valid = utf8::valid_prefix(text);
    if (valid > 0) {
      ends.assign(1, valid);
      for (const auto& stage : stages_) {
        finer.clear();
        size_t start = 0;
        for (const size_t end : ends) {
          stage->cut(text.substr(start, end - start), start, data.get(), finer);
          start = end;
        }
        ends.swap(finer);
      }
      size_t start = 0;
      for (const size_t end : ends) {
        piece(text.substr(start, end - start));
        start = end;
      }
      text.remove_prefix(valid);
    }
    size_t broken = 0;
    while (broken < text.size()) {
      const utf8::Step step = utf8::next(text.substr(broken));
      if (step.kind == utf8::Step::Kind::character) break;
      broken += step.length;
    }
    if (broken > 0) {
      piece(text.substr(0, broken));
      text.remove_prefix(broken);
    }
  }
}

}  // namespace quern
