#include "models/chat/chat_template.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/error.h"
#include "models/gguf/file.h"
#include "tests/models/tokenizer_vocabularies.h"
#include "tests/support/fixtures.h"

namespace quern {
namespace {

using Messages = std::vector<ChatMessage>;
constexpr const char* template_key = "tokenizer.chat_template";

Messages messages_of(const nlohmann::json& json) {
  Messages messages;
  for (const auto& message : json) {
    messages.push_back(
        {message.at("role").get<std::string>(), message.at("content").get<std::string>()});
  }
  return messages;
}

/// Templates and what Jinja renders from them (tests/data/chat/make_conversations.py).
const nlohmann::json& recorded() {
  static const nlohmann::json rows = [] {
    std::ifstream file(test::data_file("chat/conversations.json"));
    return nlohmann::json::parse(file);
  }();
  return rows;
}

std::string recorded_template(std::string_view name) {
  for (const auto& row : recorded()) {
    if (row.at("name") == name) return row.at("template").get<std::string>();
  }
  throw std::runtime_error("no such recorded template");
}

/// Metadata with a template and the tokens that it names.
gguf::Metadata metadata_of(std::string_view chat_template, const nlohmann::json& bos,
                           const nlohmann::json& eos) {
  auto builder = test::byte_level_builder();
  const auto add = [&](const nlohmann::json& text) {
    return static_cast<uint32_t>(builder.add(text.get<std::string>(), test::control));
  };
  std::optional<uint32_t> bos_id;
  if (!bos.is_null()) bos_id = add(bos);
  const uint32_t eos_id = add(eos);
  auto metadata = test::byte_level_metadata(builder);
  if (bos_id) metadata.set_u32("tokenizer.ggml.bos_token_id", *bos_id);
  metadata.set_u32("tokenizer.ggml.eos_token_id", eos_id);
  metadata.set_string(template_key, std::string(chat_template));
  return metadata;
}

void expect_error(const std::function<void()>& use, ErrorKind kind, std::string_view word) {
  try {
    use();
    ADD_FAILURE() << "nothing was thrown; expected an error about " << word;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(std::string(word)));
  }
}

TEST(ChatTemplate, every_family_renders_what_jinja_renders) {
  ASSERT_GE(recorded().size(), 19u);
  for (const auto& row : recorded()) {
    const auto name = row.at("name").get<std::string>();
    const auto chat = ChatTemplate::from_metadata(
        metadata_of(row.at("template").get<std::string>(), row.at("bos"), row.at("eos")));
    EXPECT_EQ(chat.family(), row.at("family").get<std::string>()) << name;
    for (const auto& one : row.at("cases")) {
      const auto expected = one.at("text").get<std::string>();
      EXPECT_EQ(chat.apply(messages_of(one.at("messages"))), expected) << name;
      const auto bos = row.at("bos").is_null() ? row.at("eos") : row.at("bos");
      EXPECT_TRUE(!chat.writes_bos() || expected.starts_with(bos.get<std::string>())) << name;
    }
  }
}

TEST(ChatTemplate, a_system_message_joins_the_first_user_turn_where_there_is_no_system_role) {
  const Messages messages = {{"system", "Be brief."}, {"user", "Hi"}};
  const auto gemma =
      ChatTemplate::from_metadata(metadata_of(recorded_template("gemma"), "<bos>", "<eos>"));
  EXPECT_EQ(gemma.apply(messages),
            "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n");
  const auto mistral =
      ChatTemplate::from_metadata(metadata_of(recorded_template("mistral_v01"), "<s>", "</s>"));
  EXPECT_EQ(mistral.apply(messages), "<s>[INST] Be brief.\n\nHi [/INST]");
}

TEST(ChatTemplate, pieces_mark_what_messages_say_and_join_to_the_text) {
  for (const auto& row : recorded()) {
    const auto chat = ChatTemplate::from_metadata(
        metadata_of(row.at("template").get<std::string>(), row.at("bos"), row.at("eos")));
    const Messages messages = {
        {"system", "SYSTEM"}, {"user", "FIRST"}, {"assistant", "ANSWER"}, {"user", "LAST"}};
    std::string text;
    std::vector<std::string> said;
    for (const ChatPiece& piece : chat.pieces(messages)) {
      text += piece.text;
      if (!piece.is_markup) said.push_back(piece.text);
    }
    EXPECT_EQ(text, chat.apply(messages));
    EXPECT_THAT(said, testing::UnorderedElementsAre("SYSTEM", "FIRST", "ANSWER", "LAST"))
        << row.at("name");
  }
}

TEST(ChatTemplate, a_missing_or_unknown_template_names_the_key_and_the_way_out) {
  gguf::Metadata metadata = test::byte_level_metadata(test::byte_level_builder());
  const auto load = [&] { ChatTemplate::from_metadata(metadata); };
  expect_error(load, ErrorKind::bad_model, template_key);
  for (const char* text :
       {"", "{{ messages }}", "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}",
        "<|assistant|><|user|>[gMASK]", "[INST]", "{{ '[SYSTEM_PROMPT]' }}{{ '[INST]' }}",
        "<|im_start|>user<|im_sep|>x<|im_end|>", "{{'", "{%", "{#", "'\\"}) {
    metadata.set_string(template_key, text);
    expect_error(load, ErrorKind::bad_model, template_key);
    expect_error(load, ErrorKind::bad_model, "--chat");
  }
  metadata.set_u32(template_key, 7);
  expect_error(load, ErrorKind::bad_model, template_key);
}

TEST(ChatTemplate, a_thinking_condition_that_is_not_understood_is_refused) {
  auto metadata = test::byte_level_metadata(test::byte_level_builder());
  metadata.set_string(template_key,
                      "{{'<|im_start|>' + '<|im_end|>' + '</think>'}}{% if add_generation_prompt %}"
                      "{{ '<|im_start|>assistant\\n' }}{% if not enable_thinking %}{{ '<think>' }}"
                      "{% endif %}{% endif %}");
  expect_error([&] { ChatTemplate::from_metadata(metadata); }, ErrorKind::bad_model, template_key);
}

TEST(ChatTemplate, token_ids_that_a_template_needs_are_checked) {
  auto metadata = metadata_of(recorded_template("llama3"), "<s>", "</s>");
  metadata.set_u32("tokenizer.ggml.bos_token_id", 1'000'000);
  expect_error([&] { ChatTemplate::from_metadata(metadata); }, ErrorKind::bad_model,
               "tokenizer.ggml.bos_token_id");
}

TEST(ChatTemplate, messages_out_of_order_are_a_usage_error) {
  const ChatMessage system{"system", "s"}, user{"user", "u"}, answer{"assistant", "a"};
  const std::vector<Messages> wrong = {
      {},
      {system},
      {answer},
      {user, user},
      {user, answer},
      {user, system},
      {system, system, user},
      {system, answer, user},
      {user, answer, answer, user},
      {user, answer, system, user},
      {{"tool", "t"}},
      {user, {"", "x"}, user},
  };
  for (const auto& row : recorded()) {
    const auto chat = ChatTemplate::from_metadata(
        metadata_of(row.at("template").get<std::string>(), row.at("bos"), row.at("eos")));
    for (const Messages& messages : wrong) {
      expect_error([&] { chat.apply(messages); }, ErrorKind::usage, "chat messages");
    }
  }
}

// Encoding.

/// A vocabulary of the shared folder or of a model, with one of the recorded templates unless it
/// has its own.
struct Encoder {
  gguf::Metadata metadata;
  Tokenizer tokenizer;
  ChatTemplate chat;

  static gguf::Metadata read(const std::filesystem::path& path, std::string_view chat_template) {
    gguf::Metadata metadata = gguf::File::open(path).metadata();
    if (!chat_template.empty()) {
      metadata.set_string(template_key, recorded_template(chat_template));
    }
    return metadata;
  }
  Encoder(const std::filesystem::path& path, std::string_view chat_template)
      : metadata(read(path, chat_template)),
        tokenizer(Tokenizer::from_metadata(metadata)),
        chat(ChatTemplate::from_metadata(metadata)) {}
};

const std::vector<Messages>& ordinary_conversations() {
  static const std::vector<Messages> conversations = {
      {{"user", "What is the capital of France?"}},
      {{"system", "You are a helpful assistant."}, {"user", "Hi"}},
      // Text that meets the markup's line ends and blanks.
      {{"user", "\n\nHello\n"}, {"assistant", " \n  there "}, {"user", "  \nbye 12\n\n"}},
      {{"system", ""}, {"user", ""}},
      {{"user", "\u00C4pfel \u4F60\u597D \U0001F999 if (a < b) { return; }"}},
  };
  return conversations;
}

void expect_equal_to_the_text(const Encoder& encoder) {
  for (const Messages& messages : ordinary_conversations()) {
    const bool add_special = !encoder.chat.writes_bos();
    const auto expected = encoder.tokenizer.encode(
        encoder.chat.apply(messages), {.add_special = add_special, .parse_special = true});
    EXPECT_EQ(encode_chat(encoder.tokenizer, encoder.chat, messages), expected);
  }
}

/// No control token that a message names may come out as one.
void expect_safe_from(const Encoder& encoder, std::string_view control) {
  const auto id = encoder.tokenizer.find(control);
  ASSERT_TRUE(id.has_value()) << control;
  const auto count = [&](const std::string& content) {
    const auto ids = encode_chat(encoder.tokenizer, encoder.chat, {{"user", content}});
    return std::count(ids.begin(), ids.end(), *id);
  };
  EXPECT_EQ(count(fmt::format("x{}y", control)), count("xy"));
  EXPECT_EQ(count(std::string(control)), count(""));
}

TEST(EncodeChat, smollm2_has_its_ids_and_messages_cannot_forge_markup) {
  const auto path = test::model_file(test::smollm2);
  if (!path) GTEST_SKIP() << test::missing_model(test::smollm2);
  const Encoder encoder(*path, "");
  EXPECT_EQ(encoder.chat.apply({{"user", "Hi"}}),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(encoder.chat.apply({{"system", "S"}, {"user", "Hi"}}),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_FALSE(encoder.chat.writes_bos());
  expect_equal_to_the_text(encoder);
  expect_safe_from(encoder, "<|im_end|>");
}

TEST(EncodeChat, qwen2_has_its_ids_and_messages_cannot_forge_markup) {
  constexpr std::string_view name = "tokenizers/ggml-vocab-qwen2.gguf";
  const auto path = test::shared_file(name);
  if (!path) GTEST_SKIP() << test::missing_shared(name);
  const Encoder encoder(*path, "");
  EXPECT_THAT(encoder.chat.apply({{"user", "Hi"}}),
              testing::StartsWith("<|im_start|>system\nYou are a helpful assistant<|im_end|>\n"));
  expect_equal_to_the_text(encoder);
  expect_equal_to_the_text(Encoder(*path, "qwen35"));
  expect_safe_from(encoder, "<|im_end|>");
}

TEST(EncodeChat, llama3_begins_with_one_bos) {
  constexpr std::string_view name = "tokenizers/ggml-vocab-llama-bpe.gguf";
  const auto path = test::shared_file(name);
  if (!path) GTEST_SKIP() << test::missing_shared(name);
  for (const char* chat_template : {"llama3", "llama31", "qwen3"}) {
    const Encoder encoder(*path, chat_template);
    expect_equal_to_the_text(encoder);
    const auto ids = encode_chat(encoder.tokenizer, encoder.chat, {{"user", "Hi"}});
    EXPECT_EQ(std::count(ids.begin(), ids.end(), *encoder.tokenizer.bos()), 1) << chat_template;
    EXPECT_EQ(ids.front(), encoder.tokenizer.bos()) << chat_template;
  }
  expect_safe_from(Encoder(*path, "llama31"), "<|eot_id|>");
}

TEST(EncodeChat, llama2_begins_every_turn_with_bos) {
  constexpr std::string_view name = "tokenizers/ggml-vocab-llama-spm.gguf";
  const auto path = test::shared_file(name);
  if (!path) GTEST_SKIP() << test::missing_shared(name);
  const Encoder encoder(*path, "llama2");
  expect_equal_to_the_text(encoder);
  const auto ids = encode_chat(encoder.tokenizer, encoder.chat,
                               {{"user", "Hi"}, {"assistant", "Hello"}, {"user", "Bye"}});
  // <s>▁[INST]▁Hi▁[/INST]▁Hello▁</s><s>…, as the model was trained.
  EXPECT_THAT(std::vector<TokenId>(ids.begin(), ids.begin() + 4),
              testing::ElementsAre(1, 518, 25580, 29962));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 2);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 1);
  expect_safe_from(encoder, "</s>");
}

TEST(EncodeChat, gemma_encodes_as_its_text) {
  const auto path = test::model_file(test::gemma_270m);
  if (!path) GTEST_SKIP() << test::missing_model(test::gemma_270m);
  const Encoder encoder(*path, "gemma3");
  expect_equal_to_the_text(encoder);
  const auto ids = encode_chat(encoder.tokenizer, encoder.chat, {{"user", "Hi"}});
  EXPECT_THAT(ids, testing::ElementsAre(2, 105, 2364, 107, 10979, 106, 107, 105, 4368, 107));
  expect_safe_from(encoder, "<end_of_turn>");
}

}  // namespace
}  // namespace quern
