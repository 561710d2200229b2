// quern bench: tokens per second of prompts (pp) and of generation (tg), by the conventions that
// users of GGUF tools know: random token ids, one warm-up, a fresh state each repetition, the last
// token's logits alone, no tokenising and no sampling inside the clock.

#include <chrono>
#include <memory>
#include <random>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/synth/shapes.h"
#include "tools/bench_controls.h"
#include "tools/bench_rows.h"
#include "tools/bench_shape.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/output.h"

namespace quern::tools {
namespace {

using nlohmann::ordered_json;

struct BenchFlags {
  SourceFlags source;
  std::string shape, mix = "q4_k_m";
  const CLI::Option* mix_option = nullptr;
  double synth_ms = 0;
  std::string prompts = "512", generations = "128", depths = "0";
  uint32_t repetitions = 5;
  std::string format = "md";

  bool mix_given() const { return mix_option->count() > 0; }
};

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
double time_once(Session& session, const BenchTest& test, std::span<const TokenId> tokens) {
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

std::vector<BenchTest> list_tests(const BenchFlags& flags) {
  std::vector<BenchTest> tests;
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

/// Says that MODEL and --shape exclude each other, and that --mix belongs to a shape.
void check_source(const BenchFlags& flags) {
  const bool has_model = !flags.source.source.empty();
  if (has_model != flags.shape.empty()) {
    throw Error(ErrorKind::usage, "bench",
                has_model ? "MODEL and --shape are both given" : "MODEL or --shape is needed",
                "give a GGUF file, a plan or --shape NAME");
  }
  if (has_model && flags.mix_given()) {
    throw Error(ErrorKind::usage, "--mix", "is for --shape, and MODEL has its own types",
                "leave it out");
  }
}

/// The model of the flags with its plan. One that is made for the run lives in memory alone.
PreparedModel prepare_source(BenchFlags& flags) {
  if (flags.shape.empty()) return prepare_model(flags.source, false);
  if (!flags.source.model_file.empty()) {
    throw Error(ErrorKind::usage, "--model", "is for plans", "leave it out");
  }
  const MemoryModel model(synth::shape_named(flags.shape), synth::mix_named(flags.mix),
                          flags.source.threads, terminal_progress());
  end_progress();
  flags.synth_ms = model.made_ms();
  flags.source.source = model.path();
  return prepare_model(flags.source, false);  // maps the file: it outlives `model`
}

BenchResult measure(Session& session, const BenchTest& test, std::span<const TokenId> tokens,
                    uint32_t repetitions, const Progress& progress) {
  BenchResult result;
  result.test = test;
  const auto used = tokens.first(test.depth + test.tokens());
  time_once(session, test, used);  // warm-up
  for (uint32_t r = 0; r < repetitions; ++r) {
    if (progress) progress(test.name(), r, repetitions);
    result.samples_ns.push_back(time_once(session, test, used));
  }
  end_progress();
  return result;
}

/// Rows as they come, for the formats that are read while the benchmark runs.
void write_row(const std::string& format, const ordered_json& row, const ordered_json& load,
               bool first) {
  if (format == "md") write_out_now((first ? markdown_head(row) : "") + markdown_row(row));
  if (format == "csv") {
    write_out_now((first ? csv_line(row, load, true) : "") + csv_line(row, load, false));
  }
}

int run_bench(BenchFlags flags) {
  check_source(flags);
  const std::vector<BenchTest> tests = list_tests(flags);
  uint32_t longest = 0;
  for (const BenchTest& test : tests) longest = std::max(longest, test.tokens() + test.depth);
  if (!is_plan(flags.source.source) && flags.source.plan.context == 0)
    flags.source.plan.context = longest;
  PreparedModel prepared = prepare_source(flags);
  check_prompt_fits(longest, prepared.plan, false);
  const BenchModel model = describe_model(prepared.file, prepared.plan);
  const Tokenizer tokenizer = Tokenizer::from_metadata(prepared.file.metadata());
  const std::vector<TokenId> tokens = random_tokens(longest, prepared.plan.vocabulary, tokenizer);
  const LoadedModel loaded = load_model(std::move(prepared), flags.source);
  const std::unique_ptr<Session> session = loaded.engine->new_session();

  const ordered_json load = bench_load(loaded.engine->load_stats());
  ordered_json rows = ordered_json::array();
  const Progress progress = terminal_progress();
  for (const BenchTest& test : tests) {
    BenchResult result = measure(*session, test, tokens, flags.repetitions, progress);
    result.controls = measure_controls(loaded.engine->plan(), test.prompt);
    rows.push_back(bench_row(result, *loaded.engine, model));
    write_row(flags.format, rows.back(), load, rows.size() == 1);
  }
  if (flags.format == "md") write_out(markdown_load(load));
  if (flags.format == "json") {
    ordered_json json;
    json["version"] = QUERN_VERSION;
    json["synthetic"] = nullptr;
    if (!flags.shape.empty()) {
      json["synthetic"] = {{"shape", flags.shape}, {"mix", flags.mix}, {"ms", flags.synth_ms}};
    }
    json["load"] = load;
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
  command->get_option("MODEL")->required(false);
  command
      ->add_option("--shape", flags->shape,
                   "Instead of MODEL: a published shape with random weights, made in memory "
                   "(quern synth --list)")
      ->type_name("NAME");
  flags->mix_option =
      command->add_option("--mix", flags->mix, "With --shape: the mix of quant types")
          ->type_name("MIX")
          ->capture_default_str();
  command->get_option("--ctx")->description(
      "Context length in tokens (default: what the longest test needs)");
  command->add_option("-p", flags->prompts, "Prompt lengths, by commas; 0 for none")
      ->type_name("LIST")
      ->join(',')
      ->capture_default_str();
  command->add_option("-n", flags->generations, "Tokens to generate, by commas; 0 for none")
      ->type_name("LIST")
      ->join(',')
      ->capture_default_str();
  command->add_option("-d", flags->depths, "Tokens in the context before the clock starts")
      ->type_name("LIST")
      ->join(',')
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
