// quern bench: tokens per second of prompts (pp) and of generation (tg), by the conventions that
// users of GGUF tools know: random token ids, one warm-up, a fresh state each repetition, the last
// token's logits alone, no tokenising and no sampling inside the clock.

#include <chrono>
#include <cmath>
#include <memory>
#include <random>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/output.h"

namespace quern::tools {
namespace {

using nlohmann::ordered_json;

struct BenchFlags {
  SourceFlags source;
  std::string prompts = "512", generations = "128", depths = "0";
  uint32_t repetitions = 5;
  std::string format = "md";
};

struct Test {
  uint32_t prompt = 0, generation = 0, depth = 0;

  std::string name() const {
    std::string text = prompt > 0 ? fmt::format("pp{}", prompt) : fmt::format("tg{}", generation);
    if (depth > 0) text += fmt::format(" @ d{}", depth);
    return text;
  }
  uint32_t tokens() const { return prompt + generation; }
};

struct Result {
  Test test;
  std::vector<double> samples_ns;

  std::vector<double> speeds() const {
    std::vector<double> values;
    values.reserve(samples_ns.size());
    for (const double ns : samples_ns) values.push_back(test.tokens() * 1e9 / ns);
    return values;
  }
};

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

/// Random ids, BOS first where the model wants one. A fixed seed: runs compare like with like.
std::vector<TokenId> random_tokens(uint32_t count, uint32_t vocabulary,
                                   const Tokenizer& tokenizer) {
  std::mt19937 random(42);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocabulary);
  const std::optional<TokenId> bos = tokenizer.bos();
  if (count > 0 && tokenizer.has_text() && tokenizer.adds_bos() && bos) tokens[0] = *bos;
  return tokens;
}

/// One repetition: the depth is filled outside the clock.
double time_once(Session& session, const Test& test, std::span<const TokenId> tokens) {
  session.reset();
  if (test.depth > 0) session.feed(tokens.first(test.depth), 0, OutputRows::none);
  const std::span<const TokenId> rest = tokens.subspan(test.depth);
  const auto start = std::chrono::steady_clock::now();
  if (test.prompt > 0) {
    session.feed(rest, test.depth, OutputRows::last);
  } else {
    for (uint32_t i = 0; i < test.generation; ++i) {
      session.feed(rest.subspan(i, 1), test.depth + i, OutputRows::last);
    }
  }
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

std::vector<uint32_t> parse_counts(const std::string& text, std::string_view flag) {
  if (text.empty()) return {};
  std::vector<uint32_t> counts;
  for (const int32_t count : parse_ids(text, flag)) {
    if (count > 0) counts.push_back(static_cast<uint32_t>(count));
  }
  return counts;
}

std::vector<Test> list_tests(const BenchFlags& flags) {
  std::vector<Test> tests;
  for (const int32_t depth : parse_ids(flags.depths, "-d")) {
    const auto d = static_cast<uint32_t>(depth);
    for (const uint32_t p : parse_counts(flags.prompts, "-p")) tests.push_back({p, 0, d});
    for (const uint32_t n : parse_counts(flags.generations, "-n")) tests.push_back({0, n, d});
  }
  if (tests.empty()) {
    throw Error(ErrorKind::usage, "bench", "there is nothing to measure", "give -p or -n a count");
  }
  return tests;
}

struct ModelLine {
  std::string name;
  uint64_t bytes = 0, parameters = 0;
};

ModelLine describe(const gguf::File& file, const Plan& plan) {
  ModelLine line;
  line.name = fmt::format("{} {}", plan.architecture, plan.model_name);
  for (const gguf::Tensor& tensor : file.tensors()) {
    line.bytes += tensor.data.size();
    line.parameters += tensor.elements();
  }
  return line;
}

ordered_json row_to_json(const Result& result, const Engine& engine, const ModelLine& model) {
  const Plan& plan = engine.plan();
  const std::vector<double> speeds = result.speeds();
  return {{"model", model.name},
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
}

std::string md_row(const ordered_json& row) {
  return fmt::format(
      "| {} | {} | {} | {} | {} | {} | {:.2f} ± {:.2f} |\n", row["model"].get<std::string>(),
      human_bytes(row["model_size"]), human_count(row["model_n_params"]),
      fmt::format("{} {}", row["backend"].get<std::string>(), row["target"].get<std::string>()),
      row["n_threads"].get<uint32_t>(), row["test"].get<std::string>(), row["avg_ts"].get<double>(),
      row["stddev_ts"].get<double>());
}

std::string csv_cell(std::string_view text) {
  std::string cell = "\"";
  for (const char c : text) cell.append(c == '"' ? 2 : 1, c);
  cell.push_back('"');
  return cell;
}

std::string csv_row(const ordered_json& row, bool header) {
  std::string line;
  for (const auto& [key, value] : row.items()) {
    if (value.is_array()) continue;
    if (!line.empty()) line.push_back(',');
    const bool plain = !header && value.is_string();
    line.append(csv_cell(header ? key : plain ? value.get<std::string>() : value.dump()));
  }
  line.push_back('\n');
  return line;
}

int run_bench(BenchFlags flags) {
  const std::vector<Test> tests = list_tests(flags);
  uint32_t longest = 0;
  for (const Test& test : tests) longest = std::max(longest, test.tokens() + test.depth);
  if (!is_plan(flags.source.source) && flags.source.plan.context == 0)
    flags.source.plan.context = longest;
  PreparedModel prepared = prepare_model(flags.source, false);
  check_prompt_fits(longest, prepared.plan, false);
  const ModelLine model = describe(prepared.file, prepared.plan);
  const Tokenizer tokenizer = Tokenizer::from_metadata(prepared.file.metadata());
  const std::vector<TokenId> tokens = random_tokens(longest, prepared.plan.vocabulary, tokenizer);
  const LoadedModel loaded = load_model(std::move(prepared), flags.source);
  const std::unique_ptr<Session> session = loaded.engine->new_session();

  if (flags.format == "md") {
    write_out_now(
        "| model | size | params | backend | threads | test | t/s |\n"
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |\n");
  }
  ordered_json rows = ordered_json::array();
  const Progress progress = terminal_progress();
  for (size_t i = 0; i < tests.size(); ++i) {
    Result result{tests[i], {}};
    const auto used = std::span(tokens).first(tests[i].depth + tests[i].tokens());
    time_once(*session, tests[i], used);  // warm-up
    for (uint32_t r = 0; r < flags.repetitions; ++r) {
      if (progress) progress(tests[i].name(), r, flags.repetitions);
      result.samples_ns.push_back(time_once(*session, tests[i], used));
    }
    end_progress();
    rows.push_back(row_to_json(result, *loaded.engine, model));
    if (flags.format == "md") write_out_now(md_row(rows.back()));
    if (flags.format == "csv") {
      if (i == 0) write_out(csv_row(rows.back(), true));
      write_out_now(csv_row(rows.back(), false));
    }
  }
  if (flags.format == "json") {
    const LoadStats& load = loaded.engine->load_stats();
    ordered_json json;
    json["version"] = QUERN_VERSION;
    json["load"] = {{"kernels_compiled", load.kernels_compiled},
                    {"kernels_loaded", load.kernels_loaded},
                    {"compile_ms", load.compile_ms},
                    {"load_kernels_ms", load.load_kernels_ms},
                    {"weights_ms", load.weights_ms}};
    json["rows"] = std::move(rows);
    write_out(json.dump(2) + "\n");
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand("bench", "Measure tokens per second");
  add_source_flags(*command, flags->source);
  command->get_option("--ctx")->description(
      "Context length in tokens (default: what the longest test needs)");
  command->add_option("-p", flags->prompts, "Prompt lengths, by commas; 0 for none")
      ->type_name("LIST")
      ->capture_default_str();
  command->add_option("-n", flags->generations, "Tokens to generate, by commas; 0 for none")
      ->type_name("LIST")
      ->capture_default_str();
  command->add_option("-d", flags->depths, "Tokens in the context before the clock starts")
      ->type_name("LIST")
      ->capture_default_str();
  command->add_option("-r", flags->repetitions, "Repetitions of each test, after one warm-up")
      ->type_name("N")
      ->check(CLI::Range(1U, 10000U))
      ->capture_default_str();
  command->add_option("-o", flags->format, "Output: md, csv or json (docs/json.md)")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"md", "csv", "json"}))
      ->capture_default_str();
  command->callback([flags, &action] {
    action = [flags] {
      set_up_logging(flags->source.verbose);
      return run_bench(*flags);
    };
  });
}

}  // namespace quern::tools
