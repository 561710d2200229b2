#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/engine.h"

namespace quern {

/// exp of the mean negative log-likelihood over the scored tokens.
struct Perplexity {
  double value = 0;
  double standard_error = 0;  ///< Of `value`: that of the mean, times `value`.
  uint64_t scored = 0;        ///< Tokens.
  uint64_t windows = 0;
};

/// -log softmax(logits)[target], in double. Throws Error (`failed`) where it is not finite.
double negative_log_likelihood(std::span<const float> logits, TokenId target);

/// Perplexity of a text as llama-perplexity gives it: windows of `window` tokens that do not
/// overlap (a tail shorter than one is left out), each from an empty session, its first token
/// replaced by `bos` where there is one; row i scores token i + 1 for i in [window / 2, window -
/// 1). Logits are scored chunk by chunk and never kept. Throws Error (`usage`) where the text does
/// not fill a window, or a window the session's context.
Perplexity measure_perplexity(Session& session, std::span<const TokenId> tokens, uint32_t window,
                              std::optional<TokenId> bos, const Progress& progress);

}  // namespace quern
