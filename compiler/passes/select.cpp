#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "compiler/passes/passes.h"
#include "models/error.h"

namespace quern::passes {

namespace {

/// Operations whose row of output depends on the same row of their inputs alone, and that are
/// cheaper for fewer rows. The gated norm is one too, but its gate shares a GEMM with the
/// recurrence's inputs, which need every row: the rows are selected after it.
bool sinks(const Operation& op) {
  return std::holds_alternative<RmsNorm>(op) || std::holds_alternative<Linear>(op) ||
         std::holds_alternative<Glu>(op) || std::holds_alternative<Add>(op) ||
         std::holds_alternative<Route>(op) || std::holds_alternative<RoutedExperts>(op) ||
         std::holds_alternative<AddGated>(op) || std::holds_alternative<Softcap>(op);
}

bool is_select(const Node& node) {
  return std::holds_alternative<SelectOutputs>(node.op);
}

/// Which nodes are to be computed for selected rows only.
std::vector<bool> selected_nodes(const ModelGraph& graph) {
  std::vector<std::vector<size_t>> uses(graph.values.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const ValueId input : graph.nodes[i].inputs) uses[input].push_back(i);
  }
  std::vector<bool> selected(graph.nodes.size());
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    if (is_select(node)) continue;
    if (graph.values[node.output].selected) {
      selected[i] = true;
      continue;
    }
    const auto& readers = uses[node.output];
    selected[i] =
        sinks(node.op) && !readers.empty() && std::ranges::all_of(readers, [&](size_t reader) {
          return selected[reader] || is_select(graph.nodes[reader]);
        });
  }
  return selected;
}

/// Rebuilds the graph with the selection at the frontier between all rows and selected ones.
class Rewriter {
 public:
  Rewriter(const ModelGraph& graph, std::vector<bool> selected)
      : graph_(graph), selected_(std::move(selected)), result_(graph) {
    result_.nodes.clear();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (selected_[i]) result_.values[graph_.nodes[i].output].selected = true;
    }
  }

  ModelGraph run(std::vector<Decision>& decisions) {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      Node node = graph_.nodes[i];
      if (is_select(node)) {
        aliases_[node.output] = node.inputs[0];
        continue;
      }
      for (ValueId& input : node.inputs) {
        input = resolve(input);
        if (selected_[i]) input = rows_of(input, node.layer);
      }
      result_.nodes.push_back(std::move(node));
    }
    result_.logits = rows_of(resolve(graph_.logits), -1);
    std::string places;
    for (const std::string& name : gathered_names_) places += (places.empty() ? "" : ", ") + name;
    decisions.push_back({"output rows",
                         places.empty() ? "none to gather" : "gathered from " + places,
                         "nothing after these needs the other rows of a chunk"});
    return std::move(result_);
  }

 private:
  ValueId resolve(ValueId value) const {
    const auto alias = aliases_.find(value);
    return alias == aliases_.end() ? value : resolve(alias->second);
  }

  /// The selected rows of a value; a gather is added where it has all of them.
  ValueId rows_of(ValueId value, int32_t layer) {
    if (result_.values[value].selected) return value;
    const auto known = gathered_.find(value);
    if (known != gathered_.end()) return known->second;
    const auto rows = static_cast<ValueId>(result_.values.size());
    result_.values.push_back({result_.values[value].width, true});
    std::string name = "the input";
    for (const Node& node : result_.nodes) {
      if (node.output == value) name = node.name;
    }
    result_.nodes.push_back({SelectOutputs{}, {value}, rows, layer, name + " rows"});
    gathered_names_.push_back(name);
    gathered_.emplace(value, rows);
    return rows;
  }

  const ModelGraph& graph_;
  std::vector<bool> selected_;
  ModelGraph result_;
  std::map<ValueId, ValueId> aliases_, gathered_;
  std::vector<std::string> gathered_names_;
};

}  // namespace

ModelGraph select_outputs(const ModelGraph& graph, std::vector<Decision>& decisions) {
  if (graph.logits >= graph.values.size() || !graph.values[graph.logits].selected) {
    throw Error(ErrorKind::failed, graph.architecture,
                "its graph never selects the rows whose logits are asked for");
  }
  return Rewriter(graph, selected_nodes(graph)).run(decisions);
}

}  // namespace quern::passes
