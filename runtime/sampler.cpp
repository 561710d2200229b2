#include "runtime/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "models/error.h"
#include "runtime/philox.h"

namespace quern {
namespace {

using Candidate = std::pair<float, TokenId>;

/// Larger logits first, equal ones by id.
bool comes_before(const Candidate& a, const Candidate& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

void require(bool holds, std::string_view option, float value, std::string_view range) {
  if (holds) return;
  throw Error(ErrorKind::usage, option, fmt::format("{} is out of range", value),
              fmt::format("give {}", range));
}

void penalise(std::vector<Candidate>& candidates, std::span<const TokenId> history,
              const SamplingOptions& options) {
  const size_t window = std::min<size_t>(history.size(), options.repeat_window);
  const auto recent = history.last(window);
  const std::unordered_set<TokenId> seen(recent.begin(), recent.end());
  for (const TokenId id : seen) {
    if (id < 0 || static_cast<size_t>(id) >= candidates.size()) continue;
    float& logit = candidates[static_cast<size_t>(id)].first;
    logit = logit > 0 ? logit / options.repeat_penalty : logit * options.repeat_penalty;
  }
}

void keep_top_k(std::vector<Candidate>& candidates, uint32_t k) {
  if (k > 0 && k < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + k, candidates.end(), comes_before);
    candidates.resize(k);
  }
}

/// Keeps the shortest front of the ordered candidates whose probabilities reach `p`.
void keep_top_p(std::vector<Candidate>& candidates, double p) {
  const double top = candidates.front().first;
  double total = 0;
  for (const Candidate& c : candidates) total += std::exp(c.first - top);
  double sum = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    sum += std::exp(candidates[i].first - top);
    if (sum >= p * total) {
      candidates.resize(i + 1);
      return;
    }
  }
}

/// Keeps the candidates at least `p` times as probable as the first.
void keep_min_p(std::vector<Candidate>& candidates, double p) {
  const double bar = candidates.front().first + std::log(p);
  const auto end = std::find_if(candidates.begin(), candidates.end(),
                                [bar](const Candidate& c) { return c.first < bar; });
  candidates.erase(end, candidates.end());
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options) : options_(options) {
  const auto finite = [](float value) { return std::isfinite(value); };
  require(finite(options.temperature) && options.temperature >= 0, "--temp", options.temperature,
          "0 or more");
  require(options.top_p > 0 && options.top_p <= 1, "--top-p", options.top_p,
          "more than 0 and at most 1");
  require(options.min_p >= 0 && options.min_p < 1, "--min-p", options.min_p,
          "at least 0 and less than 1");
  require(finite(options.repeat_penalty) && options.repeat_penalty > 0, "--repeat-penalty",
          options.repeat_penalty, "more than 0");
}

TokenId Sampler::sample(std::span<const float> logits, std::span<const TokenId> history,
                        uint64_t position) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      throw Error(ErrorKind::failed, fmt::format("logit of token {} at position {}", i, position),
                  "it is not a finite number", "check the model file with `quern inspect`");
    }
  }
  const bool penalty = options_.repeat_penalty != 1 && !history.empty();
  if (options_.temperature == 0 && !penalty) return argmax(logits);

  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_.emplace_back(logits[i], static_cast<TokenId>(i));
  }
  if (penalty) penalise(candidates_, history, options_);
  if (options_.temperature == 0) {
    return std::min_element(candidates_.begin(), candidates_.end(), comes_before)->second;
  }
  keep_top_k(candidates_, options_.top_k);
  if (options_.top_p < 1 || options_.min_p > 0) {
    std::sort(candidates_.begin(), candidates_.end(), comes_before);
    if (options_.top_p < 1) keep_top_p(candidates_, options_.top_p);
    if (options_.min_p > 0) keep_min_p(candidates_, options_.min_p);
  }

  // The draw runs over the survivors in index order.
  const double top = std::min_element(candidates_.begin(), candidates_.end(), comes_before)->first;
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.second < b.second; });
  const auto weight = [&](const Candidate& c) {
    return std::exp((c.first - top) / options_.temperature);
  };
  double total = 0;
  for (const Candidate& c : candidates_) total += weight(c);
  const double target = philox_uniform(options_.seed, position) * total;
  double sum = 0;
  TokenId chosen = candidates_.front().second;
  for (const Candidate& c : candidates_) {
    const double w = weight(c);
    if (w > 0)
      chosen = c.second;  // Rounding at the end of the sums must not pick an impossible one.
    sum += w;
    if (sum > target) break;
  }
  return chosen;
}

TokenId argmax(std::span<const float> logits) {
  if (logits.empty()) throw Error(ErrorKind::failed, "logits", "there are none");
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace quern
