// quern cache: looks into the kernel store.

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <ctime>
#include <map>
#include <memory>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/cuda/cuda_compiler.h"
#include "models/error.h"
#include "models/model.h"
#include "tools/cache_why.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/output.h"

namespace quern::tools {
namespace {

using nlohmann::ordered_json;

struct CacheFlags {
  std::string first, second, output, max_size;
  std::vector<std::string> digests;
  bool json = false, ir = false, assembly = false, source = false, ptx = false, record = false;
  WhyFlags why;
};

std::filesystem::path store_folder() {
  const std::optional<std::filesystem::path> path = default_store_path();
  if (!path) {
    throw Error(ErrorKind::failed, "store", "there is no folder for it",
                "set QUERN_CACHE_DIR or HOME");
  }
  return *path;
}

KernelStore open_store() {
  store_folder();
  return KernelStore(store_options("readonly", std::nullopt));
}

StoreEntry find_entry(const KernelStore& store, const std::string& digest) {
  std::optional<StoreEntry> entry = store.entry(digest);
  if (!entry) {
    throw Error(ErrorKind::failed, digest, "no kernel of the store begins with these digits",
                "quern cache ls lists them");
  }
  return *std::move(entry);
}

std::string time_text(std::chrono::system_clock::time_point time) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
}

ordered_json entry_to_json(const StoreEntry& entry) {
  ordered_json json = {{"key", entry.key_digest},
                       {"entry", entry.entry_digest},
                       {"family", entry.family},
                       {"bytes", entry.file_bytes},
                       {"last_used", time_text(entry.last_used)},
                       {"path", entry.path.string()}};
  for (const auto& [name, value] : entry.key.fields) json["fields"][name] = value;
  json["record"] = ordered_json::object();
  for (const auto& [name, value] : entry.record) json["record"][name] = value;
  return json;
}

/// The target that a kernel's key names: "cpu NAME FEATURES" or "cuda NAME"; empty where it names
/// none.
Target target_of_key(const KernelKey& key) {
  Target target;
  for (const auto& [name, value] : key.fields) {
    if (name != "target") continue;
    const size_t first = std::min(value.find(' '), value.size());
    const size_t second = std::min(value.find(' ', first + 1), value.size());
    target.kind = value.substr(0, first);
    if (first < value.size()) target.name = value.substr(first + 1, second - first - 1);
    if (second < value.size()) target.features = value.substr(second + 1);
  }
  return target;
}

int list_entries(const CacheFlags& flags) {
  const KernelStore store = open_store();
  const std::vector<StoreEntry> entries = store.list();
  if (flags.json) {
    ordered_json json = ordered_json::array();
    for (const StoreEntry& entry : entries) json.push_back(entry_to_json(entry));
    write_out(json.dump(2) + "\n");
    return 0;
  }
  uint64_t bytes = 0;
  for (const StoreEntry& entry : entries) {
    bytes += entry.file_bytes;
    std::string spec = entry.spec;
    if (spec.size() > 100) spec = spec.substr(0, 97) + "...";
    write_out(fmt::format("{}  {:<10} {:<9} {:>10}  {}  {}\n", entry.key_digest.substr(0, 12),
                          entry.family, target_of_key(entry.key).name,
                          human_bytes(entry.file_bytes), time_text(entry.last_used), spec));
  }
  write_out(fmt::format("{} kernels, {}\n", entries.size(), human_bytes(bytes)));
  return 0;
}

/// What the kernel's machine code was made from. The store keeps the code alone: source, IR, PTX
/// and assembly are made again from the same spec and target.
void write_listing(const CacheFlags& flags, const StoreEntry& entry) {
  const spec::AnySpec spec = spec_from_text(entry.spec);
  const Target target = target_of_key(entry.key);
  if (target.kind.empty()) {
    throw Error(ErrorKind::failed, entry.key_digest.substr(0, 12), "its key names no target",
                "quern cache prune removes it");
  }
  const bool is_gpu = target.kind == "cuda";
  if (is_gpu != (flags.source || flags.ptx)) {
    throw Error(ErrorKind::usage, entry.key_digest.substr(0, 12),
                fmt::format("is a kernel for {}", target.name),
                is_gpu ? "use --source or --ptx" : "use --ir or --asm");
  }
  if (flags.source) write_out(cuda::emit_source(spec));
  if (flags.ptx) write_out(cuda::kernel_ptx(spec, target));
  if (flags.ir) write_out(cpu::kernel_ir(spec, target));
  if (flags.assembly) write_out(cpu::kernel_assembly(spec, target));
}

int show_entry(const CacheFlags& flags) {
  const KernelStore store = open_store();
  const StoreEntry entry = find_entry(store, flags.first);
  if (flags.ir || flags.assembly || flags.source || flags.ptx) {
    write_listing(flags, entry);
    return 0;
  }
  if (flags.json) {
    write_out(entry_to_json(entry).dump(2) + "\n");
    return 0;
  }
  if (!flags.record) {
    write_out(fmt::format("key        {}\nentry      {}\nfile       {} ({})\nlast used  {}\n",
                          entry.key_digest, entry.entry_digest, entry.path.string(),
                          human_bytes(entry.file_bytes), time_text(entry.last_used)));
    for (const auto& [name, value] : entry.key.fields) {
      write_out(fmt::format("{:<10} {}\n", name, value));
    }
    write_out("\n");
  }
  for (const auto& [name, value] : entry.record) {
    write_out(fmt::format("{:<16} {}\n", name, value));
  }
  return 0;
}

int verify_entries(const CacheFlags&) {
  const KernelStore store = open_store();
  uint64_t good = 0, bad = 0;
  for (const KernelStore::Verification& result : store.verify()) {
    ++(result.good ? good : bad);
    if (!result.good) write_out(fmt::format("bad {}: {}\n", result.path.string(), result.problem));
  }
  write_out(fmt::format("{} good, {} bad\n", good, bad));
  if (bad == 0) return 0;
  throw Error(ErrorKind::failed, store_folder().string(), fmt::format("{} bad kernels", bad),
              "they are compiled again when they are needed; quern cache prune removes them");
}

/// "500M", "2G", "0": bytes, with units of 1024.
uint64_t parse_size(const std::string& text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  const std::string_view unit(stop, static_cast<size_t>(end - stop));
  constexpr std::array<std::pair<std::string_view, int>, 5> units = {
      {{"", 0}, {"K", 10}, {"M", 20}, {"G", 30}, {"T", 40}}};
  for (const auto& [name, shift] : units) {
    if (code == std::errc{} && unit == name && value <= (UINT64_MAX >> shift))
      return value << shift;
  }
  throw Error(ErrorKind::usage, "--max-size", fmt::format("'{}' is no size", text),
              "give bytes, or a number with K, M, G or T");
}

int prune_entries(const CacheFlags& flags) {
  const uint64_t limit = parse_size(flags.max_size);
  store_folder();
  KernelStore store(store_options("auto", std::nullopt));
  uint64_t bytes = 0, count = 0;
  for (const StoreEntry& entry : store.prune(limit)) {
    bytes += entry.file_bytes;
    ++count;
  }
  write_out(fmt::format("{} kernels removed, {}\n", count, human_bytes(bytes)));
  return 0;
}

int diff_entries(const CacheFlags& flags) {
  const KernelStore store = open_store();
  const StoreEntry first = find_entry(store, flags.first);
  const StoreEntry second = find_entry(store, flags.second);
  const std::vector<std::string> lines = key_differences(first.key, second.key);
  for (const std::string& line : lines) write_out(line + "\n");
  if (lines.empty()) write_out("no difference\n");
  return 0;
}

int export_entries(const CacheFlags& flags) {
  const KernelStore store = open_store();
  std::vector<std::string> keys;
  keys.reserve(flags.digests.size());
  for (const std::string& digest : flags.digests) {
    keys.push_back(find_entry(store, digest).key_digest);
  }
  if (flags.digests.empty()) {
    for (const StoreEntry& entry : store.list()) keys.push_back(entry.key_digest);
  }
  store.export_entries(keys, flags.output);
  write_out(fmt::format("{} kernels in {}\n", keys.size(), flags.output));
  return 0;
}

int print_path(const CacheFlags&) {
  write_out(store_folder().string() + "\n");
  return 0;
}

}  // namespace

void add_cache(CLI::App& app, Action& action) {
  auto flags = std::make_shared<CacheFlags>();
  CLI::App* command = app.add_subcommand("cache", "Look into the kernel store");
  auto add = [&](const char* name, const char* description, int (*run)(const CacheFlags&)) {
    CLI::App* sub = command->add_subcommand(name, description);
    sub->callback([flags, run, &action] {
      action = [flags, run] {
        set_up_logging(0);
        return run(*flags);
      };
    });
    return sub;
  };
  auto digest = [](CLI::App* sub, const char* name, std::string& value) {
    sub->add_option(name, value, "The first digits of a kernel's key or entry digest")
        ->required()
        ->type_name("");
  };
  add("ls", "List the kernels", list_entries)
      ->add_flag("--json", flags->json, "Print JSON (docs/json.md)");
  CLI::App* show =
      add("show", "Show one kernel: key, record, source, LLVM IR, PTX, assembly", show_entry);
  digest(show, "DIGEST", flags->first);
  show->add_flag("--record", flags->record, "Print the compile record alone");
  show->add_flag("--ir", flags->ir, "Print a CPU kernel's optimised LLVM IR");
  show->add_flag("--asm", flags->assembly, "Print a CPU kernel's assembly");
  show->add_flag("--source", flags->source, "Print a GPU kernel's source");
  show->add_flag("--ptx", flags->ptx, "Print a GPU kernel's PTX");
  show->add_flag("--json", flags->json, "Print JSON (docs/json.md)");
  add("verify", "Check every kernel's digest; exit 1 where one is bad", verify_entries);
  add("prune", "Remove the least recently used kernels", prune_entries)
      ->add_option("--max-size", flags->max_size, "Bytes to keep; K, M, G and T are understood")
      ->required()
      ->type_name("SIZE");
  CLI::App* diff = add("diff", "Say field by field why two kernels' keys differ", diff_entries);
  digest(diff, "DIGEST", flags->first);
  digest(diff, "OTHER", flags->second);
  CLI::App* why = add("why", "Explain hit or miss, kernel by kernel, for a model",
                      [](const CacheFlags& given) { return explain_kernels(given.why); });
  why->add_option("MODEL", flags->why.source, "A GGUF file, a bundle or a plan.json")
      ->required()
      ->type_name("");
  why->add_option("--target", flags->why.target,
                  "What the kernels are for, as for quern compile (default: --device)")
      ->type_name("TARGET");
  why->add_flag("--json", flags->why.json, "Print JSON (docs/json.md)");
  add_plan_flags(*why, flags->why.plan);
  CLI::App* export_command =
      add("export", "Copy kernels into a folder, in the store's format", export_entries);
  export_command->add_option("-o", flags->output, "The folder")->required()->type_name("DIR");
  export_command->add_option("DIGEST", flags->digests, "Which kernels (default: all)")
      ->type_name("");
  add("path", "Print the store's folder", print_path);
}

}  // namespace quern::tools
