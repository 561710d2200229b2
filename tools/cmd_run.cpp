// quern run: writes text (or tokens) after a prompt.

#include <atomic>
#include <csignal>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "models/chat/chat_template.h"
#include "models/error.h"
#include "runtime/generate.h"
#include "runtime/sampler.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/output.h"
#include "tools/run_stats.h"

namespace quern::tools {
namespace {

struct RunFlags {
  SourceFlags source;
  std::string prompt, file, tokens, system;
  bool has_prompt = false, has_file = false, has_tokens = false, has_system = false;
  bool chat = false;
  bool stats = false;
  int32_t max_new_tokens = 256;
  SamplingOptions sampling;
};

std::atomic<bool> g_interrupted{false};

/// The first SIGINT asks for an end at the next token; the second ends the process at once.
extern "C" void on_interrupt(int signal) {
  g_interrupted = true;
  std::signal(signal, SIG_DFL);
}

void check_flags(const RunFlags& flags) {
  if (flags.has_prompt + flags.has_file + flags.has_tokens != 1) {
    throw Error(ErrorKind::usage, "prompt", "one of -p, -f and --tokens is needed",
                "give -p TEXT, -f FILE or --tokens IDS");
  }
  if (flags.has_tokens && flags.chat) {
    throw Error(ErrorKind::usage, "--chat", "formats text, and --tokens gives none",
                "give -p TEXT or -f FILE");
  }
  if (flags.has_system && !flags.chat) {
    throw Error(ErrorKind::usage, "--system", "is part of a chat", "add --chat");
  }
  if (flags.max_new_tokens < -1) {
    throw Error(ErrorKind::usage, "-n",
                fmt::format("{} is no number of tokens", flags.max_new_tokens),
                "give a count, or -1 to go on until the model stops");
  }
}

/// The prompt's text or ids, read before anything else so that an empty one costs nothing.
std::string prompt_text(const RunFlags& flags) {
  std::string text = flags.has_file ? read_file(flags.file) : flags.prompt;
  if (text.empty()) {
    throw Error(ErrorKind::usage, "prompt", "is empty", "give some text with -p or -f");
  }
  return text;
}

std::vector<TokenId> encode_prompt(const RunFlags& flags, const std::string& text,
                                   const gguf::File& file, const Tokenizer& tokenizer) {
  if (!tokenizer.has_text()) {
    throw Error(ErrorKind::usage, file.name(), "has no tokenizer", "give --tokens IDS");
  }
  if (!flags.chat) return tokenizer.encode(text, {.add_special = true, .parse_special = false});
  const ChatTemplate chat = ChatTemplate::from_metadata(file.metadata());
  std::vector<ChatMessage> messages;
  if (flags.has_system) messages.push_back({"system", flags.system});
  messages.push_back({"user", text});
  return encode_chat(tokenizer, chat, messages);
}

/// Feeds the prompt and writes what follows as it comes: text where there is a tokenizer, else ids
/// separated by spaces.
Generation write_text(const RunFlags& flags, Session& session, const Tokenizer& tokenizer,
                      const std::vector<TokenId>& prompt) {
  bool first = true;
  session.set_progress(
      [&first, show = terminal_progress()](std::string_view stage, uint64_t done, uint64_t total) {
        if (!first) return;  // generation: the receiver ends it
        if (g_interrupted) throw Error(ErrorKind::failed, "run", "interrupted in the prompt");
        if (show) show(stage, done, total);
      });
  std::optional<uint32_t> limit;
  if (flags.max_new_tokens >= 0) limit = static_cast<uint32_t>(flags.max_new_tokens);
  auto receive = [&](std::optional<TokenId> token, std::string_view text) {
    end_progress();
    if (tokenizer.has_text()) {
      write_out_now(text);
    } else if (token) {
      write_out_now(fmt::format("{}{}", first ? "" : " ", *token));
    }
    first = false;
    return !g_interrupted;
  };
  const Generation result = generate(session, tokenizer, prompt, flags.sampling, limit, receive);
  write_out_now("\n");
  if (result.stop == StopReason::context_full) {
    spdlog::warn("stopped: the context of {} tokens is full; --ctx N makes it longer",
                 session.capacity());
  }
  return result;
}

int run(const RunFlags& flags) {
  check_flags(flags);
  const Sampler checked(flags.sampling);  // its options are checked before the long work
  std::vector<TokenId> tokens;
  std::string text;
  if (flags.has_tokens) {
    tokens = parse_ids(flags.tokens, "--tokens");
  } else {
    text = prompt_text(flags);
  }
  PreparedModel prepared = prepare_model(flags.source, false);
  const Tokenizer tokenizer = Tokenizer::from_metadata(prepared.file.metadata());
  if (!flags.has_tokens) tokens = encode_prompt(flags, text, prepared.file, tokenizer);
  check_tokens(tokens, prepared.plan.vocabulary);
  check_prompt_fits(tokens.size(), prepared.plan, false);
  const LoadedModel model = load_model(std::move(prepared), flags.source);

  std::signal(SIGINT, on_interrupt);
  const std::unique_ptr<Session> session = model.engine->new_session();
  const Generation result = write_text(flags, *session, tokenizer, tokens);
  for (const auto& [path, count] : session->last_launches()) {
    spdlog::info("last step: {} x {}", path, count);
  }
  if (flags.stats) fmt::print(stderr, "{}", stats_text(model, result));
  if (g_interrupted) {
    throw Error(ErrorKind::failed, "run",
                fmt::format("interrupted after {} new tokens", result.tokens.size()));
  }
  return 0;
}

void add_sampling_flags(CLI::App& command, SamplingOptions& sampling) {
  constexpr const char* group = "Sampling";
  command.add_option("--temp", sampling.temperature, "Temperature; 0 takes the likeliest token")
      ->group(group)
      ->type_name("T")
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Keep the K likeliest tokens; 0 keeps all")
      ->group(group)
      ->type_name("K")
      ->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "Keep the likeliest tokens that sum to P")
      ->group(group)
      ->type_name("P")
      ->default_str("0.95");
  command.add_option("--min-p", sampling.min_p, "Drop tokens below P times the likeliest")
      ->group(group)
      ->type_name("P")
      ->default_str("0.05");
  command.add_option("--repeat-penalty", sampling.repeat_penalty, "Weaken recent tokens; 1 is off")
      ->group(group)
      ->type_name("R")
      ->capture_default_str();
  command.add_option("--seed", sampling.seed, "The same seed draws the same tokens")
      ->group(group)
      ->type_name("S")
      ->capture_default_str();
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "Write text after a prompt");
  add_source_flags(*command, flags->source);
  const CLI::Option* prompt =
      command->add_option("-p", flags->prompt, "The prompt, completed as it stands")
          ->type_name("TEXT");
  const CLI::Option* file =
      command->add_option("-f", flags->file, "Read the prompt from a file (- is standard input)")
          ->type_name("FILE");
  const CLI::Option* tokens =
      command->add_option("--tokens", flags->tokens, "The prompt as token ids, or @FILE")
          ->type_name("IDS");
  command->add_flag("--chat", flags->chat, "Put the prompt into the model's chat format");
  const CLI::Option* system =
      command->add_option("--system", flags->system, "The system message of the chat")
          ->type_name("TEXT");
  command
      ->add_option("-n", flags->max_new_tokens,
                   "Tokens to write at most; -1 goes on until the model stops")
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--stats", flags->stats, "Print times, speeds and kernel counts to stderr");
  add_sampling_flags(*command, flags->sampling);
  command->callback([=, &action] {
    flags->has_prompt = prompt->count() > 0;
    flags->has_file = file->count() > 0;
    flags->has_tokens = tokens->count() > 0;
    flags->has_system = system->count() > 0;
    action = [flags] {
      set_up_logging(flags->source.verbose);
      return run(*flags);
    };
  });
}

}  // namespace quern::tools
