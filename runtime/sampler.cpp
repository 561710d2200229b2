#include "runtime/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "models/error.h"
#include "runtime/philox.h"

namespace quern {
namespace {

void require(bool holds, std::string_view option, float value, std::string_view range) {
  if (holds) return;
  throw Error(ErrorKind::usage, option, fmt::format("{} is out of range", value),
              fmt::format("give {}", range));
}

/// The tokens that the repeat penalty lowers: each once, those of the vocabulary.
std::vector<TokenId> seen_tokens(std::span<const TokenId> history, size_t vocabulary,
                                 const SamplingOptions& options) {
  std::vector<TokenId> seen;
  if (options.repeat_penalty == 1) return seen;
  const auto recent = history.last(std::min<size_t>(history.size(), options.repeat_window));
  std::ranges::copy_if(recent, std::back_inserter(seen), [vocabulary](TokenId id) {
    return id >= 0 && static_cast<size_t>(id) < vocabulary;
  });
  std::ranges::sort(seen);
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  return seen;
}

void penalise(std::span<float> logits, std::span<const TokenId> seen, float penalty) {
  for (const TokenId id : seen) {
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

/// The k that come first, in any order (all for k = 0). Vocabularies are large and k is small: what
/// does not come before the worst of k already seen is passed over.
void take_top_k(std::span<const float> logits, uint32_t k, std::vector<Candidate>& candidates) {
  candidates.clear();
  if (k == 0 || k >= logits.size()) {
    for (size_t i = 0; i < logits.size(); ++i) {
      candidates.emplace_back(logits[i], static_cast<TokenId>(i));
    }
    return;
  }
  const size_t enough = size_t{k} + 256;
  const auto shrink = [&] {
    std::nth_element(candidates.begin(), candidates.begin() + (k - 1), candidates.end(),
                     comes_before);
    candidates.resize(k);
  };
  size_t i = 0;
  for (; i < std::min(enough, logits.size()); ++i) {
    candidates.emplace_back(logits[i], static_cast<TokenId>(i));
  }
  shrink();
  float bar = candidates[k - 1].first;
  for (; i < logits.size(); ++i) {
    // Equal to the bar: ids ascend, so that the one already seen comes before.
    if (logits[i] <= bar) continue;
    candidates.emplace_back(logits[i], static_cast<TokenId>(i));
    if (candidates.size() < enough) continue;
    shrink();
    bar = candidates[k - 1].first;
  }
  if (candidates.size() > k) shrink();
}

/// Index of the first that is no finite number, or the size.
size_t first_not_finite(std::span<const float> logits) {
  bool finite = true;
  for (const float logit : logits) finite &= std::isfinite(logit);  // without a branch: vectors
  if (finite) return logits.size();
  return static_cast<size_t>(
      std::ranges::find_if_not(logits, [](float v) { return std::isfinite(v); }) - logits.begin());
}

[[noreturn]] void refuse_logit(uint64_t id, uint64_t position) {
  throw Error(ErrorKind::failed, fmt::format("logit of token {} at position {}", id, position),
              "it is not a finite number", "check the model file with `quern inspect`");
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
  if (const size_t bad = first_not_finite(logits); bad < logits.size()) {
    refuse_logit(bad, position);
  }
  if (const auto seen = seen_tokens(history, logits.size(), options_); !seen.empty()) {
    penalised_.assign(logits.begin(), logits.end());
    penalise(penalised_, seen, options_.repeat_penalty);
    logits = penalised_;
  }
  if (options_.temperature == 0) return argmax(logits);

  take_top_k(logits, options_.top_k, candidates_);
  return draw_of_candidates(position);
}

std::optional<SelectionRequest> Sampler::request(const SelectionLimits& limits,
                                                 std::span<const TokenId> history) const {
  SelectionRequest request{.count = 1, .penalty = options_.repeat_penalty, .seen = {}};
  if (options_.temperature != 0) {
    request.count =
        options_.top_k == 0 ? limits.vocabulary : std::min(options_.top_k, limits.vocabulary);
  }
  if (limits.candidates == 0 || request.count > limits.candidates) return std::nullopt;
  request.seen = seen_tokens(history, limits.vocabulary, options_);
  if (request.seen.size() > limits.seen) return std::nullopt;
  return request;
}

TokenId Sampler::draw(const Candidates& candidates, uint64_t position) {
  if (candidates.not_finite > 0) {
    refuse_logit(static_cast<uint64_t>(candidates.first_not_finite), position);
  }
  if (candidates.best.empty()) throw Error(ErrorKind::failed, "candidates", "there are none");
  if (options_.temperature == 0) return candidates.best.front().second;
  candidates_ = candidates.best;
  return draw_of_candidates(position);
}

/// From the candidates after penalty and top-k, in any order.
TokenId Sampler::draw_of_candidates(uint64_t position) {
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
  // The largest value first, in lanes that the compiler makes vectors of; then where it is.
  constexpr size_t lanes = 32;
  std::array<float, lanes> best;
  best.fill(logits[0]);
  size_t i = 0;
  for (; i + lanes <= logits.size(); i += lanes) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      best[lane] = logits[i + lane] > best[lane] ? logits[i + lane] : best[lane];
    }
  }
  float largest = *std::ranges::max_element(best);
  for (; i < logits.size(); ++i) largest = std::max(largest, logits[i]);
  const auto found = std::ranges::find(logits, largest);
  return found == logits.end() ? 0 : static_cast<TokenId>(found - logits.begin());  // all NaN
}

}  // namespace quern
