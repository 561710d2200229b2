#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace quern {

/// A logit and its token.
using Candidate = std::pair<float, TokenId>;

/// The order of candidates: larger logits first, equal ones by id.
inline bool comes_before(const Candidate& a, const Candidate& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

/// What a device's selection takes: no candidates where it gives logits alone.
struct SelectionLimits {
  uint32_t candidates = 0;  ///< At most the vocabulary.
  uint32_t seen = 0;        ///< Tokens that the penalty may lower.
  uint32_t vocabulary = 0;
};

/// What a device is asked for in place of a row of logits.
struct SelectionRequest {
  uint32_t count = 1;  ///< Candidates.
  float penalty = 1;   ///< Divides the positive logits of `seen` and multiplies the others.
  std::vector<TokenId> seen = {};  ///< In the vocabulary, each once.
};

/// The best of a row of logits after the penalty, in order, and what was wrong before it.
struct Candidates {
  std::vector<Candidate> best;
  uint32_t not_finite = 0;       ///< Logits that are no finite numbers.
  TokenId first_not_finite = 0;  ///< The lowest id of one, where there are any.
};

}  // namespace quern
