#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace quern::cpu {

/// CPUs that this process may use: its affinity mask, and the quota of its control group where that
/// is less.
uint32_t usable_cpus();

/// A word that changes and threads that wait for it: first spinning, then asleep, so that a change
/// is seen within a fraction of a microsecond while work is dense and costs nothing while idle.
class WaitWord {
 public:
  uint32_t load() const { return word_.load(std::memory_order_acquire); }
  /// Waits until the word differs from `old`; returns the new value.
  uint32_t wait_while(uint32_t old);
  /// Adds one and wakes whoever sleeps.
  void advance();

 private:
  alignas(64) std::atomic<uint32_t> word_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// All workers meet; none goes on before the last has come. What a worker wrote before is visible
/// to all after.
class Barrier {
 public:
  explicit Barrier(uint32_t workers) : workers_(workers) {}
  void meet();
  uint32_t workers() const { return workers_; }

 private:
  alignas(64) std::atomic<uint32_t> arrived_{0};
  const uint32_t workers_;
  WaitWord phase_;
};

/// A fixed team of workers for one job at a time. The caller is worker 0; with one worker there are
/// no threads at all. Not reentrant; callers take turns.
class ThreadPool {
 public:
  /// 0: usable_cpus().
  explicit ThreadPool(uint32_t workers = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  uint32_t size() const { return barrier_.workers(); }
  /// Runs job(worker) on every worker and returns when all are done. The job must not throw.
  void run(const std::function<void(uint32_t worker)>& job);
  /// For use inside a job, by all workers alike.
  void barrier() { barrier_.meet(); }

 private:
  void work(uint32_t worker);
  void stop();

  WaitWord launch_;
  Barrier barrier_;
  const std::function<void(uint32_t)>* job_ = nullptr;  ///< Written before launch_ advances.
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
};

}  // namespace quern::cpu
