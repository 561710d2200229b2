#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/fixtures.h"
#include "tests/support/graph_reference.h"

namespace quern::test {

/// The largest absolute error of a graph's logits over the standard deviation of the golden ones;
/// infinite where a logit is not finite.
inline double graph_error(const gguf::File& file, const ModelGraph& graph, const Golden& golden,
                          ReferenceFaults faults = {}) {
  const auto logits = reference_logits(file, graph, golden.token_ids, golden.positions, faults);
  double sum = 0;
  double squares = 0;
  double worst = 0;
  for (size_t row = 0; row < logits.size(); ++row) {
    for (size_t i = 0; i < golden.vocabulary; ++i) {
      const double expected = golden.logits[row * golden.vocabulary + i];
      if (!std::isfinite(logits[row][i])) return std::numeric_limits<double>::infinity();
      worst = std::max(worst, std::abs(logits[row][i] - expected));
      sum += expected;
      squares += expected * expected;
    }
  }
  const double n = static_cast<double>(golden.logits.size());
  return worst / std::sqrt(squares / n - sum / n * (sum / n));
}

}  // namespace quern::test
