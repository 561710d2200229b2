// The quern command: reads the command line, runs one subcommand, and turns every failure into one
// line on stderr and the exit codes of DESIGN section 7.

#include <csignal>
#include <new>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "models/error.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/output.h"

namespace {

/// A message on one line: messages of libraries may hold several.
std::string one_line(std::string text) {
  for (size_t at = text.find_first_of("\r\n"); at != std::string::npos;
       at = text.find_first_of("\r\n", at)) {
    text.replace(at, 1, " ");
  }
  return text;
}

int complain(std::string_view message, quern::ErrorKind kind) {
  quern::tools::end_progress();
  fmt::print(stderr, "quern: {}\n", one_line(std::string(message)));
  return static_cast<int>(kind);
}

/// The subcommand that the command line named, for the hint on usage errors.
std::string chosen_command(const CLI::App& app) {
  std::string name = "quern";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

int run_command(CLI::App& app, quern::tools::Action& action, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help and --version
    const int code = app.exit(request);
    quern::tools::flush_out();
    return code;
  } catch (const CLI::ParseError& error) {
    return complain(fmt::format("{}; see {} --help", error.what(), chosen_command(app)),
                    quern::ErrorKind::usage);
  }
  if (!action) {
    return complain(fmt::format("a subcommand is needed; see {} --help", chosen_command(app)),
                    quern::ErrorKind::usage);
  }
  const int code = action();
  quern::tools::end_progress();
  quern::tools::flush_out();
  return code;
}

int guarded_main(int argc, char** argv) {
  CLI::App app("quern: grinds one set of kernels for exactly your model and machine, and runs it");
  app.name("quern");
  app.set_version_flag("--version", "quern " QUERN_VERSION);
  quern::tools::Action action;
  quern::tools::add_inspect(app, action);
  quern::tools::add_compile(app, action);
  quern::tools::add_run(app, action);
  quern::tools::add_logits(app, action);
  quern::tools::add_perplexity(app, action);
  quern::tools::add_bench(app, action);
  quern::tools::add_synth(app, action);
  quern::tools::add_plan(app, action);
  quern::tools::add_cache(app, action);
  quern::tools::add_doctor(app, action);
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 bad or unsupported model file, "
      "4 does not fit.");
  try {
    return run_command(app, action, argc, argv);
  } catch (const quern::tools::BrokenPipe&) {
    return static_cast<int>(quern::ErrorKind::failed);
  } catch (const quern::Error& error) {
    return complain(error.what(), error.kind());
  } catch (const std::bad_alloc&) {
    return complain("memory: there is not enough for this; use a smaller --ctx or --chunk",
                    quern::ErrorKind::does_not_fit);
  } catch (const std::exception& error) {
    return complain(error.what(), quern::ErrorKind::failed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  // A reader that goes away is seen as an error of the write, and ends the command quietly.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return guarded_main(argc, argv);
  } catch (...) {  // saying what failed has failed: there is nothing left to say
    return static_cast<int>(quern::ErrorKind::failed);
  }
}
