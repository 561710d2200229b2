#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/metadata.h"
#include "models/tokenizer/tokenizer.h"

namespace quern {

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant".
  std::string content;
};

/// A part of a rendered chat: the format's own markup, or what a message says.
struct ChatPiece {
  std::string text;
  bool is_markup;
};

/// The chat format of a model. Known families are recognised from `tokenizer.chat_template`
/// (ChatML and its default-system variants as Qwen 2 and SmolLM2 have them, Qwen 3 and 3.5,
/// Llama 2, Llama 3, Mistral, Gemma, Zephyr, OLMo/Tulu); a template of none of them is an error
/// that says so.
class ChatTemplate {
 public:
  /// Throws Error (`bad_model`) where the file has no template or one of no known family.
  static ChatTemplate from_metadata(const gguf::Metadata& metadata);

  /// The prompt for these messages, ending where the assistant's answer begins. Messages are an
  /// optional system message, then user and assistant in turn, the last one a user's: anything else
  /// is an Error (`usage`).
  std::vector<ChatPiece> pieces(const std::vector<ChatMessage>& messages) const;
  /// The pieces as one text. It contains control tokens by name, to be encoded with
  /// `parse_special`; control tokens that a message names become real ones then, which a message
  /// from elsewhere must not be allowed: encode_chat() keeps them text.
  std::string apply(const std::vector<ChatMessage>& messages) const;

  std::string_view family() const;
  /// True where the rendered text already starts with BOS, so that encode must not add it.
  bool writes_bos() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// The ids of a chat, with one BOS where the model wants it and no EOS. Control tokens are
/// recognised in the template's markup alone; apart from those the ids are the ones of apply()'s
/// text, since merges cross from piece to piece.
std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                 const std::vector<ChatMessage>& messages);

}  // namespace quern
