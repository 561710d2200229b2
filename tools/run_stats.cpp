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

std::string stats_text(const LoadedModel& model, const Generation& run) {
  const LoadStats& load = model.engine->load_stats();
  std::string text;
  text += fmt::format("open:       {:.1f} ms\n", model.open_ms);
  text += fmt::format("plan:       {:.1f} ms\n", model.plan_ms);
  text += fmt::format("kernels:    {} compiled ({:.1f} ms), {} loaded ({:.1f} ms)\n",
                      load.kernels_compiled, load.compile_ms, load.kernels_loaded,
                      load.load_kernels_ms);
  text +=
      fmt::format("weights:    {} in {:.1f} ms\n", human_bytes(load.weight_bytes), load.weights_ms);
  text += fmt::format("prompt:     {} tokens in {:.1f} ms, {:.2f} t/s\n", run.prompt_tokens,
                      run.prompt_ms, run.prompt_tokens_per_second());
  text += fmt::format("generation: {} tokens in {:.1f} ms, {:.2f} t/s\n", run.steps,
                      run.generation_ms, run.tokens_per_second());
  text += fmt::format("threads:    {}\n", model.engine->threads());
  text += fmt::format("memory:     {} peak resident\n", human_bytes(peak_resident_bytes()));
  return text;
}

}  // namespace quern::tools
