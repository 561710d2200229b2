// quern plan: shows a plan, compares two, and reports how its kernels stand in the store.

#include <map>
#include <memory>

#include <fmt/format.h>

#include "models/error.h"
#include "tools/cache_why.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/output.h"
#include "tools/plan_kernels.h"

namespace quern::tools {
namespace {

struct PlanCommandFlags {
  std::string first, second;
  PlanFlags plan;
  bool json = false;
};

int show(const PlanCommandFlags& flags) {
  const Plan plan = read_plan(flags.first, flags.plan);
  std::string text = flags.json ? plan_to_json(plan) : describe_plan(plan);
  if (!text.ends_with('\n')) text += '\n';
  write_out(text);
  return 0;
}

int diff(const PlanCommandFlags& flags) {
  const std::vector<std::string> lines =
      diff_plans(read_plan(flags.first, flags.plan), read_plan(flags.second, flags.plan));
  for (const std::string& line : lines) write_out(line + "\n");
  if (lines.empty()) write_out("no difference\n");
  return 0;
}

int report(const PlanCommandFlags& flags) {
  const Plan plan = read_plan(flags.first, flags.plan);
  std::optional<std::filesystem::path> bundle;
  if (std::filesystem::is_directory(flags.first)) bundle = flags.first;
  std::map<std::string, StoreEntry> entries;
  for (StoreEntry& entry : KernelStore(store_options("readonly", bundle)).list()) {
    entries.emplace(entry.key_digest, std::move(entry));
  }
  std::map<std::string, uint32_t> launches;
  for (const Step& step : plan.steps) {
    ++launches[plan.kernels[step.kernel].key_digest];
    for (const StepVariant& variant : step.variants) {
      ++launches[plan.kernels[variant.kernel].key_digest];
    }
  }
  for (const WeightBinding& weight : plan.weights) {
    if (weight.form == WeightForm::packed) {
      ++launches[plan.kernels[weight.repack_kernel].key_digest];
    }
  }
  uint64_t present = 0, bytes = 0;
  const std::vector<uint32_t> kernels = distinct_kernels(plan);
  for (const uint32_t index : kernels) {
    const PlanKernel& kernel = plan.kernels[index];
    const auto entry = entries.find(kernel.key_digest);
    write_out(fmt::format("{} {:<10} x{:<4} ", kernel.key_digest.substr(0, 12),
                          spec_family(kernel.spec), launches[kernel.key_digest]));
    if (entry == entries.end()) {
      write_out("not compiled\n");
    } else {
      std::string facts = human_bytes(entry->second.file_bytes);
      for (const auto& [name, value] : entry->second.record) {
        if (value.size() <= 24) facts += fmt::format(", {} {}", name, value);
      }
      write_out(facts + "\n");
      ++present;
      bytes += entry->second.file_bytes;
    }
    write_out(fmt::format("  {}\n", spec_to_text(kernel.spec)));
  }
  write_out(fmt::format("{} kernels for {}, {} compiled ({})\n", kernels.size(), plan.target.name,
                        present, human_bytes(bytes)));
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  auto flags = std::make_shared<PlanCommandFlags>();
  CLI::App* command = app.add_subcommand("plan", "Show, compare and explain plans");
  auto add = [&](const char* name, const char* description, int (*run)(const PlanCommandFlags&)) {
    CLI::App* sub = command->add_subcommand(name, description);
    sub->add_option("PLAN", flags->first, "A bundle, a plan.json, or a GGUF file to plan for")
        ->required()
        ->type_name("");
    sub->callback([flags, run, &action] {
      action = [flags, run] {
        set_up_logging(0);
        return run(*flags);
      };
    });
    return sub;
  };
  CLI::App* show_command = add("show", "Print a plan for people, or its JSON", show);
  show_command->add_flag("--json", flags->json, "Print the canonical JSON");
  CLI::App* diff_command = add("diff", "List the differences of two plans", diff);
  diff_command->add_option("OTHER", flags->second, "The plan to compare with")
      ->required()
      ->type_name("");
  CLI::App* report_command =
      add("report", "List a plan's kernels and what the store has of them", report);
  for (CLI::App* sub : {show_command, diff_command, report_command}) {
    add_plan_flags(*sub, flags->plan);
  }
}

}  // namespace quern::tools
