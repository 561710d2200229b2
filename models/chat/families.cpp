#include "models/chat/families.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace quern {
namespace {

bool is_user(const ChatMessage& message) {
  return message.role == "user";
}

/// The content of a turn as the template writes it.
std::string_view content_of(const ChatStyle& style, const ChatMessage& message) {
  std::string_view text = message.content;
  if (style.trims_content || (style.trims_answers && !is_user(message))) text = trimmed(text);
  if (style.strips_thinking && !is_user(message)) {
    constexpr std::string_view end = "</think>";
    const size_t at = text.rfind(end);
    if (at != std::string_view::npos) {
      text.remove_prefix(at + end.size());
      text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
    }
  }
  return text;
}

std::string_view system_of(const ChatStyle& style, const ChatMessage& message) {
  return style.trims_content ? trimmed(message.content) : std::string_view(message.content);
}

bool trims_content(const TemplateText& text) {
  return text.squeezed_contains("content']|trim") || text.squeezed_contains(".content|trim") ||
         text.squeezed_contains("content,true)|trim");
}

// ChatML: <|im_start|>ROLE\n … <|im_end|>\n. Qwen 3 and 3.5 add thinking.

bool matches_chatml(const TemplateText& text) {
  return text.contains("<|im_start|>") && text.contains("<|im_end|>");
}

bool matches_qwen3(const TemplateText& text) {
  return matches_chatml(text) && text.contains("</think>");
}

/// The system message that a template writes by itself: the text of a literal that opens a system
/// turn and closes it.
std::string chatml_default_system(const TemplateText& text) {
  constexpr std::string_view open = "<|im_start|>system\n";
  for (const std::string& literal : text.literals()) {
    const size_t begin = literal.find(open);
    if (begin == std::string::npos) continue;
    const size_t end = literal.find("<|im_end|>", begin + open.size());
    if (end == std::string::npos || end == begin + open.size()) continue;
    return literal.substr(begin + open.size(), end - begin - open.size());
  }
  return text.assigned("system_message");
}

/// What the template writes after "<|im_start|>assistant\n" by default, when nobody sets
/// `enable_thinking`. False where its condition is not one that is understood.
bool read_generation(const TemplateText& text, std::string& generation) {
  constexpr std::string_view open = "<|im_start|>assistant\n";
  const TemplateText tail = text.after_last("add_generation_prompt");
  if (!tail.contains("<think>")) return true;
  if (!tail.contains("enable_thinking")) {
    std::string all;
    for (const std::string& literal : tail.literals()) {
      // Lines between tags are layout.
      if (!trimmed(literal).empty()) all += literal;
    }
    if (!all.starts_with(open)) return false;
    generation = all.substr(open.size());
    return true;
  }
  // A condition that begins with "is defined and" does not hold by default, so that the branch
  // behind "else" is written, or nothing.
  if (!tail.squeezed_contains("ifenable_thinkingisdefinedand")) return false;
  const TemplateText otherwise = tail.after_last("else");
  for (const std::string& literal : otherwise.literals()) {
    if (!trimmed(literal).empty()) generation += literal;
  }
  return true;
}

bool read_chatml(const TemplateText& text, ChatStyle& style) {
  // Phi-4's separator, and templates that write dates or modes of their own.
  for (const std::string_view stranger : {"<|im_sep|>", "strftime_now", "reasoning_mode"}) {
    if (text.contains(stranger)) return false;
  }
  style.default_system = chatml_default_system(text);
  style.trims_content = trims_content(text);
  style.strips_thinking = text.squeezed_contains("split('</think>')");
  return read_generation(text, style.generation);
}

void write_chatml(const ChatStyle& style, const Conversation& conversation, PieceWriter& out) {
  out.markup(style.bos);
  const auto turn = [&](std::string_view role) -> PieceWriter& {
    return out.markup("<|im_start|>").markup(role).markup("\n");
  };
  if (conversation.system != nullptr) {
    turn("system").content(system_of(style, *conversation.system)).markup("<|im_end|>\n");
  } else if (!style.default_system.empty()) {
    turn("system").markup(style.default_system).markup("<|im_end|>\n");
  }
  for (const ChatMessage& message : conversation.turns) {
    turn(message.role).content(content_of(style, message)).markup("<|im_end|>\n");
  }
  turn("assistant").markup(style.generation);
}

// Llama 3: <|start_header_id|>ROLE<|end_header_id|>\n\n … <|eot_id|>.

bool matches_llama3(const TemplateText& text) {
  return text.contains("<|start_header_id|>") && text.contains("<|eot_id|>");
}

bool read_llama3(const TemplateText& text, ChatStyle& style) {
  style.trims_content = trims_content(text);
  if (text.contains("Cutting Knowledge Date: December 2023")) {
    // The template's own fallback where it cannot ask for the date: a prompt must not change from
    // one day to the next.
    style.preamble =
        "Cutting Knowledge Date: December 2023\nToday Date: " + text.assigned("date_string") +
        "\n\n";
  }
  return true;
}

void write_llama3(const ChatStyle& style, const Conversation& conversation, PieceWriter& out) {
  out.markup(style.bos);
  const auto turn = [&](std::string_view role) -> PieceWriter& {
    return out.markup("<|start_header_id|>").markup(role).markup("<|end_header_id|>\n\n");
  };
  if (conversation.system != nullptr || !style.preamble.empty()) {
    turn("system").markup(style.preamble);
    if (conversation.system != nullptr) out.content(system_of(style, *conversation.system));
    out.markup("<|eot_id|>");
  }
  for (const ChatMessage& message : conversation.turns) {
    turn(message.role).content(content_of(style, message)).markup("<|eot_id|>");
  }
  turn("assistant");
}

// Llama 2: BOS [INST] … [/INST] … EOS, the system message between <<SYS>> marks in the first turn.

bool matches_llama2(const TemplateText& text) {
  return text.contains("[INST]") && text.contains("<<SYS>>");
}

bool read_llama2(const TemplateText& text, ChatStyle& style) {
  style.default_system = text.assigned("system_message");
  style.trims_content = text.squeezed_contains(".strip()") || trims_content(text);
  return true;
}

void write_llama2(const ChatStyle& style, const Conversation& conversation, PieceWriter& out) {
  bool first = true;
  for (const ChatMessage& message : conversation.turns) {
    const std::string_view content = content_of(style, message);
    if (!is_user(message)) {
      out.markup(" ").content(content).markup(" ").markup(style.eos);
      continue;
    }
    out.markup(style.bos).markup("[INST] ");
    if (first && (conversation.system != nullptr || !style.default_system.empty())) {
      out.markup("<<SYS>>\n");
      if (conversation.system != nullptr) {
        out.content(conversation.system->content);
      } else {
        out.markup(style.default_system);
      }
      out.markup("\n<</SYS>>\n\n");
    }
    out.content(content).markup(" [/INST]");
    first = false;
  }
}

// Mistral: BOS once, [INST] … [/INST] … EOS, with blanks that differ from release to release.

bool matches_mistral(const TemplateText& text) {
  return text.contains("[INST]") && !text.contains("[SYSTEM_PROMPT]");
}

bool read_mistral(const TemplateText& text, ChatStyle& style) {
  style.user_open = text.literal_around("[INST]");
  style.user_close = text.literal_around("[/INST]");
  // Blanks alone tell these apart, so the squeezed text does not serve.
  for (const char quote : {'\'', '"'}) {
    for (const std::string_view open : {"{{", "{{ ", "{{- "}) {
      if (text.contains(fmt::format("{0}{1} {1} + message[", open, quote))) {
        style.answer_open.assign(1, ' ');
      }
    }
    if (text.contains(fmt::format("eos_token + {0} {0}", quote))) {
      style.answer_close.assign(1, ' ');
    }
  }
  style.trims_answers = text.squeezed_contains("content']|trim+eos_token");
  style.system_in_last = text.squeezed_contains("loop.lastandsystem_message");
  return !style.user_open.empty() && !style.user_close.empty();
}

void write_mistral(const ChatStyle& style, const Conversation& conversation, PieceWriter& out) {
  out.markup(style.bos);
  const size_t count = conversation.turns.size();
  for (size_t i = 0; i < count; ++i) {
    const ChatMessage& message = conversation.turns[i];
    if (!is_user(message)) {
      out.markup(style.answer_open).content(content_of(style, message)).markup(style.eos);
      out.markup(style.answer_close);
      continue;
    }
    out.markup(style.user_open);
    if (conversation.system != nullptr && i == (style.system_in_last ? count - 1 : 0)) {
      out.content(conversation.system->content).markup("\n\n");
    }
    out.content(content_of(style, message)).markup(style.user_close);
  }
}

// Gemma: <start_of_turn>ROLE\n … <end_of_turn>\n, answers by "model", no system role.

bool matches_gemma(const TemplateText& text) {
  return text.contains("<start_of_turn>");
}

bool read_gemma(const TemplateText& text, ChatStyle& style) {
  style.trims_content = trims_content(text);
  return true;
}

void write_gemma(const ChatStyle& style, const Conversation& conversation, PieceWriter& out) {
  out.markup(style.bos);
  const auto turn = [&](std::string_view role) -> PieceWriter& {
    return out.markup("<start_of_turn>").markup(role).markup("\n");
  };
  const ChatMessage* system = conversation.system;
  for (const ChatMessage& message : conversation.turns) {
    turn(is_user(message) ? "user" : "model");
    if (system != nullptr) out.content(std::exchange(system, nullptr)->content).markup("\n\n");
    out.content(content_of(style, message)).markup("<end_of_turn>\n");
  }
  turn("model");
}

// Tulu (OLMo, OLMoE): <|ROLE|>\n … \n, answers end with EOS. Zephyr (TinyLlama) ends every turn so.

bool matches_tulu(const TemplateText& text) {
  for (const std::string_view stranger : {"<|end|>", "[gMASK]"}) {  // Phi-3, GLM.
    if (text.contains(stranger)) return false;
  }
  return text.contains("<|user|>") && text.contains("<|assistant|>");
}

bool matches_zephyr(const TemplateText& text) {
  return matches_tulu(text) && text.squeezed_contains("'<|user|>\n'+message['content']+eos_token");
}

bool read_tulu(const TemplateText& text, ChatStyle& style) {
  style.trims_content = trims_content(text);
  return text.squeezed_contains("'<|user|>\n'");
}

void write_roles(const ChatStyle& style, const Conversation& conversation,
                 std::string_view end_of_message, PieceWriter& out) {
  out.markup(style.bos);
  if (conversation.system != nullptr) {
    out.markup("<|system|>\n").content(system_of(style, *conversation.system));
    out.markup(end_of_message).markup("\n");
  }
  for (const ChatMessage& message : conversation.turns) {
    out.markup("<|").markup(message.role).markup("|>\n").content(content_of(style, message));
    out.markup(is_user(message) ? end_of_message : std::string_view(style.eos)).markup("\n");
  }
  out.markup("<|assistant|>\n");
}

void write_tulu(const ChatStyle& style, const Conversation& conversation, PieceWriter& out) {
  write_roles(style, conversation, "", out);
}

void write_zephyr(const ChatStyle& style, const Conversation& conversation, PieceWriter& out) {
  write_roles(style, conversation, style.eos, out);
}

constexpr std::array<ChatFamily, 8> families = {{
    {"qwen3", matches_qwen3, read_chatml, write_chatml},
    {"chatml", matches_chatml, read_chatml, write_chatml},
    {"llama3", matches_llama3, read_llama3, write_llama3},
    {"llama2", matches_llama2, read_llama2, write_llama2},
    {"mistral", matches_mistral, read_mistral, write_mistral},
    {"gemma", matches_gemma, read_gemma, write_gemma},
    {"zephyr", matches_zephyr, read_tulu, write_zephyr},
    {"tulu", matches_tulu, read_tulu, write_tulu},
}};

}  // namespace

PieceWriter& PieceWriter::put(std::string_view text, bool is_markup) {
  if (text.empty()) return *this;
  if (!pieces_.empty() && pieces_.back().is_markup == is_markup) {
    pieces_.back().text += text;
  } else {
    pieces_.push_back({std::string(text), is_markup});
  }
  return *this;
}

std::span<const ChatFamily> chat_families() {
  return families;
}

}  // namespace quern
