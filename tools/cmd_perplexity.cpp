// quern perplexity: how well a model predicts a text, by the rule that users of GGUF tools know.

#include <cmath>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/error.h"
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

/// Sums of the negative log-likelihood and of its square.
struct Likelihood {
  double sum = 0, sum_squares = 0;
  uint64_t count = 0;

  void add(double nll) {
    sum += nll;
    sum_squares += nll * nll;
    ++count;
  }
  double perplexity() const { return std::exp(sum / static_cast<double>(count)); }
  /// Standard error of the perplexity (delta method on the mean).
  double uncertainty() const {
    if (count < 2) return 0;
    const double n = static_cast<double>(count);
    const double mean = sum / n;
    const double variance = sum_squares / n - mean * mean;
    return variance > 0 ? std::sqrt(variance / (n - 1)) * perplexity() : 0;
  }
};

/// -log softmax(logits)[target], in double.
double negative_log_likelihood(std::span<const float> logits, TokenId target) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  const double nll = std::log(sum) + top - static_cast<double>(logits[static_cast<size_t>(target)]);
  if (!std::isfinite(nll)) {
    throw Error(ErrorKind::failed, "perplexity", "a logit is not finite",
                "the model file may be damaged: quern inspect it");
  }
  return nll;
}

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

/// Scores the second half of one window: the first half is context alone, so that every scored
/// token has at least half a window before it.
void score_window(Session& session, std::span<const TokenId> window, Likelihood& total) {
  const auto length = static_cast<uint32_t>(window.size());
  std::vector<uint32_t> rows;
  for (uint32_t i = length / 2; i + 1 < length; ++i) rows.push_back(i);
  session.reset();
  session.feed(window, 0, rows, 0, [&](uint32_t row, std::span<const float> logits) {
    total.add(negative_log_likelihood(logits, window[row + 1]));
  });
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
  std::vector<TokenId> tokens = tokenise(flags, text, tokenizer, context);
  check_tokens(tokens, prepared.plan.vocabulary);
  const LoadedModel model = load_model(std::move(prepared), flags.source);
  const std::unique_ptr<Session> session = model.engine->new_session();

  Likelihood total;
  const Progress progress = terminal_progress();
  const size_t windows = tokens.size() / context;
  for (size_t i = 0; i < windows; ++i) {
    const std::span<TokenId> window = std::span(tokens).subspan(i * context, context);
    // Every window begins as the model's texts do.
    if (tokenizer.adds_bos() && tokenizer.bos()) window[0] = *tokenizer.bos();
    score_window(*session, window, total);
    if (progress) progress("window", i + 1, windows);
  }
  end_progress();
  if (flags.json) {
    nlohmann::ordered_json json;
    json["perplexity"] = total.perplexity();
    json["uncertainty"] = total.uncertainty();
    json["tokens"] = tokens.size();
    json["scored"] = total.count;
    json["context"] = context;
    json["windows"] = windows;
    write_out(json.dump(2) + "\n");
  } else {
    write_out(fmt::format("perplexity {:.4f} ± {:.4f} ({} of {} tokens scored, {} windows of {})\n",
                          total.perplexity(), total.uncertainty(), total.count, tokens.size(),
                          windows, context));
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
