#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "compiler/options.h"
#include "compiler/plan.h"
#include "models/gguf/file.h"
#include "models/graph.h"
#include "models/tokenizer/tokenizer.h"
#include "runtime/engine.h"
#include "runtime/store/kernel_store.h"

namespace quern::tools {

/// What the user wrote for the plan options of DESIGN section 7. They are strings and counts until
/// a model is known.
struct PlanFlags {
  std::string device = "auto";
  uint32_t context = 0;
  uint32_t chunk = 0;
  std::string numerics = "exact";
  std::string attention = "auto";
  std::string kv = "auto";
  std::string gpu_layers = "auto";
  std::string store = "auto";
  std::string trust;
  /// Those that a ready-made plan has already fixed and that were given all the same.
  std::vector<const CLI::Option*> fixed_by_plan;

  /// The options as the planner takes them. Throws Error (`usage`) naming the flag.
  PlanOptions options() const;
  /// Throws Error (`usage`) where a flag was given that a ready-made plan has fixed.
  void refuse_for_a_plan() const;
};

/// Adds --device, --ctx, --chunk, --numerics, --attention, --kv, --gpu-layers and --store.
void add_plan_flags(CLI::App& app, PlanFlags& flags);

/// MODEL, or PLAN with --model FILE, and how to run it.
struct SourceFlags {
  std::string source;      ///< A GGUF file, a bundle (DIR.qplan) or a plan.json.
  std::string model_file;  ///< --model, for a plan.
  PlanFlags plan;
  uint32_t threads = 0;
  int verbose = 0;
};

/// True where `source` is a bundle or a plan.json, not a GGUF file.
bool is_plan(const std::string& source);

/// Adds the positional MODEL, --model, --trust, --threads, -v and the plan options.
void add_source_flags(CLI::App& app, SourceFlags& flags);

/// A model whose plan is made and whose weights are not loaded yet: the moment at which prompts and
/// token lists are checked, before the long work.
struct PreparedModel {
  gguf::File file;
  Plan plan;
  std::optional<std::filesystem::path> bundle;  ///< Where the plan is a bundle: its folder.
  double open_ms = 0;
  double plan_ms = 0;
};

/// Opens the model and makes (or reads) its plan. `min_context` raises the default context to what
/// the caller is going to feed; `all_logits` plans for logits of every row.
PreparedModel prepare_model(const SourceFlags& flags, bool all_logits, uint32_t min_context = 0);

/// The store of this user with `mode`, and a bundle's kernels in front of it.
KernelStore::Options store_options(std::string_view mode,
                                   const std::optional<std::filesystem::path>& bundle);

/// Compiles a kernel with the back end of its target. `strict`: a GPU kernel that spills registers
/// or whose wgmma instructions were serialised is an error.
KernelCompiler kernel_compiler(bool strict);

/// A loaded model, ready for sessions.
struct LoadedModel {
  std::shared_ptr<Engine> engine;
  double open_ms = 0;
  double plan_ms = 0;
  double load_ms = 0;
};
LoadedModel load_model(PreparedModel prepared, const SourceFlags& flags);

/// Reads a whole file ("-" is standard input). Throws Error (`failed`).
std::string read_file(const std::string& path);

/// Parses "1,2 3" or "@FILE" into numbers of 0 … 2^31 - 1. Throws Error (`usage`) naming the piece
/// that is none, and for an empty list; `flag` is what the message calls it.
std::vector<int32_t> parse_ids(const std::string& text, std::string_view flag);

/// Throws Error (`usage`) for a token that the vocabulary does not have.
void check_tokens(const std::vector<TokenId>& tokens, uint32_t vocabulary);
/// Throws Error (`usage`) where the prompt leaves no room in the context.
void check_prompt_fits(size_t tokens, const Plan& plan, bool room_for_one);

/// One line of progress on the terminal; nothing where stderr is none.
Progress terminal_progress();
/// Ends the progress line, if there is one.
void end_progress();

/// Sets spdlog up: to stderr, warnings alone unless verbose.
void set_up_logging(int verbose);

}  // namespace quern::tools
