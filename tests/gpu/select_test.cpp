// Selection among a row of logits against sorting it: candidates and their order to the bit, ties,
// zeros of both signs, penalties, what is no finite number, launches after launches.

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "templates/spec/select.h"
#include "tests/gpu/support/gpu.h"
#include "tests/support/selection.h"

namespace quern::test {
namespace {

constexpr uint32_t most_counts[] = {1, 256, 1024};

spec::SelectSpec select_spec(uint32_t vocabulary, uint32_t count) {
  return {.vocabulary = vocabulary, .count = std::min(vocabulary, count)};
}

/// Device memory of a selection; the row of logits is the second of two.
class Selection {
 public:
  explicit Selection(const spec::SelectSpec& s) : Selection(s, compiled(s)) {}
  Selection(const spec::SelectSpec& s, const CompiledKernel& kernel)
      : spec_(s),
        logits_(size_t{2} * s.vocabulary),
        wish_(spec::select_wish_bytes()),
        answer_(spec::select_answer_bytes(s)),
        scratch_(spec::select_scratch_bytes(s)),
        counters_(std::vector<uint32_t>(spec::select_counters(s), 0)),
        kernel_(kernel, {.threads = spec::select_threads}) {
    scratch_.poison();
  }
  void set_logits(const std::vector<float>& row) {
    std::vector<float> both(row.size(), std::nanf(""));
    both.insert(both.end(), row.begin(), row.end());
    logits_.upload(both);
  }

  Candidates run(const SelectionRequest& request, double* microseconds = nullptr, int runs = 1) {
    const spec::SelectWish wish{.wanted = request.count,
                                .n_seen = static_cast<uint32_t>(request.seen.size()),
                                .penalty = request.penalty,
                                .reserved = 0};
    std::vector<std::byte> bytes(spec::select_wish_bytes());
    std::memcpy(bytes.data(), &wish, sizeof wish);
    if (!request.seen.empty()) {
      std::memcpy(bytes.data() + sizeof wish, request.seen.data(), request.seen.size() * 4);
    }
    wish_.upload(bytes);
    answer_.poison();
    cuda::KernelArgs args = plain_args();
    args.buffers[0] = logits_.pointer();
    args.buffers[1] = wish_.pointer();
    args.buffers[2] = answer_.pointer();
    args.buffers[3] = scratch_.pointer();
    args.buffers[4] = counters_.pointer();
    args.rows_are_outputs = 1;
    const double us =
        kernel_.run(args, {.n_tokens = 9, .start_position = 0, .n_outputs = 2, .reserved = 0},
                    spec::select_blocks(spec_.vocabulary), 1, runs);
    if (microseconds != nullptr) *microseconds = us;
    for (const uint32_t counter : counters_.download()) EXPECT_EQ(counter, 0U);
    const std::vector<std::byte> answer = answer_.download();
    spec::SelectAnswer head;
    std::memcpy(&head, answer.data(), sizeof head);
    std::vector<spec::SelectCandidate> best(spec_.count);
    std::memcpy(best.data(), answer.data() + sizeof head, best.size() * sizeof best[0]);
    for (size_t i = request.count; i < best.size(); ++i) {
      EXPECT_EQ(best[i].id, ~0U) << "written beyond the candidates wanted";
    }
    Candidates found{.best = {},
                     .not_finite = head.not_finite,
                     .first_not_finite = static_cast<TokenId>(head.first_not_finite)};
    for (uint32_t i = 0; i < request.count; ++i) {
      found.best.emplace_back(best[i].logit, static_cast<TokenId>(best[i].id));
    }
    return found;
  }

 private:
  spec::SelectSpec spec_;
  Array<float> logits_;
  Array<std::byte> wish_, answer_, scratch_;
  Array<uint32_t> counters_;
  Kernel kernel_;
};

enum class Kind { normal, ties, equal, zeros, wide, ascending };

std::vector<float> make_row(uint32_t size, Kind kind, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> row(size);
  for (uint32_t i = 0; i < size; ++i) {
    switch (kind) {
      case Kind::normal:
        row[i] = normal(random);
        break;
      case Kind::ties:
        row[i] = static_cast<float>(random() % 64) / 8 - 4;
        break;
      case Kind::equal:
        row[i] = -2.5F;
        break;
      case Kind::zeros:
        row[i] = random() % 2 == 0 ? 0.0F : -0.0F;
        break;
      case Kind::wide:  // subnormal numbers too
        row[i] = std::ldexp(normal(random), static_cast<int>(random() % 260) - 150);
        break;
      case Kind::ascending:  // all of the best in the last slices
        row[i] = static_cast<float>(i);
        break;
    }
  }
  return row;
}

std::vector<TokenId> random_ids(uint32_t vocabulary, uint32_t count, std::mt19937& random) {
  std::vector<TokenId> ids(count);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % vocabulary);
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::ranges::shuffle(ids, random);
  return ids;
}

/// The bits too, but for a zero's sign.
void expect_equal(const Candidates& found, const Candidates& expected) {
  ASSERT_EQ(found.best.size(), expected.best.size());
  for (size_t i = 0; i < found.best.size(); ++i) {
    ASSERT_EQ(found.best[i].second, expected.best[i].second) << "candidate " << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(found.best[i].first + 0.0F),
              std::bit_cast<uint32_t>(expected.best[i].first + 0.0F))
        << "candidate " << i;
  }
  EXPECT_EQ(found.not_finite, expected.not_finite);
}

class SelectVocabulary : public testing::TestWithParam<uint32_t> {};

TEST_P(SelectVocabulary, candidates_are_those_of_the_sorted_row) {
  QUERN_NEED_GPU();
  const uint32_t vocabulary = GetParam();
  constexpr float penalties[] = {1.0F, 1.3F, 0.75F};
  std::mt19937 random(vocabulary);
  size_t round = 0;
  for (const uint32_t most : most_counts) {
    const spec::SelectSpec s = select_spec(vocabulary, most);
    Selection selection(s);
    for (const Kind kind :
         {Kind::normal, Kind::ties, Kind::equal, Kind::zeros, Kind::wide, Kind::ascending}) {
      const std::vector<float> row = make_row(vocabulary, kind, random);
      selection.set_logits(row);
      for (const uint32_t wanted : {1U, 2U, 7U, 40U, 64U, 200U, 256U, 1000U, 1024U}) {
        if (wanted > s.count && wanted != 1000) continue;
        const float penalty = penalties[round++ % std::size(penalties)];
        SelectionRequest request{.count = std::min(wanted, s.count), .penalty = penalty};
        const uint32_t seen = penalty > 1 ? 64 : spec::select_most_seen;
        if (penalty != 1) request.seen = random_ids(vocabulary, seen, random);
        SCOPED_TRACE(testing::Message()
                     << "count " << s.count << ", kind " << static_cast<int>(kind) << ", wanted "
                     << request.count << ", penalty " << penalty);
        expect_equal(selection.run(request), sorted_candidates(row, request));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(SelectVocabulary, what_is_no_finite_number_is_counted_and_the_lowest_id_told) {
  QUERN_NEED_GPU();
  const uint32_t vocabulary = GetParam();
  std::mt19937 random(7);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float bad[] = {std::nanf(""), -std::nanf(""), infinity, -infinity};
  for (const uint32_t most : most_counts) {
    Selection selection(select_spec(vocabulary, most));
    for (uint32_t count = 1; count <= 4; ++count) {
      std::vector<float> row = make_row(vocabulary, Kind::normal, random);
      for (const TokenId id : random_ids(vocabulary, count, random)) {
        row[static_cast<size_t>(id)] = bad[(count + static_cast<uint32_t>(id)) % 4];
      }
      selection.set_logits(row);
      // The penalty changes nothing of it.
      const SelectionRequest request{
          .count = 1, .penalty = 2, .seen = random_ids(vocabulary, 100, random)};
      const Candidates found = selection.run(request), expected = sorted_candidates(row, request);
      EXPECT_EQ(found.not_finite, expected.not_finite);
      EXPECT_EQ(found.first_not_finite, expected.first_not_finite);
    }
  }
}

TEST_P(SelectVocabulary, launch_after_launch_gives_the_same_bits) {
  QUERN_NEED_GPU();
  const uint32_t vocabulary = GetParam();
  std::mt19937 random(9);
  Selection selection(select_spec(vocabulary, 256));
  const std::vector<float> row = make_row(vocabulary, Kind::ties, random);
  selection.set_logits(row);
  for (int round = 0; round < 10; ++round) {
    // Widths change from launch to launch, and with them the groups that the counters count.
    for (const uint32_t wanted : {256U, 1U, 40U}) {
      const SelectionRequest request{
          .count = std::min(wanted, vocabulary), .penalty = 1, .seen = {}};
      double us = 0;
      expect_equal(selection.run(request, &us, 5), sorted_candidates(row, request));
      ASSERT_FALSE(HasFailure()) << "round " << round << ", " << wanted;
      if (round == 9) {
        RecordProperty("us_of_" + std::to_string(request.count), std::to_string(us));
        std::printf("%u logits, the best %u: %.1f us\n", vocabulary, request.count, us);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SelectVocabulary,
                         testing::Values(1u, 17u, 1000u, 1025u, 32000u, 128256u, 262144u));

TEST(SelectMutants, fail_the_comparison) {
  QUERN_NEED_GPU();
  std::mt19937 random(5);
  const spec::SelectSpec s = select_spec(32000, 256);
  const std::vector<float> row = make_row(s.vocabulary, Kind::ties, random);
  const SelectionRequest request{
      .count = 256, .penalty = 1.5F, .seen = random_ids(s.vocabulary, 64, random)};
  const Candidates expected = sorted_candidates(row, request);
  const std::pair<const char*, const char*> changes[] = {
      {"static_cast<u32>(~id)", "id"},                           // ties to the highest id
      {"logit > 0 ? __fdiv_rn", "logit < 0 ? __fdiv_rn"},        // the other penalty
      {"(width - 1 - (i & (width - 1)))", "(i & (width - 1))"},  // halves not turned round
      {"n_outputs - 1)", "n_outputs - 2)"},                      // another row
      {"size == shift || ", ""},                                 // lists in turn
  };
  for (const auto& [from, to] : changes) {
    Selection selection(s, compile_mutant(s, "templates/cuda/select.cuh", from, to));
    selection.set_logits(row);
    EXPECT_NE(selection.run(request).best, expected.best) << to;
  }
}

}  // namespace
}  // namespace quern::test
