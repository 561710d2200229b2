// quern inspect: what a GGUF file holds and what Quern would plan for it.

#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/chat/chat_template.h"
#include "models/error.h"
#include "models/model.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/device_choice.h"
#include "tools/output.h"

namespace quern::tools {
namespace {

using nlohmann::ordered_json;

struct InspectFlags {
  std::string model;
  PlanFlags plan;
  bool json = false;
  bool tensors = false;
};

/// What could be learnt of a file: the graph and the plan are absent where `problem` says why.
struct Inspection {
  gguf::File file;
  std::optional<ModelGraph> graph;
  std::optional<Plan> plan;
  std::optional<Error> problem;
};

Inspection inspect(const InspectFlags& flags) {
  // Types that Quern does not decode are shown too; opening the file to run it then says so.
  Inspection result{gguf::File::open(flags.model, gguf::TensorTypes::any), {}, {}, {}};
  const PlanOptions options = flags.plan.options();
  const std::optional<Target> target = named_target(options.device);
  try {
    result.graph = build_graph(gguf::File::open(flags.model));
    result.plan = plan_for(*result.graph, options, target);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::usage) throw;
    result.problem = error;
  }
  return result;
}

std::string type_name(QuantType type) {
  return gguf_type_name(static_cast<uint32_t>(type));
}

struct MixRow {
  uint64_t tensors = 0, values = 0, bytes = 0;
};

std::map<std::string, MixRow> quant_mix(const gguf::File& file) {
  std::map<std::string, MixRow> mix;
  for (const gguf::Tensor& tensor : file.tensors()) {
    MixRow& row = mix[type_name(tensor.type)];
    ++row.tensors;
    row.values += tensor.elements();
    row.bytes += tensor.data.size();
  }
  return mix;
}

const char* type_name(gguf::ValueType type) {
  constexpr std::array<const char*, 13> names = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                 "i32", "f32", "bool", "string", "array",
                                                 "u64", "i64", "f64"};
  return names.at(static_cast<size_t>(type));
}

/// Scalars as they are; of an array its element type, its length and the first few values.
ordered_json value_to_json(const gguf::Value& value) {
  constexpr size_t shown = 8;
  return std::visit(
      [&](const auto& data) -> ordered_json {
        using T = std::decay_t<decltype(data)>;
        if constexpr (requires { data.begin(); } && !std::is_same_v<T, std::string>) {
          ordered_json first = ordered_json::array();
          for (size_t i = 0; i < std::min(shown, data.size()); ++i) {
            if (value.element == gguf::ValueType::boolean) {
              if constexpr (std::is_same_v<T, std::vector<uint8_t>>) first.push_back(data[i] != 0);
            } else {
              first.push_back(data[i]);
            }
          }
          return {{"element", type_name(value.element)}, {"length", data.size()}, {"first", first}};
        } else {
          return data;
        }
      },
      value.data);
}

ordered_json tokenizer_to_json(const gguf::File& file) {
  const gguf::Metadata& metadata = file.metadata();
  ordered_json json;
  json["kind"] = metadata.get_string_or("tokenizer.ggml.model", "none");
  json["pre"] = metadata.has("tokenizer.ggml.pre")
                    ? ordered_json(metadata.get_string_or("tokenizer.ggml.pre", ""))
                    : ordered_json(nullptr);
  json["chat"] = nullptr;
  if (metadata.has("tokenizer.chat_template")) {
    try {
      json["chat"] = std::string(ChatTemplate::from_metadata(metadata).family());
    } catch (const Error&) {
      json["chat"] = "unknown";
    }
  }
  return json;
}

ordered_json plan_summary(const Plan& plan) {
  const CapacityAccount& account = plan.capacity;
  return {{"target", plan.target.name},
          {"context", plan.options.context},
          {"chunk", plan.options.chunk},
          {"numerics", plan.options.numerics == Numerics::exact ? "exact" : "fast"},
          {"attention", plan.options.attention},
          {"kv", plan.options.kv},
          {"steps", plan.steps.size()},
          {"kernels", plan.kernels.size()},
          {"capacity",
           {{"weights", account.weights},
            {"kv", account.kv},
            {"recurrent", account.recurrent},
            {"workspace", account.workspace},
            {"overhead", account.overhead},
            {"total", account.total()}}}};
}

ordered_json to_json(const Inspection& inspection) {
  const gguf::File& file = inspection.file;
  ordered_json json;
  json["file"] = file.name();
  json["gguf_version"] = file.version();
  json["alignment"] = file.alignment();
  json["file_bytes"] = file.file_bytes();
  json["fingerprint"] = file.fingerprint();
  json["architecture"] = file.metadata().get_string_or("general.architecture", "");
  json["name"] = file.metadata().get_string_or("general.name", "");
  json["supported"] = !inspection.problem.has_value();
  json["problem"] =
      inspection.problem ? ordered_json(inspection.problem->what()) : ordered_json(nullptr);
  json["model"] = nullptr;
  if (inspection.graph) {
    const ModelGraph& graph = *inspection.graph;
    json["model"] = {{"layers", graph.n_layers},       {"embedding_length", graph.embedding_length},
                     {"vocabulary", graph.vocabulary}, {"context_length", graph.context_length},
                     {"parameters", graph.parameters}, {"weight_bytes", graph.weight_bytes}};
  }
  json["tokenizer"] = tokenizer_to_json(file);
  json["plan"] = inspection.plan ? plan_summary(*inspection.plan) : ordered_json(nullptr);
  json["quant_mix"] = ordered_json::array();
  for (const auto& [type, row] : quant_mix(file)) {
    json["quant_mix"].push_back(
        {{"type", type}, {"tensors", row.tensors}, {"values", row.values}, {"bytes", row.bytes}});
  }
  json["metadata"] = ordered_json::object();
  for (const std::string& key : file.metadata().keys()) {
    json["metadata"][key] = value_to_json(*file.metadata().find(key));
  }
  json["tensors"] = ordered_json::array();
  for (const gguf::Tensor& tensor : file.tensors()) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"type", type_name(tensor.type)},
                               {"shape", tensor.shape},
                               {"bytes", tensor.data.size()}});
  }
  return json;
}

std::string shorten(std::string text, size_t length) {
  for (char& c : text) {
    if (c == '\n' || c == '\r' || c == '\t') c = ' ';
  }
  if (text.size() <= length) return text;
  return text.substr(0, length) + "…";
}

void print_text(const ordered_json& json, bool tensors) {
  std::string out;
  auto line = [&](std::string_view name, const auto& value) {
    out += fmt::format("{:<14}{}\n", name, value);
  };
  line("file", json["file"].get<std::string>());
  line("size", human_bytes(json["file_bytes"].get<uint64_t>()));
  line("format", fmt::format("GGUF v{}, alignment {}", json["gguf_version"].get<uint32_t>(),
                             json["alignment"].get<uint64_t>()));
  line("architecture", json["architecture"].get<std::string>());
  line("name", json["name"].get<std::string>());
  line("fingerprint", json["fingerprint"].get<std::string>());
  if (const auto& model = json["model"]; !model.is_null()) {
    line("model",
         fmt::format("{} layers, width {}, vocabulary {}, context {}, {} parameters",
                     model["layers"].get<uint32_t>(), model["embedding_length"].get<uint32_t>(),
                     model["vocabulary"].get<uint32_t>(), model["context_length"].get<uint32_t>(),
                     human_count(model["parameters"].get<uint64_t>())));
  }
  const auto& tokenizer = json["tokenizer"];
  line("tokenizer",
       fmt::format("{}{}{}", tokenizer["kind"].get<std::string>(),
                   tokenizer["pre"].is_null()
                       ? std::string()
                       : fmt::format(" / {}", tokenizer["pre"].get<std::string>()),
                   tokenizer["chat"].is_null()
                       ? ", no chat template"
                       : fmt::format(", chat template {}", tokenizer["chat"].get<std::string>())));
  if (const auto& plan = json["plan"]; !plan.is_null()) {
    const auto& capacity = plan["capacity"];
    line("plan", fmt::format("{} steps, {} kernels for {}; context {}, chunk {}, KV {}, {}",
                             plan["steps"].get<size_t>(), plan["kernels"].get<size_t>(),
                             plan["target"].get<std::string>(), plan["context"].get<uint32_t>(),
                             plan["chunk"].get<uint32_t>(), plan["kv"].get<std::string>(),
                             plan["numerics"].get<std::string>()));
    line("memory",
         fmt::format("{} = weights {}, KV {}, recurrent {}, workspace {}, overhead {}",
                     human_bytes(capacity["total"]), human_bytes(capacity["weights"]),
                     human_bytes(capacity["kv"]), human_bytes(capacity["recurrent"]),
                     human_bytes(capacity["workspace"]), human_bytes(capacity["overhead"])));
  }
  out += fmt::format("\n{} tensors\n", json["tensors"].size());
  for (const auto& row : json["quant_mix"]) {
    out +=
        fmt::format("  {:<8}{:>5} tensors {:>10} values {:>12}\n", row["type"].get<std::string>(),
                    row["tensors"].get<uint64_t>(), human_count(row["values"].get<uint64_t>()),
                    human_bytes(row["bytes"].get<uint64_t>()));
  }
  out += "\nmetadata\n";
  for (const auto& [key, value] : json["metadata"].items()) {
    const std::string text =
        value.is_object() ? fmt::format("{}[{}]", value["element"].get<std::string>(),
                                        value["length"].get<size_t>())
                          : value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    out += fmt::format("  {} = {}\n", key, shorten(text, 100));
  }
  if (tensors) {
    out += "\ntensors\n";
    for (const auto& tensor : json["tensors"]) {
      out += fmt::format("  {:<40} {:<7} {}\n", tensor["name"].get<std::string>(),
                         tensor["type"].get<std::string>(), tensor["shape"].dump());
    }
  }
  write_out(out);
}

int run_inspect(const InspectFlags& flags) {
  const Inspection inspection = inspect(flags);
  const ordered_json json = to_json(inspection);
  if (flags.json) {
    write_out(json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
  } else {
    print_text(json, flags.tensors);
  }
  // The file could be read, so what it holds was shown; that Quern cannot run it is the result.
  if (inspection.problem) throw Error(*inspection.problem);
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Show a model's metadata, tensors and quant mix, and what would be planned");
  command->add_option("MODEL", flags->model, "A GGUF file")->required()->type_name("");
  command->add_flag("--json", flags->json, "Print JSON (docs/json.md)");
  command->add_flag("--tensors", flags->tensors, "List every tensor");
  add_plan_flags(*command, flags->plan);
  command->callback([flags, &action] {
    action = [flags] {
      set_up_logging(0);
      return run_inspect(*flags);
    };
  });
}

}  // namespace quern::tools
