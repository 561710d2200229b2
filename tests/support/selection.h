#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "runtime/selection.h"

namespace quern::test {

/// What a device must answer: by sorting everything.
inline Candidates sorted_candidates(std::span<const float> logits,
                                    const SelectionRequest& request) {
  Candidates answer;
  std::vector<Candidate> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (!std::isfinite(logits[i]) && answer.not_finite++ == 0) answer.first_not_finite = id;
    all.emplace_back(logits[i], id);
  }
  for (const TokenId id : request.seen) {
    float& logit = all[static_cast<size_t>(id)].first;
    logit = logit > 0 ? logit / request.penalty : logit * request.penalty;
  }
  if (answer.not_finite > 0) return answer;  // The order of what is no number means nothing.
  std::ranges::nth_element(all, all.begin() + request.count, comes_before);
  std::ranges::sort(all.begin(), all.begin() + request.count, comes_before);
  answer.best.assign(all.begin(), all.begin() + request.count);
  return answer;
}

}  // namespace quern::test
