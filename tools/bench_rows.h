#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/gguf/file.h"
#include "runtime/engine.h"
#include "tools/bench_controls.h"

namespace quern::tools {

/// One test of a benchmark: a prompt or a generation, with `depth` tokens before it.
struct BenchTest {
  uint32_t prompt = 0, generation = 0, depth = 0;

  /// "pp512", "tg128 @ d4096".
  std::string name() const;
  uint32_t tokens() const { return prompt + generation; }
};

struct BenchResult {
  BenchTest test;
  std::vector<double> samples_ns;
  Controls controls;
};

/// What rows say about the model.
struct BenchModel {
  std::string name;
  uint64_t bytes = 0, parameters = 0;
};
BenchModel describe_model(const gguf::File& file, const Plan& plan);

/// One row with everything that is known of it; Markdown and CSV show parts of it.
nlohmann::ordered_json bench_row(const BenchResult& result, const Engine& engine,
                                 const BenchModel& model);
/// The times of a load: kernels compiled (JIT), kernels loaded, weights.
nlohmann::ordered_json bench_load(const LoadStats& load);

/// The head of a table of rows like this one, the row, and the line after the last. The columns of
/// controls are those of a GPU alone.
std::string markdown_head(const nlohmann::ordered_json& row);
std::string markdown_row(const nlohmann::ordered_json& row);
std::string markdown_load(const nlohmann::ordered_json& load);

/// A CSV line of a row and of the load, or of their names. Lists (samples) are left out.
std::string csv_line(const nlohmann::ordered_json& row, const nlohmann::ordered_json& load,
                     bool names);

}  // namespace quern::tools
