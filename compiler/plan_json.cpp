// The plan's canonical text: JSON with a fixed order of fields, each element of a list on its own
// line, so that two plans can be compared line by line.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "compiler/check_plan.h"
#include "compiler/plan.h"
#include "compiler/plan_names.h"
#include "compiler/spec_json.h"
#include "models/error.h"

namespace quern {

namespace {

// ---- writing ----

template <class E>
std::string_view name_of(std::string_view field, E value) {
  const std::string_view name = spec_name(value);
  if (name.empty()) {
    throw Error(ErrorKind::failed, field,
                fmt::format("no such value: {}", static_cast<uint32_t>(value)));
  }
  return name;
}

OrderedJson to_json(const BufferRef& buffer) {
  return OrderedJson::array({name_of("buffers", buffer.kind), buffer.index});
}

OrderedJson to_json(const Target& target) {
  return {{"kind", target.kind}, {"name", target.name}, {"features", target.features}};
}

OrderedJson to_json(const PlanOptions& options) {
  return {{"device", options.device},         {"context", options.context},
          {"chunk", options.chunk},           {"numerics", name_of("numerics", options.numerics)},
          {"attention", options.attention},   {"kv", options.kv},
          {"gpu_layers", options.gpu_layers}, {"all_logits", options.all_logits}};
}

OrderedJson to_json(const Rope& rope) {
  return {{"kind", name_of("ropes.kind", rope.kind)},
          {"n_rot", rope.n_rot},
          {"mscale", rope.mscale},
          {"inverse_frequency", rope.inverse_frequency}};
}

OrderedJson to_json(const PlanKernel& kernel) {
  return {{"spec", spec_to_json(kernel.spec)},
          {"key_digest", kernel.key_digest},
          {"entry_digest", kernel.entry_digest}};
}

OrderedJson to_json(const ActivationBuffer& buffer) {
  return {{"name", buffer.name},
          {"form", name_of("activations.form", buffer.form)},
          {"bytes_per_row", buffer.bytes_per_row},
          {"fixed_bytes", buffer.fixed_bytes},
          {"selected", buffer.selected},
          {"offset", buffer.offset},
          {"bytes", buffer.bytes}};
}

void put(OrderedJson& json, const WeightSlice& slice) {
  json["tensor"] = slice.tensor;
  json["type"] = name_of("weights.type", to_spec(slice.type));
  json["k"] = slice.k;
  json["rows"] = slice.rows;
  json["experts"] = slice.experts;
  json["tensor_rows"] = slice.tensor_rows;
  json["offset"] = slice.offset;
  json["block"] = slice.block;
  json["stride"] = slice.stride;
}

OrderedJson to_json(const WeightBinding& weight) {
  OrderedJson json = {{"form", name_of("weights.form", weight.form)}};
  put(json, weight.slice);
  json["glu_up"] = nullptr;
  if (weight.glu_up) put(json["glu_up"] = OrderedJson::object(), *weight.glu_up);
  // Only packed weights have a kernel; the marker of none would be a number without meaning.
  json["repack_kernel"] = nullptr;
  if (weight.form == WeightForm::packed) json["repack_kernel"] = weight.repack_kernel;
  json["bytes"] = weight.bytes;
  return json;
}

OrderedJson to_json(const StateBuffer& state) {
  return {{"kind", name_of("states.kind", state.kind)},
          {"layer", state.layer},
          {"bytes", state.bytes},
          {"offset", state.offset}};
}

OrderedJson to_json(const Step& step) {
  OrderedJson buffers = OrderedJson::array();
  for (const BufferRef& buffer : step.buffers) buffers.push_back(to_json(buffer));
  OrderedJson variants = OrderedJson::array();
  for (const StepVariant& variant : step.variants) {
    variants.push_back(OrderedJson::array({variant.max_tokens, variant.kernel}));
  }
  OrderedJson json = {
      {"name", step.name},
      {"kernel", step.kernel},
      {"variants", std::move(variants)},
      {"scales", OrderedJson::array({readable_double(step.x_scale), readable_double(step.out_scale),
                                     readable_double(step.weight_scale)})},
      {"rows", name_of("steps.rows", step.rows)}};
  // Only fast GPU plans have steps that not every launch runs.
  if (step.run != StepRun::always) json["run"] = name_of("steps.run", step.run);
  json["layer"] = step.layer;
  json["buffers"] = std::move(buffers);
  return json;
}

OrderedJson to_json(const Decision& decision) {
  return {{"subject", decision.subject}, {"choice", decision.choice}, {"reason", decision.reason}};
}

OrderedJson to_json(const CapacityAccount& account) {
  return {{"weights", account.weights},
          {"kv", account.kv},
          {"recurrent", account.recurrent},
          {"workspace", account.workspace},
          {"overhead", account.overhead}};
}

template <class T>
OrderedJson list_to_json(const std::vector<T>& list) {
  OrderedJson array = OrderedJson::array();
  for (const T& element : list) array.push_back(to_json(element));
  return array;
}

/// Names come from model files and may be no UTF-8; a plan's text always is.
std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// ---- reading ----

/// A JSON value and the way to it. Every reader names the field that it refuses.
class Cursor {
 public:
  Cursor(const OrderedJson& json, std::string path, std::string_view separator = ".")
      : json_(json), path_(std::move(path)), separator_(separator) {}

  [[noreturn]] void refuse(std::string_view reason) const {
    throw Error(ErrorKind::failed, path_, reason, "write the plan again with `quern compile`");
  }

  Cursor at(std::string_view name) const {
    if (!json_.is_object()) refuse("not an object");
    const auto found = json_.find(name);
    std::string path = fmt::format("{}{}{}", path_, separator_, name);
    if (found == json_.end()) Cursor(json_, std::move(path)).refuse("missing");
    return {*found, std::move(path)};
  }
  bool has(std::string_view name) const { return json_.is_object() && json_.contains(name); }
  /// Refuses an object with more fields than the `count` that its reader then asks for by name.
  void has_only(size_t count) const {
    if (!json_.is_object()) refuse("not an object");
    if (json_.size() > count) refuse("holds fields that a plan does not have");
  }

  uint64_t u64() const {
    if (!json_.is_number_unsigned()) refuse("not an unsigned number");
    return json_.get<uint64_t>();
  }
  uint32_t u32() const {
    const uint64_t value = u64();
    if (value > std::numeric_limits<uint32_t>::max()) refuse("does not fit 32 bits");
    return static_cast<uint32_t>(value);
  }
  int32_t i32() const {
    if (!json_.is_number_integer()) refuse("not a whole number");
    if (json_.is_number_unsigned() &&
        json_.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}) {
      refuse("does not fit 32 bits");
    }
    const int64_t value = json_.get<int64_t>();
    if (value < std::numeric_limits<int32_t>::min()) refuse("does not fit 32 bits");
    return static_cast<int32_t>(value);
  }
  double real() const {
    if (!json_.is_number()) refuse("not a number");
    const double value = json_.get<double>();
    if (!std::isfinite(value)) refuse("not finite");
    return value;
  }
  bool boolean() const {
    if (!json_.is_boolean()) refuse("neither true nor false");
    return json_.get<bool>();
  }
  std::string text() const {
    if (!json_.is_string()) refuse("not a string");
    return json_.get<std::string>();
  }
  template <class E>
  E enumerator() const {
    E value{};
    const std::string name = text();
    if (!spec_value(name, value)) refuse(fmt::format("unknown name \"{}\"", name));
    return value;
  }
  template <class Read>
  auto list(Read&& read) const {
    if (!json_.is_array()) refuse("not a list");
    std::vector<std::decay_t<decltype(read(*this))>> result;
    result.reserve(json_.size());
    for (size_t i = 0; i < json_.size(); ++i) {
      result.push_back(read(Cursor(json_[i], fmt::format("{}[{}]", path_, i))));
    }
    return result;
  }
  bool is_null() const { return json_.is_null(); }
  const OrderedJson& json() const { return json_; }
  const std::string& path() const { return path_; }

 private:
  const OrderedJson& json_;
  std::string path_;
  std::string_view separator_;
};

Target read_target(const Cursor& c) {
  c.has_only(3);
  return {c.at("kind").text(), c.at("name").text(), c.at("features").text()};
}

PlanOptions read_options(const Cursor& c) {
  c.has_only(8);
  PlanOptions options;
  options.device = c.at("device").text();
  options.context = c.at("context").u32();
  options.chunk = c.at("chunk").u32();
  options.numerics = c.at("numerics").enumerator<Numerics>();
  options.attention = c.at("attention").text();
  c.at("attention").enumerator<spec::AttentionPath>();
  options.kv = c.at("kv").text();
  c.at("kv").enumerator<spec::KvType>();
  options.gpu_layers = c.at("gpu_layers").i32();
  options.all_logits = c.at("all_logits").boolean();
  return options;
}

Rope read_rope(const Cursor& c) {
  c.has_only(4);
  Rope rope;
  rope.kind = c.at("kind").enumerator<RopeKind>();
  rope.n_rot = c.at("n_rot").u32();
  rope.mscale = c.at("mscale").real();
  rope.inverse_frequency =
      c.at("inverse_frequency").list([](const Cursor& element) { return element.real(); });
  return rope;
}

PlanKernel read_kernel(const Cursor& c) {
  c.has_only(3);
  const Cursor spec = c.at("spec");
  return {spec_from_json(spec.json(), spec.path()), c.at("key_digest").text(),
          c.at("entry_digest").text()};
}

ActivationBuffer read_activation(const Cursor& c) {
  c.has_only(7);
  ActivationBuffer buffer;
  buffer.name = c.at("name").text();
  buffer.form = c.at("form").enumerator<ActivationForm>();
  buffer.bytes_per_row = c.at("bytes_per_row").u64();
  buffer.fixed_bytes = c.at("fixed_bytes").u64();
  buffer.selected = c.at("selected").boolean();
  buffer.offset = c.at("offset").u64();
  buffer.bytes = c.at("bytes").u64();
  return buffer;
}

WeightSlice read_slice(const Cursor& c) {
  WeightSlice slice;
  slice.tensor = c.at("tensor").text();
  slice.type = from_spec(c.at("type").enumerator<spec::QuantType>());
  slice.k = c.at("k").u64();
  slice.rows = c.at("rows").u64();
  slice.experts = c.at("experts").u64();
  slice.tensor_rows = c.at("tensor_rows").u64();
  slice.offset = c.at("offset").u64();
  slice.block = c.at("block").u64();
  slice.stride = c.at("stride").u64();
  return slice;
}

WeightBinding read_weight(const Cursor& c) {
  c.has_only(13);
  WeightBinding weight;
  weight.form = c.at("form").enumerator<WeightForm>();
  weight.slice = read_slice(c);
  const Cursor up = c.at("glu_up");
  if (!up.is_null()) {
    up.has_only(9);
    weight.glu_up = read_slice(up);
  }
  const Cursor repack = c.at("repack_kernel");
  if (weight.form == WeightForm::packed) {
    weight.repack_kernel = repack.u32();
  } else if (!repack.is_null()) {
    repack.refuse("only packed weights have one");
  }
  weight.bytes = c.at("bytes").u64();
  return weight;
}

StateBuffer read_state(const Cursor& c) {
  c.has_only(4);
  StateBuffer state;
  state.kind = c.at("kind").enumerator<StateKind>();
  state.layer = c.at("layer").i32();
  state.bytes = c.at("bytes").u64();
  state.offset = c.at("offset").u64();
  return state;
}

/// Element `index` of a list of `count`.
Cursor element(const Cursor& c, size_t index, size_t count, std::string_view shape) {
  if (!c.json().is_array() || c.json().size() != count) c.refuse(fmt::format("not {}", shape));
  return {c.json()[index], fmt::format("{}[{}]", c.path(), index)};
}

BufferRef read_buffer(const Cursor& c) {
  constexpr std::string_view shape = "[kind, index]";
  return {element(c, 0, 2, shape).enumerator<BufferKind>(), element(c, 1, 2, shape).u32()};
}

StepVariant read_variant(const Cursor& c) {
  constexpr std::string_view shape = "[max_tokens, kernel]";
  return {element(c, 0, 2, shape).u32(), element(c, 1, 2, shape).u32()};
}

/// A power of two, so that scaling is exact.
float read_scale(const Cursor& c) {
  const double scale = c.real();
  int exponent = 0;
  if (std::frexp(scale, &exponent) != 0.5 || exponent < -100 || exponent > 100) {
    c.refuse("not a power of two");
  }
  return static_cast<float>(scale);
}

Step read_step(const Cursor& c) {
  const bool conditional = c.has("run");
  c.has_only(conditional ? 8 : 7);
  Step step;
  step.name = c.at("name").text();
  step.kernel = c.at("kernel").u32();
  step.variants = c.at("variants").list(read_variant);
  const Cursor scales = c.at("scales");
  constexpr std::string_view shape = "[x, out, weight]";
  step.x_scale = read_scale(element(scales, 0, 3, shape));
  step.out_scale = read_scale(element(scales, 1, 3, shape));
  step.weight_scale = read_scale(element(scales, 2, 3, shape));
  step.rows = c.at("rows").enumerator<StepRows>();
  if (conditional) step.run = c.at("run").enumerator<StepRun>();
  step.layer = c.at("layer").i32();
  step.buffers = c.at("buffers").list(read_buffer);
  return step;
}

Decision read_decision(const Cursor& c) {
  c.has_only(3);
  return {c.at("subject").text(), c.at("choice").text(), c.at("reason").text()};
}

CapacityAccount read_capacity(const Cursor& c) {
  c.has_only(5);
  CapacityAccount account;
  account.weights = c.at("weights").u64();
  account.kv = c.at("kv").u64();
  account.recurrent = c.at("recurrent").u64();
  account.workspace = c.at("workspace").u64();
  account.overhead = c.at("overhead").u64();
  return account;
}

}  // namespace

std::string plan_to_json(const Plan& plan) {
  OrderedJson json = {
      {"quern_plan", Plan::version},           {"architecture", plan.architecture},
      {"model_name", plan.model_name},         {"model_fingerprint", plan.model_fingerprint},
      {"target", to_json(plan.target)},        {"options", to_json(plan.options)},
      {"vocabulary", plan.vocabulary},         {"max_outputs", plan.max_outputs},
      {"capacity", to_json(plan.capacity)},    {"arena_bytes", plan.arena_bytes},
      {"state_bytes", plan.state_bytes},       {"ropes", list_to_json(plan.ropes)},
      {"kernels", list_to_json(plan.kernels)}, {"activations", list_to_json(plan.activations)},
      {"weights", list_to_json(plan.weights)}, {"states", list_to_json(plan.states)}};
  if (plan.few_rows != 0) json["few_rows"] = plan.few_rows;
  json["steps"] = list_to_json(plan.steps);
  json["decisions"] = list_to_json(plan.decisions);
  std::string text = "{\n";
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    if (!first) text += ",\n";
    first = false;
    text += fmt::format("  \"{}\": ", key);
    if (!value.is_array() || value.empty()) {
      text += dump(value);
      continue;
    }
    text += "[\n";
    for (size_t i = 0; i < value.size(); ++i) {
      text += fmt::format("    {}{}\n", dump(value[i]), i + 1 < value.size() ? "," : "");
    }
    text += "  ]";
  }
  return text + "\n}\n";
}

Plan plan_from_json(std::string_view text, std::string_view name) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  const Cursor c(json, std::string(name), ": ");
  if (json.is_discarded()) c.refuse("the text is not JSON");
  if (!json.is_object() || !json.contains("quern_plan")) {
    c.refuse("the text is no Quern plan: it has no quern_plan version");
  }
  const uint64_t version = c.at("quern_plan").u64();
  if (version != Plan::version) {
    c.at("quern_plan")
        .refuse(
            fmt::format("this build reads version {} of plans, not {}", Plan::version, version));
  }
  const bool relaxed = c.has("few_rows");
  c.has_only(relaxed ? 19 : 18);
  Plan plan;
  if (relaxed) plan.few_rows = c.at("few_rows").u32();
  plan.architecture = c.at("architecture").text();
  plan.model_name = c.at("model_name").text();
  plan.model_fingerprint = c.at("model_fingerprint").text();
  plan.target = read_target(c.at("target"));
  plan.options = read_options(c.at("options"));
  plan.vocabulary = c.at("vocabulary").u32();
  plan.max_outputs = c.at("max_outputs").u32();
  plan.capacity = read_capacity(c.at("capacity"));
  plan.arena_bytes = c.at("arena_bytes").u64();
  plan.state_bytes = c.at("state_bytes").u64();
  plan.ropes = c.at("ropes").list(read_rope);
  plan.kernels = c.at("kernels").list(read_kernel);
  plan.activations = c.at("activations").list(read_activation);
  plan.weights = c.at("weights").list(read_weight);
  plan.states = c.at("states").list(read_state);
  plan.steps = c.at("steps").list(read_step);
  plan.decisions = c.at("decisions").list(read_decision);
  check_plan(plan, name);
  return plan;
}

}  // namespace quern
