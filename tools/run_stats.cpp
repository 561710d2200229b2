#include "tools/run_stats.h"

#include <sys/resource.h>

#include <fmt/format.h>

#include "tools/output.h"

namespace quern::tools {

uint64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

std::string stats_text(const LoadedModel& model, const RunStats& run) {
  const LoadStats& load = model.engine->load_stats();
  auto speed = [](uint64_t tokens, double ms) {
    return ms > 0 ? static_cast<double>(tokens) * 1000 / ms : 0.0;
  };
  std::string text;
  text += fmt::format("open:       {:.1f} ms\n", model.open_ms);
  text += fmt::format("plan:       {:.1f} ms\n", model.plan_ms);
  text += fmt::format("kernels:    {} compiled ({:.1f} ms), {} loaded ({:.1f} ms)\n",
                      load.kernels_compiled, load.compile_ms, load.kernels_loaded,
                      load.load_kernels_ms);
  text +=
      fmt::format("weights:    {} in {:.1f} ms\n", human_bytes(load.weight_bytes), load.weights_ms);
  text += fmt::format("prompt:     {} tokens in {:.1f} ms, {:.2f} t/s\n", run.prompt_tokens,
                      run.prompt_ms, speed(run.prompt_tokens, run.prompt_ms));
  text += fmt::format("generation: {} tokens in {:.1f} ms, {:.2f} t/s\n", run.generated_tokens,
                      run.generation_ms, speed(run.generated_tokens, run.generation_ms));
  text += fmt::format("threads:    {}\n", model.engine->threads());
  text += fmt::format("memory:     {} peak resident\n", human_bytes(peak_resident_bytes()));
  return text;
}

}  // namespace quern::tools
