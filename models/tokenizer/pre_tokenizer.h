#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

/// What a name in `tokenizer.ggml.pre` stands for.
struct PreTokenizerRow {
  std::string_view name;
  /// Regular expressions (PCRE2, Unicode), applied one after the other: each cuts the pieces that
  /// the one before left into its matches and what lies between them.
  std::vector<std::string_view> patterns;
  /// A whole piece that is in the vocabulary is that token, whatever the merges say.
  bool ignore_merges = false;
  /// BOS is added where `tokenizer.ggml.add_bos_token` is absent.
  bool add_bos = false;
};

/// The row of a name, or null.
const PreTokenizerRow* find_pre_tokenizer(std::string_view name);

/// Cuts text into the pieces that byte-level BPE merges within.
class PreTokenizer {
 public:
  explicit PreTokenizer(const PreTokenizerRow& row);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// Calls `piece` for consecutive pieces that together are `text`. Bytes that are not UTF-8 form
  /// pieces of their own. Safe to call from several threads.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

 private:
  struct Stage;
  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace quern
