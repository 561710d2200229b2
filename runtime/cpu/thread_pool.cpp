#include "runtime/cpu/thread_pool.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <system_error>

#include "models/error.h"

namespace quern::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// Long enough to bridge the gaps inside a forward pass, short enough not to matter where other
// processes want the CPU. Then sleep, never sched_yield: a yielding thread waits for a whole time
// slice of each other process, a sleeping one is scheduled soon after it is woken (measured with
// four busy processes on two CPUs: 90 us a barrier against 170).
constexpr auto kSpin = std::chrono::microseconds(50);

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// CPUs of the control group's quota (version 2), or 0 where there is none.
uint32_t quota_cpus() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  const double microseconds = std::strtod(quota.c_str(), nullptr);
  if (!(microseconds > 0)) return 0;
  return static_cast<uint32_t>(std::max(1.0, (microseconds + period - 1) / period));
}

}  // namespace

uint32_t usable_cpus() {
  uint32_t count = std::max(1U, std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  // Machines beyond the mask's 1,024 CPUs make the call fail; the count above serves then.
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) {
    count = static_cast<uint32_t>(CPU_COUNT(&set));
  }
  if (const uint32_t quota = quota_cpus(); quota > 0) count = std::min(count, quota);
  return count;
}

uint32_t WaitWord::wait_while(uint32_t old) {
  for (int i = 0; i < 64; ++i) {
    if (const uint32_t now = load(); now != old) return now;
    pause_cpu();
  }
  for (const auto start = Clock::now(); Clock::now() - start < kSpin;) {
    for (int i = 0; i < 16; ++i) {
      if (const uint32_t now = load(); now != old) return now;
      pause_cpu();
    }
  }
  // Sequentially consistent on both sides: either this thread sees the new word here, or advance()
  // sees the sleeper.
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return word_.load(std::memory_order_seq_cst) != old; });
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return load();
}

void WaitWord::advance() {
  word_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Barrier::meet() {
  if (workers_ == 1) return;
  const uint32_t phase = phase_.load();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == workers_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.advance();
  } else {
    phase_.wait_while(phase);
  }
}

ThreadPool::ThreadPool(uint32_t workers) : barrier_(workers == 0 ? usable_cpus() : workers) {
  threads_.reserve(size() - 1);
  try {
    for (uint32_t worker = 1; worker < size(); ++worker) {
      threads_.emplace_back([this, worker] { work(worker); });
    }
  } catch (const std::system_error& error) {
    const size_t started = threads_.size() + 1;
    stop();
    throw Error(ErrorKind::failed, fmt::format("{} threads", size()),
                fmt::format("only {} could be started ({})", started, error.what()),
                "ask for fewer with --threads");
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  stop_.store(true, std::memory_order_relaxed);
  launch_.advance();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ThreadPool::work(uint32_t worker) {
  uint32_t seen = 0;
  for (;;) {
    seen = launch_.wait_while(seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    (*job_)(worker);
    barrier_.meet();
  }
}

void ThreadPool::run(const std::function<void(uint32_t worker)>& job) {
  if (size() == 1) {
    job(0);
    return;
  }
  job_ = &job;
  launch_.advance();
  job(0);
  barrier_.meet();
}

}  // namespace quern::cpu
