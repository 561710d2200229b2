// quern logits: the model's logits at the positions of a token list, as a NumPy file.

#include <algorithm>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "models/error.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/output.h"

namespace quern::tools {
namespace {

struct LogitsFlags {
  SourceFlags source;
  std::string tokens, positions, output;
  bool step = false;
};

/// The rows asked for: all of them, or the ascending list that --positions gives.
std::vector<uint32_t> wanted_rows(const LogitsFlags& flags, size_t n_tokens) {
  std::vector<uint32_t> rows;
  if (flags.positions.empty()) {
    rows.resize(n_tokens);
    std::iota(rows.begin(), rows.end(), 0U);
    return rows;
  }
  for (const int32_t position : parse_ids(flags.positions, "--positions")) {
    const auto row = static_cast<uint32_t>(position);
    if (row >= n_tokens) {
      throw Error(ErrorKind::usage, "--positions",
                  fmt::format("{} is beyond the {} tokens", row, n_tokens),
                  fmt::format("give positions from 0 to {}", n_tokens - 1));
    }
    if (!rows.empty() && row <= rows.back()) {
      throw Error(ErrorKind::usage, "--positions",
                  fmt::format("{} comes after {}", row, rows.back()),
                  "give each position once, ascending");
    }
    rows.push_back(row);
  }
  return rows;
}

void feed_all(Session& session, const std::vector<TokenId>& tokens,
              const std::vector<uint32_t>& rows, bool step, NpyWriter& out) {
  auto write_row = [&](uint32_t, std::span<const float> logits) { out.row(logits); };
  if (!step) {
    session.feed(tokens, 0, rows, 0, write_row);
    return;
  }
  auto wanted = rows.begin();
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    const bool keep = wanted != rows.end() && *wanted == i;
    const std::vector<float> logits =
        session.feed(std::span(&tokens[i], 1), i, keep ? OutputRows::last : OutputRows::none);
    if (!keep) continue;
    out.row(logits);
    ++wanted;
  }
}

int run_logits(const LogitsFlags& flags) {
  const std::vector<TokenId> tokens = parse_ids(flags.tokens, "--tokens");
  const std::vector<uint32_t> rows = wanted_rows(flags, tokens.size());
  PreparedModel prepared = prepare_model(flags.source, true, static_cast<uint32_t>(tokens.size()));
  check_tokens(tokens, prepared.plan.vocabulary);
  check_prompt_fits(tokens.size(), prepared.plan, false);
  NpyWriter out(flags.output);
  out.begin(rows.size(), prepared.plan.vocabulary);
  const LoadedModel model = load_model(std::move(prepared), flags.source);
  const std::unique_ptr<Session> session = model.engine->new_session();
  session->set_progress(terminal_progress());
  feed_all(*session, tokens, rows, flags.step, out);
  end_progress();
  out.commit();
  return 0;
}

}  // namespace

void add_logits(CLI::App& app, Action& action) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* command =
      app.add_subcommand("logits", "Write the logits at given positions of a token list");
  add_source_flags(*command, flags->source);
  command->add_option("--tokens", flags->tokens, "Token ids, or @FILE")
      ->required()
      ->type_name("IDS");
  command
      ->add_option("--positions", flags->positions,
                   "Positions to write, ascending, or @FILE (default: all)")
      ->type_name("LIST");
  command->add_flag("--step", flags->step, "Feed one token at a time");
  command->add_option("-o", flags->output, "The file to write: f32, one row a position")
      ->required()
      ->type_name("OUT.npy");
  command->callback([flags, &action] {
    action = [flags] {
      set_up_logging(flags->source.verbose);
      return run_logits(*flags);
    };
  });
}

}  // namespace quern::tools
