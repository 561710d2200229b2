// quern perplexity: how well a model predicts a text, by the rule that users of GGUF tools know.

#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "runtime/perplexity.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/output.h"

namespace quern::tools {
namespace {

struct PerplexityFlags {
  SourceFlags source;
  std::string file;
  bool json = false;
};

/// The text's tokens; its windows are whole contexts, and a tail shorter than one is left out.
std::vector<TokenId> tokenise(const PerplexityFlags& flags, const std::string& text,
                              const Tokenizer& tokenizer, uint32_t context) {
  if (!tokenizer.has_text()) {
    throw Error(ErrorKind::usage, flags.source.source, "has no tokenizer", "use quern logits");
  }
  std::vector<TokenId> tokens =
      tokenizer.encode(text, {.add_special = true, .parse_special = false});
  if (tokens.size() < context) {
    throw Error(ErrorKind::usage, flags.file,
                fmt::format("its {} tokens do not fill one context of {}", tokens.size(), context),
                "give a longer text or a smaller --ctx");
  }
  return tokens;
}

int run_perplexity(PerplexityFlags flags) {
  const std::string text = read_file(flags.file);
  if (text.empty()) throw Error(ErrorKind::usage, flags.file, "is empty", "give a text");
  if (!is_plan(flags.source.source) && flags.source.plan.context == 0)
    flags.source.plan.context = 512;
  PreparedModel prepared = prepare_model(flags.source, true);
  const uint32_t context = prepared.plan.options.context;
  if (context < 4) {
    throw Error(ErrorKind::usage, "--ctx", "a window needs at least 4 tokens", "give --ctx 512");
  }
  const Tokenizer tokenizer = Tokenizer::from_metadata(prepared.file.metadata());
  const std::vector<TokenId> tokens = tokenise(flags, text, tokenizer, context);
  check_tokens(tokens, prepared.plan.vocabulary);
  const LoadedModel model = load_model(std::move(prepared), flags.source);
  const std::unique_ptr<Session> session = model.engine->new_session();

  const std::optional<TokenId> bos = tokenizer.adds_bos() ? tokenizer.bos() : std::nullopt;
  const Perplexity result = measure_perplexity(*session, tokens, context, bos, terminal_progress());
  end_progress();
  if (flags.json) {
    nlohmann::ordered_json json;
    json["perplexity"] = result.value;
    json["uncertainty"] = result.standard_error;
    json["tokens"] = tokens.size();
    json["scored"] = result.scored;
    json["context"] = context;
    json["windows"] = result.windows;
    write_out(json.dump(2) + "\n");
  } else {
    write_out(fmt::format("perplexity {:.4f} ± {:.4f} ({} of {} tokens scored, {} windows of {})\n",
                          result.value, result.standard_error, result.scored, tokens.size(),
                          result.windows, context));
  }
  return 0;
}

}  // namespace

void add_perplexity(CLI::App& app, Action& action) {
  auto flags = std::make_shared<PerplexityFlags>();
  CLI::App* command = app.add_subcommand("perplexity", "Measure how well a model predicts a text");
  add_source_flags(*command, flags->source);
  command->get_option("--ctx")->description(
      "Window in tokens; its second half is scored (default: 512)");
  command->add_option("-f", flags->file, "The text")->required()->type_name("FILE");
  command->add_flag("--json", flags->json, "Print JSON (docs/json.md)");
  command->callback([flags, &action] {
    action = [flags] {
      set_up_logging(flags->source.verbose);
      return run_perplexity(*flags);
    };
  });
}

}  // namespace quern::tools
