#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/tokenizer/tokenizer.h"
#include "runtime/selection.h"

namespace quern {

struct SamplingOptions {
  float temperature = 0;        ///< 0: greedy.
  uint32_t top_k = 40;          ///< 0: off.
  float top_p = 0.95F;          ///< 1: off.
  float min_p = 0.05F;          ///< 0: off.
  float repeat_penalty = 1;     ///< 1: off.
  uint32_t repeat_window = 64;  ///< Last tokens that the penalty looks at.
  uint64_t seed = 0;
};

/// Draws tokens from logits. Philox 4x32-10 keyed by the seed, counter = position, so that a draw
/// does not depend on how many came before it; ties go to the lowest id; sums run in index order
/// (DESIGN section 4, rule 8). Order: repeat penalty, top-k, top-p, min-p, temperature. Where a
/// device selects candidates the draw is the same: `request` says what to ask it for.
class Sampler {
 public:
  /// Throws Error (`usage`) for values out of range, naming the option.
  explicit Sampler(const SamplingOptions& options);
  /// `history` are the tokens so far (for the penalty), `position` the index of the token to draw.
  /// Non-finite logits are an Error (`failed`).
  TokenId sample(std::span<const float> logits, std::span<const TokenId> history,
                 uint64_t position);

  /// The candidates that `draw` needs of logits with this history, or nothing where all logits are
  /// needed: more candidates or more seen tokens than a device takes.
  std::optional<SelectionRequest> request(const SelectionLimits& limits,
                                          std::span<const TokenId> history) const;
  /// What `sample` gives for the logits that a request's candidates are of.
  TokenId draw(const Candidates& candidates, uint64_t position);

 private:
  TokenId draw_of_candidates(uint64_t position);

  SamplingOptions options_;
  std::vector<Candidate> candidates_;
  std::vector<float> penalised_;  ///< Logits after the repeat penalty.
};

/// Index of the largest value; ties to the lowest.
TokenId argmax(std::span<const float> logits);

}  // namespace quern
