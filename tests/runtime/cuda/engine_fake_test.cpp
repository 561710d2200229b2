// The GPU engine around its kernels, on the stand-in driver: inputs, state, graphs and results of
// sessions, and what is left after any failure.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "models/error.h"
#include "tests/runtime/cuda/toy_gpu.h"

namespace quern::test {
namespace {

using ::testing::HasSubstr;

class GpuEngine : public ToyGpuTest {
 protected:
  std::span<const TokenId> first(size_t count) const { return std::span(tokens_).first(count); }
  /// A prompt of two chunks, then two steps of which the second replays a graph.
  void feed_all(Session& session) {
    session.feed(first(20), 0, OutputRows::last);
    session.feed(part(20, 1), 20, OutputRows::last);
    session.feed(part(21, 1), 21, OutputRows::last);
  }
  /// A session works from the start.
  void expect_sound(Session& session) {
    session.reset();
    expect_toy(session, {}, first(20));
    expect_toy(session, first(20), part(20, 1));
    expect_toy(session, first(21), part(21, 1));
  }
};

TEST_F(GpuEngine, logits_are_those_of_the_rows_asked_for_whatever_the_chunks) {
  const auto engine = load();
  const auto session = engine->new_session();
  const uint32_t width = engine->plan().vocabulary;
  for (const uint32_t size : {16U, 7U, 3U, 1U}) {
    session->reset();
    const std::vector<float> all = session->feed(tokens_, 0, OutputRows::all, size);
    ASSERT_EQ(all.size(), size_t{context} * width);
    for (uint32_t row = 0; row < context; ++row) {
      const auto logits = std::span(all).subspan(size_t{row} * width, width);
      ASSERT_EQ(std::vector<float>(logits.begin(), logits.end()), toy_logits(first(row + 1), width))
          << "row " << row << " chunk " << size;
    }
  }
  session->reset();
  const std::vector<uint32_t> rows = {0, 15, 16, 31, 40};
  std::vector<uint32_t> seen;
  session->feed(first(41), 0, rows, 0, [&](uint32_t row, std::span<const float> logits) {
    seen.push_back(row);
    EXPECT_EQ(logits[0], toy_logits(first(row + 1), width)[0]);
  });
  EXPECT_EQ(seen, rows);
}

TEST_F(GpuEngine, single_tokens_are_replayed_from_graphs) {
  const auto engine = load();
  const auto session = engine->new_session();
  const uint64_t captures = cuda_.calls("cuStreamBeginCapture_v2");
  for (uint32_t i = 0; i < 10; ++i) {
    expect_toy(*session, first(i), part(i, 1));
    EXPECT_EQ(launches_of(*session, "launch graph"), 1U);
  }
  EXPECT_EQ(cuda_.calls("cuStreamBeginCapture_v2"), captures + 1);
  const uint64_t before = cuda_.launches();
  session->feed(part(10, 1), 10,
                OutputRows::none);  // without logits: fewer launches, its own graph
  EXPECT_LT(cuda_.launches() - before, engine->plan().steps.size());
  EXPECT_EQ(cuda_.calls("cuStreamBeginCapture_v2"), captures + 2);
  expect_toy(*session, first(11), part(11, 1));
  EXPECT_EQ(cuda_.calls("cuStreamBeginCapture_v2"), captures + 2);
}

TEST_F(GpuEngine, every_step_of_the_plan_is_launched_with_the_state_of_its_chunk) {
  const auto engine = load();
  const auto session = engine->new_session();
  const uint64_t before = cuda_.launches();
  session->feed(first(20), 0, OutputRows::last);
  const auto launches = cuda_.launches_since(before);
  const size_t steps = engine->plan().steps.size() - 1;  // no selection: logits were asked for
  size_t first_chunk = 0;
  for (const fake_cuda::Launch& launch : launches) {
    const bool is_first = launch.state.start_position == 0;
    first_chunk += is_first ? 1 : 0;
    EXPECT_EQ(launch.state.n_tokens, is_first ? 16U : 4U);
    EXPECT_EQ(launch.state.n_outputs, is_first ? 0U : 1U);
    EXPECT_EQ(launch.in_graph, 0U);
  }
  EXPECT_EQ(launches.size() - first_chunk, steps);
  EXPECT_LT(first_chunk, steps);  // nothing of the head
  uint32_t counted = 0;
  for (const auto& [name, count] : session->last_launches()) counted += count;
  EXPECT_EQ(counted, launches.size());
}

TEST_F(GpuEngine, sessions_keep_apart_and_branches_and_saved_states_go_on) {
  const auto engine = load();
  const auto session = engine->new_session(), other = engine->new_session();
  expect_toy(*session, {}, first(20));
  expect_toy(*other, {}, part(30, 5));
  expect_toy(*session, first(20), part(20, 1));
  expect_toy(*other, part(30, 5), part(35, 1));

  const auto branch = session->branch();
  const auto image = session->save();
  expect_toy(*session, first(21), part(21, 30));
  expect_toy(*branch, first(21), part(21, 1));
  other->restore(image);
  expect_toy(*other, first(21), part(21, 2));
  session->restore(image);  // back in time: nothing of what came later stays
  expect_toy(*session, first(21), part(21, 1));
  session->reset();
  expect_toy(*session, {}, first(2));
}

TEST_F(GpuEngine, raw_weights_and_vectors_arrive_as_they_are_in_the_file) {
  const auto engine = load();
  const auto session = engine->new_session();
  const uint64_t before = cuda_.launches();
  session->feed(first(2), 0, OutputRows::last);
  const Plan& plan = engine->plan();
  std::map<uint32_t, bool> compared;
  size_t next = 0;
  for (const fake_cuda::Launch& launch : cuda_.launches_since(before)) {
    const Step& step = plan.steps.at(next++);
    for (size_t i = 0; i < step.buffers.size(); ++i) {
      if (step.buffers[i].kind != BufferKind::weight) continue;
      const WeightBinding& binding = plan.weights[step.buffers[i].index];
      const gguf::Tensor* tensor = engine->file().find(binding.slice.tensor);
      ASSERT_NE(tensor, nullptr);
      const bool whole = tensor->data.size() == binding.slice.rows * sizeof(float);
      if (binding.form == WeightForm::packed || (binding.form == WeightForm::vector && !whole)) {
        continue;
      }
      const std::byte* there = cuda_.memory(launch.args.buffers[i], tensor->data.size());
      EXPECT_EQ(std::memcmp(there, tensor->data.data(), tensor->data.size()), 0) << step.name;
      compared[static_cast<uint32_t>(binding.form)] = true;
    }
  }
  EXPECT_EQ(compared.size(), 2U);  // both forms occurred
}

TEST_F(GpuEngine, a_failure_at_any_launch_latches_until_reset_and_others_live_on) {
  const auto engine = load();
  const auto session = engine->new_session(), other = engine->new_session();
  const uint64_t before = cuda_.launches();
  feed_all(*session);
  const uint64_t launches = cuda_.launches() - before;
  ASSERT_GT(launches, 3 * engine->plan().steps.size());
  for (const Failing how : {Failing::at_once, Failing::later}) {
    for (uint64_t at = 0; at < launches; ++at) {
      SCOPED_TRACE(at);
      session->reset();
      cuda_.fail_launch(at, cuda_launch_failed, how);
      EXPECT_THAT(message_of([&] { feed_all(*session); }), HasSubstr("CUDA_ERROR_LAUNCH_FAILED"));
      ASSERT_TRUE(cuda_.faults_happened());
      const uint32_t position = session->position();
      const std::string latched =
          message_of([&] { session->feed(first(1), position, OutputRows::last); });
      EXPECT_THAT(latched, HasSubstr("an earlier call failed"));
      EXPECT_THAT(message_of([&] { session->save(); }), HasSubstr("an earlier call failed"));
      other->reset();
      expect_toy(*other, {}, part(7, 3));
      expect_toy(*other, part(7, 3), part(10, 1));
      expect_sound(*session);
    }
  }
}

TEST_F(GpuEngine, a_failure_of_any_driver_call_of_a_session_is_an_error_and_leaves_no_trace) {
  const auto engine = load();
  const auto other = engine->new_session();
  uint64_t at = 0;
  for (bool happened = true; happened; ++at) {
    SCOPED_TRACE(at);
    cuda_.fail_call(nullptr, at, cuda_launch_failed);
    std::unique_ptr<Session> session;
    const std::string message = message_of([&] {
      session = engine->new_session();
      feed_all(*session);
    });
    happened = cuda_.faults_happened();
    cuda_.clear_faults();
    if (happened) {
      EXPECT_THAT(message, HasSubstr("CUDA_ERROR_LAUNCH_FAILED"));
    } else {
      EXPECT_EQ(message, "no error");
    }
    if (session != nullptr) expect_sound(*session);
    other->reset();
    expect_toy(*other, {}, first(3));
    if (HasFailure()) break;
  }
  EXPECT_GT(at, 3 * engine->plan().steps.size());
}

TEST_F(GpuEngine, a_failure_of_any_driver_call_of_a_load_is_an_error_and_leaves_nothing) {
  uint64_t at = 0;
  for (bool happened = true; happened; ++at) {
    SCOPED_TRACE(at);
    cuda_.fail_call(nullptr, at, cuda_launch_failed);
    const std::string message = message_of([&] { load(); });
    happened = cuda_.faults_happened();
    cuda_.clear_faults();
    EXPECT_THAT(message, HasSubstr(happened ? "CUDA_ERROR_LAUNCH_FAILED" : "no error"));
    EXPECT_EQ(cuda_.leaks(), "");
    if (HasFailure()) break;
  }
  EXPECT_GT(at, 50U);
}

TEST_F(GpuEngine, a_lost_context_says_so_until_the_model_is_loaded_again) {
  auto engine = load();
  auto session = engine->new_session(), other = engine->new_session();
  expect_toy(*other, {}, first(3));
  cuda_.fail_launch(5);  // as a faulty kernel: at the next synchronisation, for good
  const std::string message = message_of([&] { session->feed(first(20), 0, OutputRows::last); });
  EXPECT_THAT(message, HasSubstr("unspecified launch failure (CUDA_ERROR_LAUNCH_FAILED); load the "
                                 "model again"));
  EXPECT_THAT(message_of([&] { session->feed(first(1), 0, OutputRows::last); }),
              HasSubstr("an earlier call failed"));
  const std::string dead = "Stand-in GPU: it failed earlier";
  EXPECT_THAT(message_of([&] { session->reset(); }), HasSubstr(dead));
  EXPECT_THAT(message_of([&] { other->feed(part(3, 1), 3, OutputRows::last); }), HasSubstr(dead));
  EXPECT_THAT(message_of([&] { engine->new_session(); }), HasSubstr("load the model again"));
  session.reset();
  other.reset();
  engine.reset();
  EXPECT_EQ(cuda_.leaks(), "");
  engine = load();
  session = engine->new_session();
  expect_sound(*session);
}

TEST_F(GpuEngine, a_model_that_does_not_fit_is_refused_before_anything_is_allocated) {
  const Plan plan = plan_for_gpu(model_, context, chunk);
  cuda_.set_memory(plan.capacity.total() - 1);
  try {
    load();
    ADD_FAILURE() << "it was loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
    EXPECT_THAT(error.what(), HasSubstr("Stand-in GPU has"));
    EXPECT_THAT(error.remedy(), HasSubstr("--ctx"));
  }
  EXPECT_EQ(cuda_.calls("cuMemAlloc_v2"), 0U);
}

TEST_F(GpuEngine, a_session_that_does_not_fit_leaves_the_others_alone) {
  const auto engine = load();
  const auto session = engine->new_session();
  cuda_.set_memory(cuda_.live_bytes());
  try {
    engine->new_session();
    ADD_FAILURE() << "it fitted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
  }
  expect_sound(*session);
}

TEST_F(GpuEngine, another_gpu_than_the_plans_is_refused) {
  setenv("FAKE_CUDA_CC", "80", 1);
  cuda_.reset();
  const std::string message = message_of([&] { load(); });
  unsetenv("FAKE_CUDA_CC");
  EXPECT_EQ(message,
            "target sm_90a: Stand-in GPU has compute capability 8.0; compile the plan with "
            "--target sm_80");
}

TEST_F(GpuEngine, threads_take_turns) {
  const auto engine = load();
  const auto work = [&](size_t begin) {
    const auto session = engine->new_session();
    for (int round = 0; round < 5; ++round) {
      session->reset();
      expect_toy(*session, {}, part(begin, 20), 7);
      for (size_t i = 20; i < 24; ++i) {
        expect_toy(*session, part(begin, i), part(begin + i, 1));
      }
    }
  };
  std::thread one(work, 0), two(work, 10);
  work(20);
  one.join();
  two.join();
}

TEST_F(GpuEngine, what_one_thread_made_another_may_end) {
  auto engine = load();
  auto session = engine->new_session();
  feed_all(*session);
  std::thread([&] {
    session.reset();
    engine.reset();
  }).join();
  EXPECT_EQ(cuda_.live_bytes(), 0U);
  EXPECT_EQ(cuda_.pinned_bytes(), 0U);
}

}  // namespace
}  // namespace quern::test
