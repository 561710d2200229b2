#include <fmt/format.h>

#include <algorithm>

#include "compiler/passes/passes.h"

namespace quern::passes {

void LayerDecisions::add(int32_t layer, std::string subject, std::string choice,
                         std::string reason) {
  for (Row& row : rows_) {
    if (row.decision.subject == subject && row.decision.choice == choice &&
        row.decision.reason == reason && (row.layers.front() < 0) == (layer < 0)) {
      if (row.layers.back() != layer) row.layers.push_back(layer);
      return;
    }
  }
  rows_.push_back({{std::move(subject), std::move(choice), std::move(reason)}, {layer}});
}

void LayerDecisions::append_to(std::vector<Decision>& decisions) const {
  for (const Row& row : rows_) {
    Decision decision = row.decision;
    if (row.layers.front() >= 0) {
      std::string layers;
      for (size_t i = 0; i < row.layers.size();) {
        size_t last = i;
        while (last + 1 < row.layers.size() && row.layers[last + 1] == row.layers[last] + 1) ++last;
        if (!layers.empty()) layers += ',';
        layers += last == i ? fmt::format("{}", row.layers[i])
                            : fmt::format("{}-{}", row.layers[i], row.layers[last]);
        i = last + 1;
      }
      decision.subject = fmt::format("blk.{} {}", layers, decision.subject);
    }
    decisions.push_back(std::move(decision));
  }
}

std::string_view short_name(std::string_view node_name) {
  if (!node_name.starts_with("blk.")) return node_name;
  const size_t dot = node_name.find('.', 4);
  return dot == std::string_view::npos ? node_name : node_name.substr(dot + 1);
}

}  // namespace quern::passes
