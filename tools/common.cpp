#include "tools/common.h"

#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "compiler/compile_kernel.h"
#include "compiler/cpu/cpu_compiler.h"
#include "models/error.h"
#include "models/model.h"
#include "runtime/clock.h"
#include "tools/bundle.h"
#include "tools/device_choice.h"

namespace quern::tools {
namespace {

bool g_progress_shown = false;

}  // namespace

PlanOptions PlanFlags::options() const {
  PlanOptions options;
  options.device = device;
  options.context = context;
  options.chunk = chunk;
  options.numerics = numerics == "fast" ? Numerics::fast : Numerics::exact;
  options.attention = attention;
  options.kv = kv;
  if (gpu_layers != "auto") {
    int32_t layers = 0;
    const char* end = gpu_layers.data() + gpu_layers.size();
    const auto [stop, code] = std::from_chars(gpu_layers.data(), end, layers);
    if (code != std::errc{} || stop != end || layers < 0) {
      throw Error(ErrorKind::usage, "--gpu-layers",
                  fmt::format("'{}' is no number of layers", gpu_layers), "give N or auto");
    }
    options.gpu_layers = layers;
  }
  return options;
}

void PlanFlags::refuse_for_a_plan() const {
  for (const CLI::Option* option : fixed_by_plan) {
    if (option->count() == 0) continue;
    throw Error(ErrorKind::usage, option->get_name(), "is fixed by the plan",
                "leave it out, or compile a plan with it");
  }
}

void add_plan_flags(CLI::App& app, PlanFlags& flags) {
  constexpr const char* group = "Plan options";
  auto fixed = [&](CLI::Option* option) {
    option->group(group);
    flags.fixed_by_plan.push_back(option);
  };
  fixed(app.add_option("--device", flags.device, "Where it runs: auto, cpu or cuda[:I]")
            ->type_name("NAME")
            ->capture_default_str());
  fixed(app.add_option("--ctx", flags.context,
                       "Context length in tokens (default: the model's, at most 4096)")
            ->type_name("N")
            ->check(CLI::Range(1U, 1U << 30)));
  fixed(
      app.add_option("--chunk", flags.chunk, "Tokens of a prompt that run at a time (default: 512)")
          ->type_name("N")
          ->check(CLI::Range(1U, 1U << 20)));
  fixed(app.add_option("--numerics", flags.numerics,
                       "exact, or fast: some steps are relaxed, and the plan lists them")
            ->type_name("MODE")
            ->check(CLI::IsMember({"exact", "fast"}))
            ->capture_default_str());
  fixed(app.add_option("--attention", flags.attention, "Attention path: auto, flash or wave")
            ->type_name("PATH")
            ->check(CLI::IsMember({"auto", "flash", "wave"}))
            ->capture_default_str());
  fixed(app.add_option("--kv", flags.kv, "Type of the KV cache: auto, f32, f16, bf16 or q8_0")
            ->type_name("TYPE")
            ->check(CLI::IsMember({"auto", "f32", "f16", "bf16", "q8_0"}))
            ->capture_default_str());
  fixed(app.add_option("--gpu-layers", flags.gpu_layers, "Layers on the GPU: N or auto")
            ->type_name("N")
            ->capture_default_str());
  app.add_option("--store", flags.store,
                 "Kernel store: auto, readonly (keeps nothing new), strict (never compiles) or off")
      ->group(group)
      ->type_name("MODE")
      ->check(CLI::IsMember({"auto", "readonly", "strict", "off"}))
      ->capture_default_str();
}

bool is_plan(const std::string& source) {
  std::error_code ignored;
  return std::filesystem::is_directory(source, ignored) || source.ends_with(".json") ||
         source.ends_with(".qplan");
}

void add_source_flags(CLI::App& app, SourceFlags& flags) {
  app.add_option("MODEL", flags.source, "A GGUF file, or a compiled plan (DIR.qplan) with --model")
      ->required()
      ->type_name("");
  app.add_option("--model", flags.model_file, "The GGUF file that the plan was made for")
      ->type_name("FILE");
  app.add_option("--threads", flags.threads, "Worker threads (default: one for each CPU)")
      ->type_name("N")
      ->check(CLI::Range(1U, 1024U));
  app.add_flag("-v,--verbose", flags.verbose, "Say on stderr what is done; twice for more");
  add_plan_flags(app, flags.plan);
  app.add_option("--trust", flags.plan.trust,
                 "Run this bundle, compiled elsewhere, whose digest you had from its maker")
      ->group("Plan options")
      ->type_name("DIGEST");
}

KernelStore::Options store_options(std::string_view mode,
                                   const std::optional<std::filesystem::path>& bundle) {
  KernelStore::Options options;
  options.mode = store_mode_from_name(mode);
  options.directory = default_store_path();
  if (bundle) options.readonly_tiers.push_back(*bundle / "kernels");
  return options;
}

KernelCompiler kernel_compiler(bool strict) {
  return [strict](const spec::AnySpec& spec, const Target& target) {
    return compile_kernel(spec, target, strict);
  };
}

namespace {

PreparedModel prepare_from_plan(const SourceFlags& flags) {
  if (flags.model_file.empty()) {
    throw Error(ErrorKind::usage, flags.source, "is a plan and needs its model",
                "add --model FILE.gguf");
  }
  flags.plan.refuse_for_a_plan();
  const auto start = Clock::now();
  std::optional<std::filesystem::path> bundle;
  std::string plan_path = flags.source;
  if (std::filesystem::is_directory(flags.source)) {
    check_trust(flags.source, flags.plan.trust);
    bundle = flags.source;
    plan_path = (std::filesystem::path(flags.source) / "plan.json").string();
  }
  Plan plan = plan_from_json(read_file(plan_path), plan_path);
  std::string missing;
  if (!is_cuda(plan.target) && !cpu::can_run(plan.target, &missing)) {
    throw Error(
        ErrorKind::failed, flags.source,
        fmt::format("was compiled for {}, and this CPU lacks {}", plan.target.name, missing),
        "compile a plan for this machine");
  }
  const double plan_ms = milliseconds_since(start);
  const auto open_start = Clock::now();
  gguf::File file = gguf::File::open(flags.model_file);
  if (file.fingerprint() != plan.model_fingerprint) {
    throw Error(ErrorKind::usage, flags.source,
                fmt::format("was compiled for another model than {}", flags.model_file),
                "give the file that the plan was compiled from, or compile it again");
  }
  return {std::move(file), std::move(plan), std::move(bundle), milliseconds_since(open_start),
          plan_ms};
}

PreparedModel prepare_from_model(const SourceFlags& flags, bool all_logits, uint32_t min_context) {
  if (!flags.model_file.empty()) {
    throw Error(ErrorKind::usage, "--model", "is for plans, and MODEL is a GGUF file already",
                "leave it out");
  }
  if (!flags.plan.trust.empty()) {
    throw Error(ErrorKind::usage, "--trust", "is for compiled plans", "leave it out");
  }
  PlanOptions options = flags.plan.options();
  options.all_logits = all_logits;
  const std::optional<Target> target = named_target(options.device);  // before the long work
  const auto start = Clock::now();
  gguf::File file = gguf::File::open(flags.source);
  const ModelGraph graph = build_graph(file);
  const double open_ms = milliseconds_since(start);
  if (options.context == 0 && min_context > 4096) {
    options.context = std::min(min_context, graph.context_length);
  }
  const auto plan_start = Clock::now();
  Plan plan = plan_for(graph, options, target);
  return {std::move(file), std::move(plan), std::nullopt, open_ms, milliseconds_since(plan_start)};
}

}  // namespace

PreparedModel prepare_model(const SourceFlags& flags, bool all_logits, uint32_t min_context) {
  if (!std::filesystem::exists(flags.source)) {
    throw Error(ErrorKind::failed, flags.source, "does not exist", "give a GGUF file or a plan");
  }
  return is_plan(flags.source) ? prepare_from_plan(flags)
                               : prepare_from_model(flags, all_logits, min_context);
}

LoadedModel load_model(PreparedModel prepared, const SourceFlags& flags) {
  KernelStore store(store_options(flags.plan.store, prepared.bundle));
  EngineOptions options;
  options.threads = flags.threads;
  options.device = device_index(prepared.plan.options.device);
  options.progress = terminal_progress();
  const auto start = Clock::now();
  LoadedModel loaded;
  loaded.engine = Engine::load(std::move(prepared.file), std::move(prepared.plan), store,
                               kernel_compiler(false), options);
  end_progress();
  loaded.load_ms = milliseconds_since(start);
  loaded.open_ms = prepared.open_ms;
  loaded.plan_ms = prepared.plan_ms;
  return loaded;
}

std::string read_file(const std::string& path) {
  auto fail = [&](int code) {
    throw Error(ErrorKind::failed, path == "-" ? "standard input" : path,
                fmt::format("cannot be read ({})", std::strerror(code)),
                "check the name and its permissions");
  };
  struct Closer {
    void operator()(std::FILE* file) const {
      if (file != stdin) std::fclose(file);
    }
  };
  const std::unique_ptr<std::FILE, Closer> file(path == "-" ? stdin
                                                            : std::fopen(path.c_str(), "rb"));
  if (!file) fail(errno);
  std::string text;
  char block[65536];
  size_t got = 0;
  do {
    got = std::fread(block, 1, sizeof block, file.get());
    text.append(block, got);
  } while (got == sizeof block);
  if (std::ferror(file.get()) != 0) fail(errno);
  return text;
}

std::vector<int32_t> parse_ids(const std::string& text, std::string_view flag) {
  const std::string content = text.starts_with('@') ? read_file(text.substr(1)) : text;
  constexpr std::string_view separators = ", \t\r\n";
  std::vector<int32_t> ids;
  size_t position = content.find_first_not_of(separators);
  while (position != std::string::npos) {
    const size_t end = std::min(content.find_first_of(separators, position), content.size());
    const std::string_view piece = std::string_view(content).substr(position, end - position);
    int32_t id = 0;
    const auto [stop, code] = std::from_chars(piece.data(), piece.data() + piece.size(), id);
    if (code != std::errc{} || stop != piece.data() + piece.size() || id < 0) {
      throw Error(ErrorKind::usage, flag, fmt::format("'{}' is no number", piece.substr(0, 40)),
                  "give numbers from 0, separated by commas or spaces, or @FILE");
    }
    ids.push_back(id);
    position = content.find_first_not_of(separators, end);
  }
  if (ids.empty()) {
    throw Error(ErrorKind::usage, flag, "the list is empty",
                "give numbers separated by commas or spaces, or @FILE");
  }
  return ids;
}

void check_tokens(const std::vector<TokenId>& tokens, uint32_t vocabulary) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || static_cast<uint32_t>(tokens[i]) >= vocabulary) {
      throw Error(ErrorKind::usage, fmt::format("token {} at position {}", tokens[i], i),
                  fmt::format("the vocabulary has {} tokens", vocabulary),
                  fmt::format("give ids from 0 to {}", vocabulary - 1));
    }
  }
}

void check_prompt_fits(size_t tokens, const Plan& plan, bool room_for_one) {
  const size_t needed = tokens + (room_for_one ? 1 : 0);
  if (needed <= plan.options.context) return;
  throw Error(
      ErrorKind::usage, "prompt",
      fmt::format("its {} tokens {} the context of {}", tokens,
                  tokens > plan.options.context ? "are more than" : "fill", plan.options.context),
      fmt::format("shorten it or give --ctx {} or more", needed));
}

Progress terminal_progress() {
  if (isatty(STDERR_FILENO) == 0) return {};
  return
      [last = Clock::time_point{}](std::string_view stage, uint64_t done, uint64_t total) mutable {
        const auto now = Clock::now();
        if (done < total && now - last < std::chrono::milliseconds(100)) return;
        last = now;
        g_progress_shown = true;
        fmt::print(stderr, "\r\033[K{} {}/{}", stage, done, total);
        std::fflush(stderr);
      };
}

void end_progress() {
  if (!g_progress_shown) return;
  g_progress_shown = false;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

void set_up_logging(int verbose) {
  auto logger = spdlog::stderr_color_mt("quern");
  logger->set_pattern("quern: %^%l%$: %v");
  logger->set_level(verbose >= 2   ? spdlog::level::debug
                    : verbose == 1 ? spdlog::level::info
                                   : spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace quern::tools
