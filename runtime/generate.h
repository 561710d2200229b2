#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "models/tokenizer/tokenizer.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"

namespace quern {

/// Why a generation ended.
enum class StopReason {
  end_of_text,   ///< The model drew a token that ends generation.
  length,        ///< The tokens asked for are there.
  context_full,  ///< The session has no room for another token.
  cancelled,     ///< The receiver said so.
};

/// Tokens and times of one generation.
struct Generation {
  std::vector<TokenId> tokens;  ///< Drawn tokens, without the one that ended it.
  StopReason stop = StopReason::length;
  uint64_t prompt_tokens = 0;
  double prompt_ms = 0;
  /// Draws after the first, each with a forward pass of its own in `generation_ms`.
  uint64_t steps = 0;
  double generation_ms = 0;

  double prompt_tokens_per_second() const { return rate(prompt_tokens, prompt_ms); }
  double tokens_per_second() const { return rate(steps, generation_ms); }

 private:
  static double rate(uint64_t count, double ms) {
    return ms > 0 ? 1000 * static_cast<double>(count) / ms : 0;
  }
};

/// Gets each token with the text that became complete by it (whole UTF-8 characters, maybe none;
/// always none where the tokenizer has no text) and says whether to go on. Called a last time with
/// no token for what was left.
using TextReceiver = std::function<bool(std::optional<TokenId> token, std::string_view text)>;

/// Feeds `prompt` to the session, then draws up to `max_tokens` tokens (nothing: until another
/// reason stops it). Earlier tokens of the session are not part of the repeat penalty; draws are
/// keyed by absolute position. The last token drawn is not fed.
Generation generate(Session& session, const Tokenizer& tokenizer, std::span<const TokenId> prompt,
                    const SamplingOptions& sampling, std::optional<uint32_t> max_tokens,
                    const TextReceiver& on_text);

}  // namespace quern
