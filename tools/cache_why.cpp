#include "tools/cache_why.h"

#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "models/model.h"
#include "tools/device_choice.h"
#include "tools/output.h"
#include "tools/plan_kernels.h"

namespace quern::tools {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

/// Lines for the names that either side has with another value, in a's order, then b's.
std::vector<std::string> field_differences(const Fields& a, const Fields& b,
                                           const std::string& prefix) {
  const std::map<std::string, std::string> in_a(a.begin(), a.end()), in_b(b.begin(), b.end());
  std::vector<std::string> lines;
  for (const auto& [name, value] : a) {
    const auto other = in_b.find(name);
    const std::string text = other == in_b.end() ? "absent" : other->second;
    if (text != value) lines.push_back(fmt::format("{}{}: {} | {}", prefix, name, value, text));
  }
  for (const auto& [name, value] : b) {
    if (!in_a.contains(name))
      lines.push_back(fmt::format("{}{}: absent | {}", prefix, name, value));
  }
  return lines;
}

const std::string* find_field(const KernelKey& key, std::string_view name) {
  for (const auto& [field, value] : key.fields) {
    if (field == name) return &value;
  }
  return nullptr;
}

/// The entry of the same family whose key differs in the fewest lines.
std::vector<std::string> nearest_difference(const KernelKey& key,
                                            const std::vector<StoreEntry>& entries) {
  std::vector<std::string> best;
  bool found = false;
  for (const StoreEntry& entry : entries) {
    const std::string* family = find_field(key, "family");
    if (family == nullptr || entry.family != *family) continue;
    std::vector<std::string> lines = key_differences(entry.key, key);
    if (!found || lines.size() < best.size()) best = std::move(lines);
    found = true;
  }
  if (!found) best.emplace_back("the store has no kernel of this family");
  return best;
}

}  // namespace

std::vector<std::string> key_differences(const KernelKey& a, const KernelKey& b) {
  Fields plain_a, plain_b;
  for (const auto& field : a.fields) {
    if (field.first != "spec") plain_a.push_back(field);
  }
  for (const auto& field : b.fields) {
    if (field.first != "spec") plain_b.push_back(field);
  }
  std::vector<std::string> lines = field_differences(plain_a, plain_b, "");
  const std::string* spec_a = find_field(a, "spec");
  const std::string* spec_b = find_field(b, "spec");
  if (spec_a != nullptr && spec_b != nullptr && *spec_a != *spec_b) {
    const std::vector<std::string> in_spec = field_differences(
        spec_fields(spec_from_text(*spec_a)), spec_fields(spec_from_text(*spec_b)), "spec.");
    lines.insert(lines.end(), in_spec.begin(), in_spec.end());
  }
  return lines;
}

Plan read_plan(const std::string& source, const PlanFlags& flags, const std::string& target) {
  if (!std::filesystem::exists(source)) {
    throw Error(ErrorKind::failed, source, "does not exist", "give a plan or a GGUF file");
  }
  if (!is_plan(source)) {
    const PlanOptions options = flags.options();
    const gguf::File file = gguf::File::open(source);
    const ModelGraph graph = build_graph(file);
    return plan_for(graph, options, named_target(target.empty() ? options.device : target));
  }
  flags.refuse_for_a_plan();
  if (!target.empty()) {
    throw Error(ErrorKind::usage, "--target", "is fixed by the plan", "give the GGUF file instead");
  }
  const std::string path = std::filesystem::is_directory(source)
                               ? (std::filesystem::path(source) / "plan.json").string()
                               : source;
  return plan_from_json(read_file(path), path);
}

int explain_kernels(const WhyFlags& flags) {
  const Plan plan = read_plan(flags.source, flags.plan, flags.target);
  std::optional<std::filesystem::path> bundle;
  if (std::filesystem::is_directory(flags.source)) bundle = flags.source;
  const KernelStore store(store_options(flags.plan.store, bundle));
  const std::vector<StoreEntry> entries = store.list();
  std::map<std::string, const StoreEntry*> by_key;
  for (const StoreEntry& entry : entries) by_key.emplace(entry.key_digest, &entry);

  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  size_t hits = 0;
  const std::vector<uint32_t> kernels = distinct_kernels(plan);
  for (const uint32_t index : kernels) {
    const PlanKernel& kernel = plan.kernels[index];
    const auto entry = by_key.find(kernel.key_digest);
    const bool hit = entry != by_key.end();
    std::vector<std::string> reasons;
    if (hit) {
      ++hits;
    } else {
      const KernelKey key = plan_kernel_key(kernel, plan.target);
      if (key.digest() != kernel.key_digest) {
        reasons.emplace_back("the plan was made by another build of Quern: compile it again");
      }
      const std::vector<std::string> nearest = nearest_difference(key, entries);
      reasons.insert(reasons.end(), nearest.begin(), nearest.end());
    }
    json.push_back({{"key", kernel.key_digest},
                    {"family", spec_family(kernel.spec)},
                    {"hit", hit},
                    {"path", hit ? nlohmann::ordered_json(entry->second->path.string())
                                 : nlohmann::ordered_json(nullptr)},
                    {"nearest", reasons}});
    if (flags.json) continue;
    write_out(fmt::format("{} {} {:<10} {}\n", hit ? "hit " : "miss",
                          kernel.key_digest.substr(0, 12), spec_family(kernel.spec),
                          hit ? entry->second->path.string() : spec_to_text(kernel.spec)));
    for (const std::string& reason : reasons) write_out(fmt::format("       {}\n", reason));
  }
  if (flags.json) {
    write_out(json.dump(2) + "\n");
  } else {
    write_out(fmt::format("{} of {} kernels are in the store\n", hits, kernels.size()));
  }
  return 0;
}

}  // namespace quern::tools
