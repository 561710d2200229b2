#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "models/error.h"
#include "runtime/philox.h"
#include "tests/support/selection.h"

namespace quern {
namespace {

using test::sorted_candidates;

TEST(Philox, gives_the_published_vectors) {
  // Random123's known-answer tests for philox4x32, 10 rounds.
  using Counter = std::array<uint32_t, 4>;
  EXPECT_EQ(philox_4x32_10({0, 0, 0, 0}, {0, 0}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox_4x32_10({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox_4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, uniform_lies_in_the_half_open_unit_interval_and_fills_it) {
  double sum = 0;
  for (uint64_t i = 0; i < 10'000; ++i) {
    const double u = philox_uniform(42, i);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 10'000, 0.5, 0.01);
}

SamplingOptions plain(float temperature) {
  return {.temperature = temperature, .top_k = 0, .top_p = 1, .min_p = 0};
}

/// How often each token is drawn over `n` positions.
std::map<TokenId, int> draw(const SamplingOptions& options, const std::vector<float>& logits,
                            int n) {
  Sampler sampler(options);
  std::map<TokenId, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sampler.sample(logits, {}, static_cast<uint64_t>(i))];
  return counts;
}

TEST(Sampler, greedy_takes_the_largest_and_ties_go_to_the_lowest_id) {
  Sampler sampler(plain(0));
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 5, 2, 5}, {}, 0), 1);
  EXPECT_EQ(argmax(std::vector<float>{-3, -3, -4}), 0);
}

TEST(Sampler, draws_follow_the_softmax_at_the_temperature) {
  const std::vector<float> logits = {0, 1, 2, -1};
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    const auto counts = draw(plain(temperature), logits, 20'000);
    double total = 0;
    for (const float l : logits) total += std::exp(l / temperature);
    for (size_t i = 0; i < logits.size(); ++i) {
      const double expected = std::exp(logits[i] / temperature) / total;
      const auto found = counts.find(static_cast<TokenId>(i));
      const double share = found == counts.end() ? 0 : found->second / 20'000.0;
      EXPECT_NEAR(share, expected, 0.015) << "token " << i << " at " << temperature;
    }
  }
}

TEST(Sampler, a_draw_depends_on_seed_and_position_alone) {
  std::vector<float> logits(100);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  SamplingOptions options = plain(1);
  options.seed = 9;
  Sampler a(options);
  Sampler b(options);
  std::vector<TokenId> forward;
  forward.reserve(50);
  for (uint64_t p = 0; p < 50; ++p) forward.push_back(a.sample(logits, {}, p));
  for (uint64_t p = 50; p-- > 0;) EXPECT_EQ(b.sample(logits, {}, p), forward[p]);
  options.seed = 10;
  Sampler other(options);
  int equal = 0;
  for (uint64_t p = 0; p < 50; ++p) equal += other.sample(logits, {}, p) == forward[p];
  EXPECT_LT(equal, 25);
}

TEST(Sampler, top_k_keeps_the_k_best_with_ties_to_the_lowest_ids) {
  SamplingOptions options = plain(1);
  options.top_k = 3;
  const auto counts = draw(options, {2, 3, 2, 2, 1}, 2000);
  ASSERT_EQ(counts.size(), 3U);
  EXPECT_TRUE(counts.contains(0));
  EXPECT_TRUE(counts.contains(1));
  EXPECT_TRUE(counts.contains(2));
}

/// Every id that can be drawn, by sorting everything.
std::vector<TokenId> sorted_front(const std::vector<float>& logits, size_t k) {
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::sort(ids, [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  ids.resize(k);
  return ids;
}

TEST(Sampler, a_large_vocabulary_keeps_the_same_tokens_as_sorting_it_would) {
  std::mt19937 random(3);
  for (const size_t size : {size_t{41}, size_t{1000}, size_t{50'257}}) {
    std::vector<float> logits(size);
    for (float& logit : logits) logit = static_cast<float>(random() % 64) / 16;  // many are equal
    EXPECT_EQ(argmax(logits), sorted_front(logits, 1)[0]);
    for (const uint32_t k : {1U, 40U, 300U}) {
      if (k >= size) continue;
      const std::vector<TokenId> front = sorted_front(logits, k);
      SamplingOptions options = plain(1000.0F);  // hot: all of them are drawn sooner or later
      options.top_k = k;
      Sampler sampler(options);
      std::set<TokenId> drawn;
      for (uint64_t position = 0; position < 12 * k; ++position) {
        drawn.insert(sampler.sample(logits, {}, position));
      }
      EXPECT_TRUE(std::ranges::includes(std::set<TokenId>(front.begin(), front.end()), drawn));
      EXPECT_GT(drawn.size(), k * 9 / 10) << size << " tokens, top " << k;
    }
  }
}

TEST(Sampler, top_p_keeps_the_shortest_front_that_reaches_p) {
  // Probabilities 0.5, 0.3, 0.15, 0.05.
  const std::vector<float> logits = {std::log(0.15F), std::log(0.5F), std::log(0.05F),
                                     std::log(0.3F)};
  SamplingOptions options = plain(1);
  options.top_p = 0.79F;
  EXPECT_EQ(draw(options, logits, 2000).size(), 2U);
  options.top_p = 0.81F;
  EXPECT_EQ(draw(options, logits, 2000).size(), 3U);
  options.top_p = 0.01F;
  EXPECT_EQ(draw(options, logits, 500).size(), 1U);
}

TEST(Sampler, min_p_keeps_what_is_probable_enough_beside_the_best) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F),
                                     std::log(0.05F)};
  SamplingOptions options = plain(1);
  options.min_p = 0.2F;
  EXPECT_EQ(draw(options, logits, 4000).size(), 3U);
  options.min_p = 0.5F;
  EXPECT_EQ(draw(options, logits, 2000).size(), 2U);
}

TEST(Sampler, cuts_come_before_the_temperature) {
  // At temperature 100 all are about equally probable, but min-p still looks at the untempered
  // ones.
  SamplingOptions options = plain(100);
  options.min_p = 0.2F;
  EXPECT_EQ(draw(options, {0, -1, -5}, 2000).size(), 2U);
}

TEST(Sampler, the_repeat_penalty_looks_at_the_window_alone_and_works_on_both_signs) {
  SamplingOptions options = plain(0);
  options.repeat_penalty = 2;
  options.repeat_window = 2;
  Sampler sampler(options);
  const std::vector<float> positive = {3, 2, 1};
  EXPECT_EQ(sampler.sample(positive, std::vector<TokenId>{0}, 0), 1);
  EXPECT_EQ(sampler.sample(positive, std::vector<TokenId>{0, 2, 2}, 0), 0);
  const std::vector<float> negative = {-1, -1.5F, -3};
  EXPECT_EQ(sampler.sample(negative, std::vector<TokenId>{0, 0}, 0), 1);
  // Ids that the vocabulary does not have are no crash.
  EXPECT_EQ(sampler.sample(positive, std::vector<TokenId>{-1, 99}, 0), 0);
}

/// Logits of many kinds: ties, zeros of both signs, wide and narrow ones.
std::vector<float> random_logits(size_t size, unsigned kind, std::mt19937& random) {
  std::vector<float> logits(size);
  std::normal_distribution<float> normal(0, 4);
  for (float& logit : logits) {
    const auto number = static_cast<float>(random() % 64);
    switch (kind % 4) {
      case 0:
        logit = number / 8 - 4;
        break;
      case 1:
        logit = normal(random);
        break;
      case 2:
        logit = random() % 2 == 0 ? 0.0F : -0.0F;
        break;
      default:
        logit = std::ldexp(normal(random), static_cast<int>(random() % 100) - 30);
    }
  }
  return logits;
}

TEST(Sampler, draws_from_candidates_are_those_from_all_logits) {
  std::mt19937 random(11);
  size_t selected = 0, refused = 0;
  for (unsigned round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    const size_t size = std::array<size_t, 4>{1, 17, 300, 5000}[round / 4 % 4];
    const std::vector<float> logits = random_logits(size, round, random);
    SamplingOptions options;
    options.temperature = std::array{0.0F, 0.7F, 1.5F}[random() % 3];
    options.top_k = std::array{0U, 1U, 40U, 256U, 400U}[random() % 5];
    options.top_p = std::array{1.0F, 0.95F, 0.3F}[random() % 3];
    options.min_p = std::array{0.0F, 0.05F}[random() % 2];
    options.repeat_penalty = std::array{1.0F, 1.3F, 0.8F, 1e38F}[random() % 4];
    options.seed = round;
    std::vector<TokenId> history;
    for (size_t i = random() % 100; i > 0; --i) {
      history.push_back(static_cast<TokenId>(random() % (size + 1)) - 1);  // -1 is no token
    }
    const SelectionLimits limits{std::min(256U, static_cast<uint32_t>(size)), 60,
                                 static_cast<uint32_t>(size)};
    Sampler from_logits(options), from_candidates(options);
    const auto request = from_candidates.request(limits, history);
    const bool all_needed =
        options.temperature != 0 && size > 256 && (options.top_k == 0 || options.top_k > 256);
    if (!request) {
      EXPECT_TRUE(all_needed || options.repeat_penalty != 1);  // or more than 60 seen tokens
      ++refused;
      continue;
    }
    EXPECT_FALSE(all_needed);
    ++selected;
    const Candidates candidates = sorted_candidates(logits, *request);
    for (uint64_t position = 0; position < 30; ++position) {
      ASSERT_EQ(from_candidates.draw(candidates, position),
                from_logits.sample(logits, history, position))
          << size << " tokens, top " << options.top_k << ", penalty " << options.repeat_penalty;
    }
  }
  EXPECT_GT(selected, 200U);
  EXPECT_GT(refused, 20U);
}

TEST(Sampler, asks_a_device_for_no_more_than_it_needs_and_takes) {
  const std::vector<TokenId> history = {5, 900, 5, 3, -1, 7};
  const SelectionLimits limits{256, 3, 900};
  SamplingOptions options;
  EXPECT_EQ(Sampler(options).request(limits, history)->count, 1U);  // greedy
  EXPECT_TRUE(Sampler(options).request(limits, history)->seen.empty());
  options.repeat_penalty = 1.5F;
  const auto greedy = Sampler(options).request(limits, history);
  EXPECT_EQ(greedy->seen, (std::vector<TokenId>{3, 5, 7}));
  EXPECT_EQ(greedy->penalty, 1.5F);
  EXPECT_FALSE(Sampler(options).request({256, 2, 900}, history));
  options.temperature = 1;
  EXPECT_EQ(Sampler(options).request(limits, history)->count, 40U);
  EXPECT_FALSE(Sampler(options).request({39, 3, 900}, history));
  EXPECT_FALSE(Sampler(options).request({0, 0, 0}, history));  // a device that selects nothing
  options.top_k = 0;
  EXPECT_FALSE(Sampler(options).request(limits, history));
  EXPECT_EQ(Sampler(options).request({17, 3, 17}, history)->count, 17U);
}

TEST(Sampler, candidates_of_logits_that_are_not_finite_are_the_same_error) {
  std::vector<float> logits(20, 1.0F);
  logits[7] = std::nanf("");
  logits[12] = std::numeric_limits<float>::infinity();
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::failed);
      return error.what();
    }
    return "no error";
  };
  Sampler sampler(plain(0));
  const std::string expected = message([&] { sampler.sample(logits, {}, 3); });
  EXPECT_EQ(message([&] { sampler.draw(sorted_candidates(logits, {}), 3); }), expected);
  EXPECT_NE(expected.find("logit of token 7 at position 3"), std::string::npos) << expected;
}

TEST(Sampler, logits_that_a_penalty_makes_infinite_are_candidates_too) {
  SamplingOptions options = plain(1);
  options.top_k = 2;
  options.repeat_penalty = 1e38F;
  Sampler sampler(options);
  const std::vector<float> logits(5, -100.0F);
  const std::vector<TokenId> all = {0, 1, 2, 3, 4};
  EXPECT_EQ(
      sampler.sample(logits, all, 0),
      sampler.draw(sorted_candidates(logits, {.count = 2, .penalty = 1e38F, .seen = all}), 0));
}

TEST(Sampler, logits_that_are_not_finite_are_an_error) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf(""),
                          -std::numeric_limits<float>::infinity()}) {
    for (const float temperature : {0.0F, 1.0F}) {
      Sampler sampler(plain(temperature));
      EXPECT_THROW(sampler.sample(std::vector<float>{1, bad, 2}, {}, 0), Error);
    }
  }
}

TEST(Sampler, options_out_of_range_are_refused_by_name) {
  const auto refused = [](SamplingOptions options, std::string_view name) {
    try {
      const Sampler sampler(options);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_EQ(error.thing(), name);
    }
  };
  refused({.temperature = -1}, "--temp");
  refused({.temperature = std::nanf("")}, "--temp");
  refused({.top_p = 0}, "--top-p");
  refused({.top_p = 1.5F}, "--top-p");
  refused({.min_p = 1}, "--min-p");
  refused({.min_p = -0.1F}, "--min-p");
  refused({.repeat_penalty = 0}, "--repeat-penalty");
}

TEST(Sampler, extreme_temperatures_stay_sound) {
  EXPECT_EQ(draw(plain(1e-6F), {1, 2, 1.999F}, 100).size(), 1U);
  EXPECT_EQ(draw(plain(1e30F), {1, 2, 3}, 3000).size(), 3U);
  EXPECT_EQ(draw(plain(1), {3e38F, -3e38F}, 100).size(), 1U);
}

}  // namespace
}  // namespace quern
