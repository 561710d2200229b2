#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/gguf/metadata.h"

namespace quern {

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant".
  std::string content;
};

/// The chat format of a model. Known families are recognised from `tokenizer.chat_template`
/// (ChatML and its default-system variants, Llama 2, Llama 3, Mistral, Gemma, OLMo/Tulu, Qwen 2/3,
/// SmolLM2); a template of none of them is an error that says so.
class ChatTemplate {
 public:
  /// Throws Error (`bad_model`) where the file has no template or one of no known family.
  static ChatTemplate from_metadata(const gguf::Metadata& metadata);

  /// The prompt for these messages, ending where the assistant's answer begins. The text contains
  /// control tokens by name: encode it with `parse_special`.
  std::string apply(const std::vector<ChatMessage>& messages) const;
  std::string_view family() const { return family_; }
  /// True where the rendered text already starts with BOS, so that encode must not add it.
  bool writes_bos() const { return writes_bos_; }

 private:
  std::string family_;
  std::string default_system_;
  bool writes_bos_ = false;
};

}  // namespace quern
