#include "runtime/generate.h"
#include "runtime/clock.h"

#include <algorithm>
#include <chrono>

namespace quern {
namespace {

bool ends_generation(const Tokenizer& tokenizer, TokenId id) {
  const auto& ends = tokenizer.end_of_generation();
  return std::find(ends.begin(), ends.end(), id) != ends.end();
}

}  // namespace

Generation generate(Session& session, const Tokenizer& tokenizer, std::span<const TokenId> prompt,
                    const SamplingOptions& sampling, std::optional<uint32_t> max_tokens,
                    const TextReceiver& on_text) {
  Sampler sampler(sampling);
  StreamDecoder decoder(tokenizer);
  Generation result;
  result.prompt_tokens = prompt.size();
  const auto prompt_start = Clock::now();
  std::vector<float> logits;
  const auto feed = [&](std::span<const TokenId> tokens) {
    const auto last = static_cast<uint32_t>(tokens.size()) - 1;
    session.feed(
        tokens, session.position(),
        tokens.empty() ? std::span<const uint32_t>() : std::span(&last, 1), 0,
        [&](uint32_t, std::span<const float> row) { logits.assign(row.begin(), row.end()); });
  };
  feed(prompt);
  result.prompt_ms = milliseconds_since(prompt_start);

  std::vector<TokenId> history(prompt.begin(), prompt.end());
  const auto start = Clock::now();
  while (!max_tokens || result.tokens.size() < *max_tokens) {
    if (!result.tokens.empty()) {
      if (session.position() >= session.capacity()) {
        result.stop = StopReason::context_full;
        break;
      }
      feed(std::span(&history.back(), 1));
      ++result.steps;
    }
    const TokenId id = sampler.sample(logits, history, session.position());
    if (ends_generation(tokenizer, id)) {
      result.stop = StopReason::end_of_text;
      break;
    }
    history.push_back(id);
    result.tokens.push_back(id);
    if (!on_text(id, tokenizer.has_text() ? decoder.push(id) : std::string())) {
      result.stop = StopReason::cancelled;
      break;
    }
  }
  result.generation_ms = milliseconds_since(start);
  on_text(std::nullopt, tokenizer.has_text() ? decoder.finish() : std::string());
  return result;
}

}  // namespace quern
