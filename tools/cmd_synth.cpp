// quern synth: a GGUF file of a published model's shape with random weights, for speed runs and
// tests where the real file cannot be had.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "models/error.h"
#include "models/synth/synth.h"
#include "runtime/cpu/thread_pool.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/output.h"

namespace quern::tools {
namespace {

struct SynthFlags {
  std::string shape, mix = "q4_k_m", out;
  uint64_t seed = 1;
  uint32_t threads = 0;
  bool list = false;
};

int list_known() {
  std::string text = "shapes, and their size as q4_k_m:\n";
  for (const synth::Shape& shape : synth::shapes()) {
    const auto tensors = synth::tensors_of(shape, synth::mix_named("q4_k_m"));
    text += fmt::format("  {:<20} {:<10} {:>9} {:>11}\n", shape.name, shape.architecture,
                        human_count(synth::total_values(tensors)),
                        human_bytes(synth::total_bytes(tensors)));
  }
  text += "mixes:\n ";
  for (const synth::Mix& mix : synth::mixes()) text += fmt::format(" {}", mix.name);
  write_out(text + "\n");
  return 0;
}

/// Says at once what would fail after minutes of writing.
void check_space(const std::filesystem::path& out, uint64_t bytes) {
  std::error_code error;
  if (std::filesystem::exists(out, error) && !std::filesystem::is_regular_file(out, error)) return;
  const auto folder = out.has_parent_path() ? out.parent_path() : std::filesystem::path(".");
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error || space.available >= bytes) return;
  throw Error(ErrorKind::failed, out.string(),
              fmt::format("takes {} and {} of the disk are free", human_bytes(bytes),
                          human_bytes(space.available)),
              "make room or write elsewhere");
}

int synthesise(const SynthFlags& flags) {
  if (flags.shape.empty() || flags.out.empty()) {
    throw Error(ErrorKind::usage, flags.shape.empty() ? "NAME" : "-o", "is needed",
                "quern synth NAME --mix MIX -o OUT.gguf; --list names shapes and mixes");
  }
  const synth::Shape& shape = synth::shape_named(flags.shape);
  const synth::Mix& mix = synth::mix_named(flags.mix);
  const auto tensors = synth::tensors_of(shape, mix);
  AtomicFile file(flags.out);
  check_space(flags.out, synth::total_bytes(tensors));
  synth::SynthOptions options;
  options.seed = flags.seed;
  options.threads = flags.threads > 0 ? flags.threads : cpu::usable_cpus();
  if (const Progress progress = terminal_progress()) {
    options.progress = [progress](uint64_t done, uint64_t total) {
      progress("MiB written", done >> 20, total >> 20);
    };
  }
  const auto start = std::chrono::steady_clock::now();
  uint64_t bytes = 0;
  synth::write_synthetic(shape, mix, options, [&](std::span<const std::byte> piece) {
    file.write(piece.data(), piece.size());
    bytes += piece.size();
  });
  file.commit();
  end_progress();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  write_out(fmt::format("{}: {} {}, {} tensors, {} parameters, {} in {:.1f} s\n", flags.out,
                        shape.name, mix.name, tensors.size(),
                        human_count(synth::total_values(tensors)), human_bytes(bytes),
                        seconds.count()));
  return 0;
}

}  // namespace

void add_synth(CLI::App& app, Action& action) {
  auto flags = std::make_shared<SynthFlags>();
  CLI::App* command = app.add_subcommand(
      "synth", "Write a GGUF file of a published model's shape with random weights");
  command->add_option("NAME", flags->shape, "The shape; --list names them")->type_name("");
  command->add_option("--mix", flags->mix, "The mix of quant types; --list names them")
      ->type_name("MIX")
      ->capture_default_str();
  command->add_option("-o", flags->out, "The file to write")->type_name("OUT.gguf");
  command->add_option("--seed", flags->seed, "Chooses the values")
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "Worker threads (default: one for each CPU)")
      ->type_name("N")
      ->check(CLI::Range(1U, 1024U));
  command->add_flag("--list", flags->list, "List shapes and mixes");
  command->callback([flags, &action] {
    action = [flags] {
      set_up_logging(0);
      return flags->list ? list_known() : synthesise(*flags);
    };
  });
}

}  // namespace quern::tools
