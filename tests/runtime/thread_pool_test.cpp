#include "runtime/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <numeric>
#include <thread>

#include "tests/runtime/store_support.h"

namespace quern::cpu {
namespace {

TEST(ThreadPool, every_worker_runs_every_job_once) {
  for (const uint32_t workers : {1U, 2U, 3U, 8U}) {
    ThreadPool pool(workers);
    ASSERT_EQ(pool.size(), workers);
    std::vector<uint32_t> runs(workers, 0);  // Plain: a missing hand-over is a race that TSan sees.
    for (int job = 0; job < 200; ++job) {
      pool.run([&](uint32_t worker) { ++runs[worker]; });
    }
    for (const uint32_t count : runs) EXPECT_EQ(count, 200U);
  }
}

TEST(ThreadPool, a_barrier_separates_what_lies_before_from_what_lies_after) {
  for (const uint32_t workers : {1U, 2U, 5U}) {
    ThreadPool pool(workers);
    std::vector<uint32_t> slots(workers, 0);
    std::vector<uint32_t> wrong(workers, 0);
    pool.run([&](uint32_t worker) {
      for (uint32_t step = 1; step <= 300; ++step) {
        slots[worker] = step;
        pool.barrier();
        if (std::accumulate(slots.begin(), slots.end(), 0U) != step * workers) ++wrong[worker];
        pool.barrier();
      }
    });
    EXPECT_EQ(std::accumulate(wrong.begin(), wrong.end(), 0U), 0U);
  }
}

TEST(ThreadPool, workers_that_slept_wake_up) {
  ThreadPool pool(4);
  std::atomic<uint32_t> runs{0};
  for (int job = 0; job < 5; ++job) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // Longer than they spin.
    pool.run([&](uint32_t worker) {
      if (worker == 2) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      ++runs;
    });
  }
  EXPECT_EQ(runs, 20U);
}

TEST(ThreadPool, more_workers_than_cpus_do_not_crawl) {
  ThreadPool pool(4 * usable_cpus());
  const auto start = std::chrono::steady_clock::now();
  for (int job = 0; job < 200; ++job) pool.run([](uint32_t) {});
  // Spinning without ever yielding would cost a time slice (milliseconds) for most of these
  // launches.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(ThreadPool, the_default_is_the_cpus_this_process_may_use) {
  EXPECT_EQ(test::run_child([] {
              cpu_set_t set;
              CPU_ZERO(&set);
              if (sched_getaffinity(0, sizeof set, &set) != 0) return 90;
              int first = 0;
              while (!CPU_ISSET(first, &set)) ++first;
              CPU_ZERO(&set);
              CPU_SET(first, &set);
              if (sched_setaffinity(0, sizeof set, &set) != 0) return 91;
              ThreadPool pool;
              uint32_t runs = 0;
              pool.run([&](uint32_t) { ++runs; });
              return usable_cpus() == 1 && pool.size() == 1 && runs == 1 ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace quern::cpu
