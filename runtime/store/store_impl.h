#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "runtime/store/entry.h"
#include "runtime/store/entry_file.h"
#include "runtime/store/kernel_store.h"

namespace quern {

/// What KernelStore is made of. Entries live in `directory`/kernels; a tier is such a folder
/// itself.
struct KernelStore::Impl {
  explicit Impl(Options given) : options(std::move(given)) {}

  using Entry = std::shared_ptr<const store::DecodedEntry>;

  Options options;

  mutable std::mutex mutex;
  std::condition_variable finished;               ///< A key left `in_flight`.
  std::unordered_map<std::string, Entry> memory;  ///< By key digest.
  std::unordered_set<std::string> in_flight;  ///< Keys that a thread is looking up or compiling.
  std::unordered_set<std::string> rejected_paths;  ///< Each bad file counts and warns once.
  StoreStats stats;
  bool disk_failed = false;  ///< A publication failed: kernels stay in memory from then on.
  int64_t newest_use = 0;    ///< Largest stamp seen, in ns; 0: the folder was not looked at yet.

  bool uses_disk() const { return options.mode != StoreMode::off; }
  std::optional<std::filesystem::path> entries_folder() const;
  /// Folders in the order of look-up: tiers, then the directory's.
  std::vector<std::filesystem::path> folders() const;

  /// Reads and checks one file. Null where it is missing, unreadable or bad (`problem` then says
  /// how).
  static Entry read(const std::filesystem::path& path, std::string* problem);
  /// The entry from a tier or the directory, or null. `key` (may be null) must be the entry's own.
  /// With `set_aside` a bad file in the directory is renamed.
  Entry look_on_disk(const std::string& digest, const KernelKey* key, bool set_aside);
  void reject(const std::filesystem::path& path, const std::string& problem, bool set_aside);
  Entry look_in_memory(const std::string& digest) const;
  Entry look(const std::string& digest, const KernelKey* key);
  void remember(const std::string& digest, const Entry& entry);
  void publish(const std::string& digest, const store::DecodedEntry& entry);
  void memory_only(const std::string& reason);
  void mark_used(const std::filesystem::path& path);
  Entry compile(const std::string& digest, const KernelKey& key, const spec::AnySpec& spec,
                const Target& target, const KernelCompiler& compiler);
};

}  // namespace quern
