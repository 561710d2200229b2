// Faults that need processes of their own: crashes, full disks, other users, cold starts.

#include <gtest/gtest.h>
#include <signal.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "models/error.h"
#include "runtime/store/entry_file.h"
#include "runtime/store/kernel_store.h"
#include "runtime/store/key_lock.h"
#include "tests/runtime/store_support.h"
#include "tests/support/temporary_folder.h"

namespace quern::test {
namespace {

namespace fs = std::filesystem;

/// Counts warnings of this process while it lives.
class WarningCounter {
 public:
  WarningCounter() : sink_(std::make_shared<Sink>()), before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", sink_));
  }
  ~WarningCounter() { spdlog::set_default_logger(before_); }
  int count() const { return sink_->warnings; }

 private:
  struct Sink : spdlog::sinks::base_sink<std::mutex> {
    int warnings = 0;
    void sink_it_(const spdlog::details::log_msg& message) override {
      if (message.level >= spdlog::level::warn) ++warnings;
    }
    void flush_() override {}
  };
  std::shared_ptr<Sink> sink_;
  std::shared_ptr<spdlog::logger> before_;
};

/// 0 where two kernels come out right, are compiled now and again next time, and one warning is
/// given.
int check_memory_only(const KernelStore::Options& options) {
  const WarningCounter warnings;
  KernelStore store(options);
  for (int again = 0; again < 2; ++again) {
    for (uint32_t width : {1U, 2U}) {
      const auto spec = fake_spec(width);
      if (get_fake(store, spec).code != fake_code(fake_key(spec))) return 1;
    }
  }
  if (store.stats().compiled != 2) return 2;
  if (warnings.count() != 1) return 3;
  KernelStore next(options);
  get_fake(next, fake_spec(1));
  return next.stats().compiled == 1 ? 0 : 4;
}

store::WritePoint kill_at;
void kill_hook(store::WritePoint point) {
  if (point == kill_at) ::raise(SIGKILL);
}

/// The store after a crash: no half entry under a final name, everything usable, temporary files
/// prunable.
void expect_sound(const fs::path& directory, const std::vector<spec::AnySpec>& specs) {
  KernelStore store = make_store(directory);
  for (const auto& verification : store.verify()) {
    EXPECT_TRUE(verification.good) << verification.problem;
  }
  for (const auto& spec : specs) {
    EXPECT_EQ(get_fake(store, spec).code, fake_code(fake_key(spec)));
  }
  EXPECT_EQ(store.stats().rejected, 0U);
  store.prune(~uint64_t{0});
  for (const auto& file : fs::directory_iterator(directory / "kernels")) {
    EXPECT_EQ(file.path().extension(), ".kernel") << file.path();
  }
}

TEST(KernelStoreFault, a_kill_at_any_point_of_a_write_leaves_a_sound_store) {
  using store::WritePoint;
  for (int round = 0; round < store_rounds(); ++round) {
    for (const WritePoint point :
         {WritePoint::begin, WritePoint::created, WritePoint::half_written, WritePoint::written,
          WritePoint::synced, WritePoint::renamed, WritePoint::finished}) {
      const TemporaryFolder folder;
      ASSERT_EQ(run_child([&] {
                  KernelStore store = make_store(folder.path());
                  get_fake(store, fake_spec(1));
                  kill_at = point;
                  store::set_write_hook(kill_hook);
                  get_fake(store, fake_spec(2));
                  return 0;
                }),
                1000 + SIGKILL);
      expect_sound(folder.path(), {fake_spec(1), fake_spec(2), fake_spec(3)});
    }
  }
}

TEST(KernelStoreFault, a_kill_at_any_moment_leaves_a_sound_store) {
  std::mt19937 random(7);
  const TemporaryFolder folder;
  for (int round = 0; round < store_rounds(); ++round) {
    const fs::path directory = folder / std::to_string(round);
    const pid_t child = start_child([&] {
      KernelStore store = make_store(directory);
      for (uint32_t width = 1;; ++width) {
        get_fake(store, fake_spec(width));
        if (width % 50 == 0) store.prune(10'000);
      }
      return 0;
    });
    ::usleep(static_cast<useconds_t>(2000 + random() % 20'000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(wait_child(child), 1000 + SIGKILL);
    expect_sound(directory, {fake_spec(1), fake_spec(2)});
  }
}

TEST(KernelStoreFault, a_reader_beside_writers_and_pruners_never_sees_half_an_entry) {
  const TemporaryFolder folder;
  std::vector<pid_t> children;
  for (uint32_t child = 0; child < 3; ++child) {
    children.push_back(start_child([&, child] {
      for (int round = 0; round < store_rounds(); ++round) {
        KernelStore store = make_store(folder.path());
        for (uint32_t width = 1; width <= 4; ++width) {
          const auto spec = fake_spec(width);
          if (get_fake(store, spec).code != fake_code(fake_key(spec))) return 1;
        }
        if (child == 0) store.prune(2000);
        if (store.stats().rejected != 0) return 2;
      }
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(wait_child(child), 0);
}

TEST(KernelStoreFault, sixteen_processes_starting_cold_compile_each_kernel_once) {
  for (int round = 0; round < (store_rounds() + 9) / 10; ++round) {
    const TemporaryFolder folder;
    const auto log = folder / "log";
    const int gate = ::open((folder / "gate").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(::flock(gate, LOCK_EX), 0);
    std::vector<pid_t> children;
    for (int child = 0; child < 16; ++child) {
      children.push_back(start_child([&] {
        // All start when the parent opens the gate.
        const int wait = ::open((folder / "gate").c_str(), O_RDWR | O_CLOEXEC);
        ::close(gate);
        if (::flock(wait, LOCK_SH) != 0) return 3;
        KernelStore store = make_store(folder / "store");
        for (uint32_t width = 1; width <= 5; ++width) {
          const auto spec = fake_spec(width);
          if (get_fake(store, spec, fake_compiler(log, 3)).code != fake_code(fake_key(spec))) {
            return 1;
          }
        }
        return store.stats().rejected == 0 ? 0 : 2;
      }));
    }
    ::flock(gate, LOCK_UN);
    ::close(gate);
    for (const pid_t child : children) EXPECT_EQ(wait_child(child), 0);
    std::map<std::string, int> times;
    for (const auto& line : lines_of(log)) ++times[line];
    EXPECT_EQ(times.size(), 5U);
    for (const auto& [digest, count] : times) EXPECT_EQ(count, 1) << digest;
  }
}

/// A compiler that makes the file `started`, so that others know who holds the lock, and then takes
/// its time.
KernelCompiler slow_compiler(const fs::path& started, const fs::path& log, int milliseconds) {
  return [=](const spec::AnySpec& spec, const Target& target) {
    std::ofstream{started};
    return fake_compiler(log, milliseconds)(spec, target);
  };
}

/// Waits for a file, a minute at most.
bool appears(const fs::path& path) {
  for (int i = 0; i < 60'000 && !fs::exists(path); ++i) ::usleep(1000);
  return fs::exists(path);
}

TEST(KernelStoreFault, a_waiter_waits_beyond_its_limit_while_the_holder_lives) {
  const TemporaryFolder folder;
  const auto log = folder / "log";
  const auto start = [&](int compile_ms) {
    return start_child([&, compile_ms] {
      KernelStore store({.directory = folder / "store",
                         .readonly_tiers = {},
                         .mode = StoreMode::automatic,
                         .lock_timeout = std::chrono::milliseconds(20)});
      get_fake(store, fake_spec(1), slow_compiler(folder / "started", log, compile_ms));
      return 0;
    });
  };
  const pid_t holder = start(400);
  ASSERT_TRUE(appears(folder / "started"));
  const pid_t waiter = start(400);
  EXPECT_EQ(wait_child(holder), 0);
  EXPECT_EQ(wait_child(waiter), 0);
  EXPECT_EQ(lines_of(log).size(), 1U);
}

TEST(KernelStoreFault, a_waiter_takes_over_at_once_when_the_holder_dies) {
  const TemporaryFolder folder;
  const auto log = folder / "log";
  const pid_t holder = start_child([&] {
    KernelStore store = make_store(folder / "store");
    get_fake(store, fake_spec(1), slow_compiler(folder / "started", {}, 60'000));
    return 0;
  });
  ASSERT_TRUE(appears(folder / "started"));
  const pid_t waiter = start_child([&] {
    KernelStore store = make_store(folder / "store");
    get_fake(store, fake_spec(1), fake_compiler(log));
    return 0;
  });
  ::usleep(50'000);
  EXPECT_TRUE(lines_of(log).empty());
  ::kill(holder, SIGKILL);
  wait_child(holder);
  EXPECT_EQ(wait_child(waiter), 0);
  EXPECT_EQ(lines_of(log).size(), 1U);
}

TEST(KernelStoreFault, a_stopped_holder_does_not_hold_others_up_for_ever) {
  const TemporaryFolder folder;
  const auto log = folder / "log";
  const pid_t holder = start_child([&] {
    KernelStore store = make_store(folder / "store");
    get_fake(store, fake_spec(1), slow_compiler(folder / "started", {}, 60'000));
    return 0;
  });
  ASSERT_TRUE(appears(folder / "started"));
  ::kill(holder, SIGSTOP);
  EXPECT_EQ(run_child([&] {
              KernelStore store({.directory = folder / "store",
                                 .readonly_tiers = {},
                                 .mode = StoreMode::automatic,
                                 .lock_timeout = std::chrono::milliseconds(50)});
              get_fake(store, fake_spec(1), fake_compiler(log));
              return 0;
            }),
            0);
  EXPECT_EQ(lines_of(log).size(), 1U);
  ::kill(holder, SIGKILL);
  wait_child(holder);
}

TEST(KernelStoreFault, locks_leave_no_files_behind) {
  const auto folder = store::lock_folder();
  ASSERT_TRUE(folder);
  const std::string name = "test-" + std::to_string(::getpid());
  {
    const auto lock = store::KeyLock::acquire(*folder, name, std::chrono::milliseconds(100));
    EXPECT_TRUE(lock);
    EXPECT_TRUE(fs::exists(*folder / (name + ".lock")));
  }
  EXPECT_FALSE(fs::exists(*folder / (name + ".lock")));
}

TEST(KernelStoreFault, a_lock_folder_that_others_may_write_to_is_not_used) {
  const TemporaryFolder folder;
  EXPECT_EQ(run_child([&] {
              ::setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1);
              if (*store::lock_folder() != folder.path() / "quern") return 1;
              if (::chmod((folder.path() / "quern").c_str(), 0777) != 0) return 2;
              const auto other = store::lock_folder();
              return other && *other == folder.path() / "quern" ? 3 : 0;
            }),
            0);
}

TEST(KernelStoreFault, a_file_size_limit_means_memory_only_and_one_warning) {
  const TemporaryFolder folder;
  EXPECT_EQ(run_child([&] {
              const rlimit limit{600, 600};
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 90;
              return check_memory_only({.directory = folder.path(), .readonly_tiers = {}});
            }),
            0);
  expect_sound(folder.path(), {fake_spec(1)});
}

TEST(KernelStoreFault, a_full_disk_means_memory_only_and_one_warning) {
  const TemporaryFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=16k") != 0) {
    GTEST_SKIP() << "mounting a small tmpfs is not allowed here (needs root outside a container)";
  }
  for (int round = 0; round < store_rounds(); ++round) {
    // All but a varying rest of the disk is taken.
    const int fd = ::open((folder / "filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const std::string block(512, 'x');
    while (::write(fd, block.data(), block.size()) > 0) {
    }
    ::close(fd);
    EXPECT_EQ(run_child([&] {
                return check_memory_only({.directory = folder / "store", .readonly_tiers = {}});
              }),
              0);
    fs::remove(folder / "filler");
  }
  expect_sound(folder / "store", {fake_spec(1)});
  EXPECT_EQ(::umount(folder.path().c_str()), 0);
}

/// Becomes an ordinary user; false where this process may not.
bool become(uid_t user) {
  return ::setgid(user) == 0 && ::setuid(user) == 0;
}

constexpr uid_t kNobody = 65534;
constexpr uid_t kOther = 54321;

TEST(KernelStoreFault, a_folder_without_write_permission_means_memory_only_and_one_warning) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "store/kernels");
  fs::permissions(folder.path(), fs::perms(0755));
  fs::permissions(folder / "store", fs::perms(0555));
  fs::permissions(folder / "store/kernels", fs::perms(0555));
  const bool root = ::geteuid() == 0;
  EXPECT_EQ(run_child([&] {
              if (root && !become(kNobody)) return 90;
              return check_memory_only({.directory = folder / "store", .readonly_tiers = {}});
            }),
            0);
  fs::permissions(folder / "store", fs::perms(0755));
  fs::permissions(folder / "store/kernels", fs::perms(0755));
}

TEST(KernelStoreFault, entries_in_a_readonly_folder_are_read) {
  const TemporaryFolder folder;
  fs::permissions(folder.path(), fs::perms(0755));
  {
    KernelStore store = make_store(folder / "store");
    get_fake(store, fake_spec(1));
  }
  fs::permissions(folder / "store/kernels", fs::perms(0555));
  const bool root = ::geteuid() == 0;
  EXPECT_EQ(run_child([&] {
              if (root && !become(kNobody)) return 90;
              const WarningCounter warnings;
              KernelStore store = make_store(folder / "store");
              get_fake(store, fake_spec(1));
              return store.stats().compiled == 0 && warnings.count() == 0 ? 0 : 1;
            }),
            0);
  fs::permissions(folder / "store/kernels", fs::perms(0755));
}

TEST(KernelStoreFault, no_home_means_memory_only_and_one_warning) {
  EXPECT_EQ(run_child([] {
              for (const char* name : {"QUERN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) {
                ::unsetenv(name);
              }
              if (default_store_path()) return 91;
              return check_memory_only({.directory = default_store_path(), .readonly_tiers = {}});
            }),
            0);
}

TEST(KernelStoreFault, the_store_is_where_the_environment_says) {
  EXPECT_EQ(run_child([] {
              ::unsetenv("QUERN_CACHE_DIR");
              ::setenv("XDG_CACHE_HOME", "/x/cache", 1);
              ::setenv("HOME", "/h", 1);
              if (default_store_path() != fs::path("/x/cache/quern")) return 1;
              ::setenv("XDG_CACHE_HOME", "relative", 1);
              if (default_store_path() != fs::path("/h/.cache/quern")) return 2;
              ::setenv("QUERN_CACHE_DIR", "/q", 1);
              return default_store_path() == fs::path("/q") ? 0 : 3;
            }),
            0);
}

TEST(KernelStoreFault, two_users_share_a_folder_without_trusting_each_other) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become two users";
  const TemporaryFolder folder;
  fs::permissions(folder.path(), fs::perms(0755));
  fs::create_directories(folder / "store/kernels");
  fs::permissions(folder / "store", fs::perms(0777));
  fs::permissions(folder / "store/kernels", fs::perms(01777));
  const auto use = [&](uid_t user, uint64_t expect_compiled) {
    return run_child([&] {
      if (!become(user)) return 90;
      KernelStore store = make_store(folder / "store");
      const auto spec = fake_spec(1);
      if (get_fake(store, spec).code != fake_code(fake_key(spec))) return 1;
      return store.stats().compiled == expect_compiled && store.stats().rejected == 0 ? 0 : 2;
    });
  };
  EXPECT_EQ(use(kNobody, 1), 0);
  EXPECT_EQ(use(kNobody, 0), 0);
  // The other user's entry is machine code from a stranger: compiled again, in memory.
  EXPECT_EQ(use(kOther, 1), 0);
  EXPECT_EQ(use(kNobody, 0), 0);
}

TEST(KernelStoreFault, two_users_lock_in_folders_of_their_own) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become two users";
  std::set<std::string> folders;
  for (const uid_t user : {kNobody, kOther}) {
    EXPECT_EQ(run_child([user] {
                ::unsetenv("XDG_RUNTIME_DIR");
                if (!become(user)) return 90;
                const auto folder = store::lock_folder();
                return folder == fs::path("/tmp/quern-" + std::to_string(user)) ? 0 : 1;
              }),
              0);
    std::error_code ignored;
    fs::remove_all("/tmp/quern-" + std::to_string(user), ignored);
  }
}

}  // namespace
}  // namespace quern::test
