#include "models/chat/chat_template.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "models/chat/families.h"
#include "models/chat/template_text.h"
#include "models/error.h"

namespace quern {
namespace {

constexpr std::string_view template_key = "tokenizer.chat_template";
constexpr std::string_view remedy = "pass the prompt without --chat";

/// The text of the token that `key` names, or nothing where the key is absent.
std::string token_text(const gguf::Metadata& metadata, std::string_view key) {
  if (!metadata.has(key)) return {};
  const std::vector<std::string>& tokens = metadata.get_strings("tokenizer.ggml.tokens");
  const uint64_t id = metadata.get_uint(key);
  if (id >= tokens.size()) {
    throw Error(ErrorKind::bad_model, key,
                fmt::format("token {} lies outside the vocabulary of {}", id, tokens.size()),
                "convert the model again");
  }
  return tokens[id];
}

[[noreturn]] void fail_messages(std::string_view reason) {
  throw Error(ErrorKind::usage, "chat messages", reason,
              "give an optional system message, then user and assistant in turn, user last");
}

/// Checks the roles' order.
Conversation check(const std::vector<ChatMessage>& messages) {
  Conversation conversation{nullptr, messages};
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      fail_messages(fmt::format("role \"{}\" is not known", message.role));
    }
  }
  if (!messages.empty() && messages[0].role == "system") {
    conversation.system = &messages[0];
    conversation.turns = conversation.turns.subspan(1);
  }
  if (conversation.turns.empty()) fail_messages("there is no user message");
  for (size_t i = 0; i < conversation.turns.size(); ++i) {
    const std::string_view role = conversation.turns[i].role;
    const std::string_view wanted = i % 2 == 0 ? "user" : "assistant";
    if (role != wanted) {
      fail_messages(
          fmt::format("a message of role \"{}\" stands where the {}'s turn is", role, wanted));
    }
  }
  if (conversation.turns.size() % 2 == 0) fail_messages("the last message is not a user's");
  return conversation;
}

}  // namespace

struct ChatTemplate::Impl {
  const ChatFamily* family;
  ChatStyle style;
};

ChatTemplate ChatTemplate::from_metadata(const gguf::Metadata& metadata) {
  if (!metadata.has(template_key)) {
    throw Error(ErrorKind::bad_model, template_key, "the model has no chat template", remedy);
  }
  const TemplateText text(metadata.get_string(template_key));
  for (const ChatFamily& family : chat_families()) {
    if (!family.matches(text)) continue;
    ChatStyle style;
    if (!family.read(text, style)) break;
    if (text.contains("eos_token")) style.eos = token_text(metadata, "tokenizer.ggml.eos_token_id");
    if (text.contains("bos_token")) {
      style.bos = token_text(metadata, "tokenizer.ggml.bos_token_id");
    } else if (text.squeezed_contains("{{eos_token}}{%for")) {
      // OLMo has no BOS; its chats begin with EOS.
      style.bos = style.eos;
    }
    return ChatTemplate(std::make_shared<const Impl>(Impl{&family, std::move(style)}));
  }
  throw Error(ErrorKind::bad_model, template_key,
              "the model's chat template is of no family that is known", remedy);
}

std::vector<ChatPiece> ChatTemplate::pieces(const std::vector<ChatMessage>& messages) const {
  PieceWriter out;
  impl_->family->write(impl_->style, check(messages), out);
  return out.take();
}

std::string ChatTemplate::apply(const std::vector<ChatMessage>& messages) const {
  std::string text;
  for (const ChatPiece& piece : pieces(messages)) text += piece.text;
  return text;
}

std::string_view ChatTemplate::family() const {
  return impl_->family->name;
}
bool ChatTemplate::writes_bos() const {
  return !impl_->style.bos.empty();
}

std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat,
                                 const std::vector<ChatMessage>& messages) {
  const std::vector<ChatPiece> chat_pieces = chat.pieces(messages);
  std::vector<Tokenizer::Piece> pieces;
  pieces.reserve(chat_pieces.size());
  for (const ChatPiece& piece : chat_pieces) pieces.push_back({piece.text, piece.is_markup});
  std::vector<TokenId> ids = tokenizer.encode_pieces(pieces, false);
  const std::optional<TokenId> bos = tokenizer.bos();
  if (bos && tokenizer.adds_bos() && !chat.writes_bos()) ids.insert(ids.begin(), *bos);
  return ids;
}

}  // namespace quern
