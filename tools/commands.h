#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace quern::tools {

/// What a subcommand does once the command line is read; the exit code comes back.
using Action = std::function<int()>;

// Each adds its subcommand to `app`; reading the command line then sets `action`.
void add_inspect(CLI::App& app, Action& action);
void add_compile(CLI::App& app, Action& action);
void add_run(CLI::App& app, Action& action);
void add_logits(CLI::App& app, Action& action);
void add_perplexity(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_synth(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_cache(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);

}  // namespace quern::tools
