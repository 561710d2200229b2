#include "tools/bench_rows.h"

#include <cmath>

#include <fmt/format.h>

#include "tools/output.h"

namespace quern::tools {
namespace {

using nlohmann::ordered_json;

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// Sample standard deviation; 0 for a single value.
double deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double average = mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - average) * (value - average);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

/// Every key is always there, so that the columns of a CSV file do not move.
ordered_json controls_to_json(const Controls& controls) {
  ordered_json json = {{"gemm_rows", nullptr},
                       {"gemm_k", nullptr},
                       {"gemm_tokens", nullptr},
                       {"gemm_tflops", nullptr},
                       {"copy_gb_per_s", nullptr}};
  if (controls.gemm) {
    json["gemm_rows"] = controls.gemm->size.rows;
    json["gemm_k"] = controls.gemm->size.k;
    json["gemm_tokens"] = controls.gemm->tokens;
    json["gemm_tflops"] = controls.gemm->tflops;
  }
  if (controls.copy_gb_per_s) json["copy_gb_per_s"] = *controls.copy_gb_per_s;
  return json;
}

std::string csv_cell(const ordered_json& value) {
  const std::string text = value.is_string() ? value.get<std::string>()
                           : value.is_null() ? std::string()
                                             : value.dump();
  std::string cell = "\"";
  for (const char c : text) cell.append(c == '"' ? 2 : 1, c);
  cell.push_back('"');
  return cell;
}

/// Adds the cells of an object; those of an object inside it have its name before theirs.
void add_cells(std::string& line, const ordered_json& object, const std::string& prefix,
               bool names) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_array()) continue;
    if (value.is_object()) {
      add_cells(line, value, key + "_", names);
      continue;
    }
    if (!line.empty()) line.push_back(',');
    line.append(csv_cell(names ? ordered_json(prefix + key) : value));
  }
}

std::string control_cells(const ordered_json& controls) {
  const auto cell = [&](const char* key) {
    const ordered_json& value = controls[key];
    return value.is_null() ? "" : fmt::format("{:.0f}", value.get<double>());
  };
  return fmt::format(" {} | {} |", cell("gemm_tflops"), cell("copy_gb_per_s"));
}

}  // namespace

std::string BenchTest::name() const {
  std::string text = prompt > 0 ? fmt::format("pp{}", prompt) : fmt::format("tg{}", generation);
  if (depth > 0) text += fmt::format(" @ d{}", depth);
  return text;
}

BenchModel describe_model(const gguf::File& file, const Plan& plan) {
  BenchModel model;
  model.name = fmt::format("{} {}", plan.architecture, plan.model_name);
  for (const gguf::Tensor& tensor : file.tensors()) {
    model.bytes += tensor.data.size();
    model.parameters += tensor.elements();
  }
  return model;
}

ordered_json bench_row(const BenchResult& result, const Engine& engine, const BenchModel& model) {
  const Plan& plan = engine.plan();
  std::vector<double> speeds;
  for (const double ns : result.samples_ns) speeds.push_back(result.test.tokens() * 1e9 / ns);
  ordered_json row = {{"model", model.name},
                      {"model_size", model.bytes},
                      {"model_n_params", model.parameters},
                      {"backend", plan.target.kind},
                      {"target", plan.target.name},
                      {"n_threads", engine.threads()},
                      {"chunk", plan.options.chunk},
                      {"kv", plan.options.kv},
                      {"test", result.test.name()},
                      {"n_prompt", result.test.prompt},
                      {"n_gen", result.test.generation},
                      {"n_depth", result.test.depth},
                      {"avg_ns", mean(result.samples_ns)},
                      {"stddev_ns", deviation(result.samples_ns)},
                      {"avg_ts", mean(speeds)},
                      {"stddev_ts", deviation(speeds)},
                      {"samples_ns", result.samples_ns},
                      {"samples_ts", speeds}};
  if (plan.target.kind != "cpu") row["control"] = controls_to_json(result.controls);
  return row;
}

ordered_json bench_load(const LoadStats& load) {
  return {{"kernels_compiled", load.kernels_compiled},
          {"kernels_loaded", load.kernels_loaded},
          {"compile_ms", load.compile_ms},
          {"load_kernels_ms", load.load_kernels_ms},
          {"weights_ms", load.weights_ms}};
}

std::string markdown_head(const ordered_json& row) {
  const bool controls = row.contains("control");
  return fmt::format(
      "| model | size | params | backend | threads | test | t/s |{}\n"
      "| --- | ---: | ---: | --- | ---: | ---: | ---: |{}\n",
      controls ? " cuBLAS TFLOP/s | copy GB/s |" : "", controls ? " ---: | ---: |" : "");
}

std::string markdown_row(const ordered_json& row) {
  return fmt::format(
      "| {} | {} | {} | {} {} | {} | {} | {:.2f} ± {:.2f} |{}\n", row["model"].get<std::string>(),
      human_bytes(row["model_size"]), human_count(row["model_n_params"]),
      row["backend"].get<std::string>(), row["target"].get<std::string>(),
      row["n_threads"].get<uint32_t>(), row["test"].get<std::string>(), row["avg_ts"].get<double>(),
      row["stddev_ts"].get<double>(), row.contains("control") ? control_cells(row["control"]) : "");
}

std::string markdown_load(const ordered_json& load) {
  return fmt::format(
      "\nload: {} kernels compiled in {:.0f} ms, {} loaded in {:.1f} ms; weights in "
      "{:.0f} ms\n",
      load["kernels_compiled"].get<uint32_t>(), load["compile_ms"].get<double>(),
      load["kernels_loaded"].get<uint32_t>(), load["load_kernels_ms"].get<double>(),
      load["weights_ms"].get<double>());
}

std::string csv_line(const ordered_json& row, const ordered_json& load, bool names) {
  std::string line;
  add_cells(line, row, "", names);
  add_cells(line, load, "", names);
  line.push_back('\n');
  return line;
}

}  // namespace quern::tools
