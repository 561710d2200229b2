// quern compile: makes a model's plan, compiles its kernels into the store, and writes a bundle.

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/model.h"
#include "runtime/clock.h"
#include "tools/bundle.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/device_choice.h"
#include "tools/output.h"
#include "tools/plan_kernels.h"

namespace quern::tools {
namespace {

struct CompileFlags {
  std::string model;
  std::string output;
  std::string target;
  uint32_t jobs = 0;
  bool json = false;
  int verbose = 0;
  PlanFlags plan;
};

/// Gets every kernel of the plan from the store, compiling what is missing on `jobs` threads. The
/// first failure stops the work and is thrown.
void compile_kernels(const Plan& plan, KernelStore& store, uint32_t jobs) {
  const std::vector<uint32_t> todo = distinct_kernels(plan);
  const KernelCompiler compile = kernel_compiler(true);
  const Progress progress = terminal_progress();
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::exception_ptr failure;
  std::mutex mutex;
  size_t done = 0;
  auto work = [&] {
    for (size_t i = next++; i < todo.size() && !stop; i = next++) {
      const PlanKernel& kernel = plan.kernels[todo[i]];
      try {
        store.get(plan_kernel_key(kernel, plan.target), kernel.spec, plan.target, compile);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        if (!failure) failure = std::current_exception();
        stop = true;
        return;
      }
      const std::scoped_lock lock(mutex);
      ++done;
      if (progress) progress("compiling kernel", done, todo.size());
    }
  };
  std::vector<std::jthread> threads;
  const size_t count = std::min<size_t>(jobs, todo.size());
  for (size_t i = 1; i < count; ++i) threads.emplace_back(work);
  work();
  threads.clear();
  end_progress();
  if (failure) std::rethrow_exception(failure);
}

/// Without -o the kernels' only home is the store: say so before compiling, not after.
void check_store_keeps(const KernelStore::Options& options) {
  if (options.mode != StoreMode::automatic || !options.directory) {
    throw Error(ErrorKind::usage, "compile",
                options.directory ? "with this --store mode it would keep nothing"
                                  : "there is no store folder to keep kernels in",
                "give -o DIR.qplan, or --store auto and QUERN_CACHE_DIR");
  }
  std::error_code ignored;
  std::filesystem::create_directories(*options.directory, ignored);
  const AtomicFile probe(*options.directory / "write-probe");
}

int run_compile(const CompileFlags& flags) {
  const auto start = Clock::now();
  PlanOptions options = flags.plan.options();
  // Before the long work: there may be no such target.
  const std::optional<Target> target =
      named_target(flags.target.empty() ? options.device : flags.target);
  const KernelStore::Options kept = store_options(flags.plan.store, std::nullopt);
  if (flags.output.empty()) check_store_keeps(kept);
  const gguf::File file = gguf::File::open(flags.model);
  const ModelGraph graph = build_graph(file);
  const Plan plan = plan_for(graph, options, target);
  std::optional<BundleWriter> bundle;
  if (!flags.output.empty()) bundle.emplace(flags.output);

  KernelStore store(kept);
  const uint32_t jobs =
      flags.jobs != 0 ? flags.jobs : std::max(1U, std::thread::hardware_concurrency());
  compile_kernels(plan, store, jobs);
  std::string digest;
  if (bundle) {
    digest = bundle->publish(plan, store);
    if (!remember_digest(digest)) {
      spdlog::warn("the digest cannot be remembered (no store folder): runs need --trust {}",
                   digest);
    }
  }
  const double ms = milliseconds_since(start);
  const size_t kernels = distinct_kernels(plan).size();
  const StoreStats stats = store.stats();
  if (flags.json) {
    nlohmann::ordered_json json;
    json["model"] = flags.model;
    json["target"] = plan.target.name;
    json["kernels"] = kernels;
    json["compiled"] = stats.compiled;
    json["loaded"] = kernels - stats.compiled;
    json["ms"] = ms;
    json["bundle"] =
        bundle ? nlohmann::ordered_json(flags.output) : nlohmann::ordered_json(nullptr);
    json["digest"] = bundle ? nlohmann::ordered_json(digest) : nlohmann::ordered_json(nullptr);
    write_out(json.dump(2) + "\n");
  } else {
    write_out(fmt::format("{} kernels for {}: {} compiled, {} from the store, {:.1f} s\n", kernels,
                          plan.target.name, stats.compiled, kernels - stats.compiled, ms / 1000));
    if (bundle) write_out(fmt::format("bundle {}\ndigest {}\n", flags.output, digest));
  }
  return 0;
}

}  // namespace

void add_compile(CLI::App& app, Action& action) {
  auto flags = std::make_shared<CompileFlags>();
  CLI::App* command = app.add_subcommand(
      "compile", "Compile a model's kernels ahead of time, into the store and a bundle");
  command->add_option("MODEL", flags->model, "A GGUF file")->required()->type_name("");
  command->add_option("-o", flags->output, "Write a bundle: the plan with its kernels")
      ->type_name("DIR.qplan");
  command
      ->add_option(
          "--target", flags->target,
          "What to compile for: native, cpu, x86-64-v3, x86-64-v4, or sm_80, sm_90a ... for a GPU "
          "(default: --device)")
      ->type_name("TARGET");
  command
      ->add_option("--jobs", flags->jobs, "Kernels compiled at a time (default: one for each CPU)")
      ->type_name("N")
      ->check(CLI::Range(1U, 1024U));
  command->add_flag("--json", flags->json, "Print JSON (docs/json.md)");
  command->add_flag("-v,--verbose", flags->verbose, "Say on stderr what is done; twice for more");
  add_plan_flags(*command, flags->plan);
  command->callback([flags, &action] {
    action = [flags] {
      set_up_logging(flags->verbose);
      return run_compile(*flags);
    };
  });
}

}  // namespace quern::tools
