#include "runtime/generate.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "runtime/clock.h"

namespace quern {
namespace {

bool ends_generation(const Tokenizer& tokenizer, TokenId id) {
  const auto& ends = tokenizer.end_of_generation();
  return std::find(ends.begin(), ends.end(), id) != ends.end();
}

/// Feeds tokens and draws the next, from candidates where the device selects enough of them.
class Feeder {
 public:
  Feeder(Session& session, const SamplingOptions& sampling)
      : session_(session), sampler_(sampling) {}

  /// `history` are all tokens so far, those fed included.
  void feed(std::span<const TokenId> tokens, std::span<const TokenId> history) {
    const SelectionLimits limits = session_.selection_limits();
    const auto request = sampler_.request(limits, history);
    selected_ = request.has_value();
    if (selected_) {
      candidates_ = session_.select(tokens, session_.position(), *request);
      return;
    }
    if (limits.candidates > 0 && !said_) {
      said_ = true;
      spdlog::info("logits are copied for sampling: the device selects the best {} of them",
                   limits.candidates);
    }
    const auto last = static_cast<uint32_t>(tokens.size()) - 1;
    session_.feed(
        tokens, session_.position(),
        tokens.empty() ? std::span<const uint32_t>() : std::span(&last, 1), 0,
        [&](uint32_t, std::span<const float> row) { logits_.assign(row.begin(), row.end()); });
  }
  TokenId draw(std::span<const TokenId> history) {
    return selected_ ? sampler_.draw(candidates_, session_.position())
                     : sampler_.sample(logits_, history, session_.position());
  }

 private:
  Session& session_;
  Sampler sampler_;
  bool selected_ = false, said_ = false;
  Candidates candidates_;
  std::vector<float> logits_;
};

}  // namespace

Generation generate(Session& session, const Tokenizer& tokenizer, std::span<const TokenId> prompt,
                    const SamplingOptions& sampling, std::optional<uint32_t> max_tokens,
                    const TextReceiver& on_text) {
  Feeder feeder(session, sampling);
  StreamDecoder decoder(tokenizer);
  Generation result;
  result.prompt_tokens = prompt.size();
  const auto prompt_start = Clock::now();
  feeder.feed(prompt, prompt);
  result.prompt_ms = milliseconds_since(prompt_start);

  std::vector<TokenId> history(prompt.begin(), prompt.end());
  const auto start = Clock::now();
  while (!max_tokens || result.tokens.size() < *max_tokens) {
    if (!result.tokens.empty()) {
      if (session.position() >= session.capacity()) {
        result.stop = StopReason::context_full;
        break;
      }
      feeder.feed(std::span(&history.back(), 1), history);
      ++result.steps;
    }
    const TokenId id = feeder.draw(history);
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
