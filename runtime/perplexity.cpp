#include "runtime/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/error.h"

namespace quern {

double negative_log_likelihood(std::span<const float> logits, TokenId target) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  const double result = std::log(sum) + (top - logits[static_cast<size_t>(target)]);
  if (!std::isfinite(result)) {
    throw Error(ErrorKind::failed, "perplexity", "a logit is not a finite number",
                "check the model file with `quern inspect`");
  }
  return result;
}

Perplexity measure_perplexity(Session& session, std::span<const TokenId> tokens, uint32_t window,
                              std::optional<TokenId> bos, const Progress& progress) {
  if (window < 4 || window > session.capacity()) {
    throw Error(ErrorKind::usage, fmt::format("window of {} tokens", window),
                fmt::format("it must be from 4 to the context of {}", session.capacity()),
                "give another --ctx");
  }
  if (tokens.size() < window) {
    throw Error(ErrorKind::usage, "text",
                fmt::format("its {} tokens do not fill a window of {}", tokens.size(), window),
                "give a longer text or a smaller --ctx");
  }
  std::vector<uint32_t> rows;
  for (uint32_t row = window / 2; row + 1 < window; ++row) rows.push_back(row);

  Perplexity result;
  double sum = 0;
  double squares = 0;
  const uint64_t windows = tokens.size() / window;
  for (; result.windows < windows; ++result.windows) {
    const auto part = tokens.subspan(result.windows * window, window);
    std::vector<TokenId> fed(part.begin(), part.end());
    if (bos) fed[0] = *bos;
    session.reset();
    session.feed(fed, 0, rows, 0, [&](uint32_t row, std::span<const float> logits) {
      const double nll = negative_log_likelihood(logits, fed[row + 1]);
      sum += nll;
      squares += nll * nll;
      ++result.scored;
    });
    if (progress) progress("perplexity", result.windows + 1, windows);
  }
  const auto n = static_cast<double>(result.scored);
  const double mean = sum / n;
  const double variance = std::max(0.0, squares / n - mean * mean);
  result.value = std::exp(mean);
  result.standard_error = n > 1 ? std::sqrt(variance / (n - 1)) * result.value : 0;
  return result;
}

}  // namespace quern
