#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/chat/chat_template.h"
#include "models/chat/template_text.h"

namespace quern {

/// What a model's own template decides within its family.
struct ChatStyle {
  std::string bos;             ///< BOS as text, where the template writes it.
  std::string eos;             ///< EOS as text, where the template ends answers with it.
  std::string default_system;  ///< The system message where the caller gives none.
  std::string preamble;        ///< Text that always opens the system turn.
  std::string user_open;       ///< What stands before and after a user's message, where the
  std::string user_close;      ///<   family has variants.
  std::string answer_open;     ///< What stands before and after an earlier answer, likewise.
  std::string answer_close;
  std::string generation;  ///< What follows the opening of the answer to be generated.
  bool trims_content = false;
  bool trims_answers = false;    ///< Answers alone.
  bool strips_thinking = false;  ///< Earlier answers lose what stands up to "</think>".
  bool system_in_last = false;   ///< The system message goes into the last user turn.
};

/// Collects pieces; neighbours of one kind become one.
class PieceWriter {
 public:
  PieceWriter& markup(std::string_view text) { return put(text, true); }
  PieceWriter& content(std::string_view text) { return put(text, false); }
  std::vector<ChatPiece> take() { return std::move(pieces_); }

 private:
  PieceWriter& put(std::string_view text, bool is_markup);
  std::vector<ChatPiece> pieces_;
};

/// The messages after the checks of ChatTemplate::pieces: an optional system message, then users
/// and answers in turn, a user's last.
struct Conversation {
  const ChatMessage* system = nullptr;
  std::span<const ChatMessage> turns;
};

/// One family of chat formats.
struct ChatFamily {
  std::string_view name;
  bool (*matches)(const TemplateText& text);
  /// Reads the style; false where the template departs from its family in a way that is not known.
  bool (*read)(const TemplateText& text, ChatStyle& style);
  void (*write)(const ChatStyle& style, const Conversation& conversation, PieceWriter& out);
};

/// All families; the first that matches counts.
std::span<const ChatFamily> chat_families();

}  // namespace quern
