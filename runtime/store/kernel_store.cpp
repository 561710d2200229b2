#include "runtime/store/kernel_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "models/error.h"
#include "models/sha256.h"
#include "runtime/clock.h"
#include "runtime/store/key_lock.h"
#include "runtime/store/store_impl.h"

namespace quern {
namespace {

/// The first field in which an entry's key differs from the key asked for.
std::string key_difference(const KernelKey& has, const KernelKey& wanted) {
  for (size_t i = 0; i < std::max(has.fields.size(), wanted.fields.size()); ++i) {
    if (i >= has.fields.size()) return fmt::format("it lacks \"{}\"", wanted.fields[i].first);
    if (i >= wanted.fields.size()) return fmt::format("it has \"{}\" too", has.fields[i].first);
    if (has.fields[i] != wanted.fields[i]) {
      return fmt::format("its \"{}\" is \"{:.60}\"", has.fields[i].first, has.fields[i].second);
    }
  }
  return {};
}

/// Lock files of different stores must not meet: the name covers the folder as well.
std::string lock_name(const std::filesystem::path& folder, const std::string& digest) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::weakly_canonical(folder, error);
  if (error) absolute = folder;
  const std::string text = absolute.string() + "\n" + digest;
  return sha256_hex(std::as_bytes(std::span(text))).substr(0, 32);
}

const char* non_empty_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != 0 ? value : nullptr;
}

}  // namespace

StoreMode store_mode_from_name(std::string_view name) {
  if (name == "auto") return StoreMode::automatic;
  if (name == "readonly") return StoreMode::readonly;
  if (name == "strict") return StoreMode::strict;
  if (name == "off") return StoreMode::off;
  throw Error(ErrorKind::usage, "--store", fmt::format("\"{}\" is no mode of the store", name),
              "use auto, readonly, strict or off");
}

std::optional<std::filesystem::path> default_store_path() {
  if (const char* path = non_empty_variable("QUERN_CACHE_DIR")) return path;
  // The XDG specification: a relative path is to be ignored.
  if (const char* path = non_empty_variable("XDG_CACHE_HOME"); path != nullptr && *path == '/') {
    return std::filesystem::path(path) / "quern";
  }
  if (const char* path = non_empty_variable("HOME")) {
    return std::filesystem::path(path) / ".cache" / "quern";
  }
  return std::nullopt;
}

// ---- one file ----

std::optional<std::filesystem::path> KernelStore::Impl::entries_folder() const {
  if (!options.directory) return std::nullopt;
  return *options.directory / "kernels";
}

std::vector<std::filesystem::path> KernelStore::Impl::folders() const {
  std::vector<std::filesystem::path> all = options.readonly_tiers;
  if (const auto folder = entries_folder()) all.push_back(*folder);
  return all;
}

KernelStore::Impl::Entry KernelStore::Impl::read(const std::filesystem::path& path,
                                                 std::string* problem) {
  store::FileRead file = store::read_entry_file(path);
  if (file.state != store::FileRead::State::read) {
    if (file.state == store::FileRead::State::unreadable) {
      spdlog::debug("kernel store: {} is passed over: {}", path.string(), file.reason);
    }
    return nullptr;
  }
  try {
    auto entry =
        std::make_shared<store::DecodedEntry>(store::decode(file.bytes, path.filename().string()));
    if (entry->kernel.key.digest() == path.stem().string()) return entry;
    *problem = "it holds another kernel than its name says";
  } catch (const Error& error) {
    *problem = error.reason();
  }
  return nullptr;
}

KernelStore::Impl::Entry KernelStore::Impl::look_on_disk(const std::string& digest,
                                                         const KernelKey* key, bool set_aside) {
  if (!uses_disk()) return nullptr;
  const auto own = entries_folder();
  for (const std::filesystem::path& folder : folders()) {
    const std::filesystem::path path = folder / (digest + std::string(store::entry_suffix));
    std::string problem;
    Entry entry = read(path, &problem);
    if (entry && key != nullptr && entry->kernel.key.fields != key->fields) {
      problem = fmt::format("it is for another key: {}", key_difference(entry->kernel.key, *key));
      entry = nullptr;
    }
    const bool is_own = own && folder == *own;
    if (entry) {
      if (is_own && options.mode != StoreMode::readonly) mark_used(path);
      return entry;
    }
    if (!problem.empty()) reject(path, problem, set_aside && is_own);
  }
  return nullptr;
}

void KernelStore::Impl::reject(const std::filesystem::path& path, const std::string& problem,
                               bool set_aside) {
  bool first = false;
  {
    const std::lock_guard lock(mutex);
    first = rejected_paths.insert(path.string()).second;
    if (first) ++stats.rejected;
  }
  if (first) {
    spdlog::warn("kernel store: {} is bad and not used: {}", path.string(), problem);
  }
  if (!set_aside || options.mode != StoreMode::automatic) return;
  std::filesystem::path aside = path;
  aside += store::bad_suffix;
  std::error_code ignored;  // Rebuilding renames over the entry anyway.
  std::filesystem::rename(path, aside, ignored);
}

void KernelStore::Impl::mark_used(const std::filesystem::path& path) {
  // The stamp never falls behind the newest one in the folder, so that the order of use survives a
  // clock that jumps back.
  const std::lock_guard lock(mutex);
  if (newest_use == 0) {
    std::error_code error;
    for (std::filesystem::directory_iterator it(path.parent_path(), error), end;
         !error && it != end; it.increment(error)) {
      if (it->path().extension() != store::entry_suffix) continue;
      newest_use = std::max(newest_use, store::modification_time(it->path()).value_or(0));
    }
  }
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  newest_use = std::max(now, newest_use + 1000);
  store::set_modification_time(path, newest_use);
}

// ---- memory ----

KernelStore::Impl::Entry KernelStore::Impl::look_in_memory(const std::string& digest) const {
  const std::lock_guard lock(mutex);
  const auto found = memory.find(digest);
  return found == memory.end() ? nullptr : found->second;
}

void KernelStore::Impl::remember(const std::string& digest, const Entry& entry) {
  const std::lock_guard lock(mutex);
  memory.insert_or_assign(digest, entry);
}

KernelStore::Impl::Entry KernelStore::Impl::look(const std::string& digest, const KernelKey* key) {
  Entry entry = look_in_memory(digest);
  if (!entry) {
    const auto start = Clock::now();
    entry = look_on_disk(digest, key, /*set_aside=*/false);
    if (!entry) return nullptr;
    remember(digest, entry);
    const std::lock_guard lock(mutex);
    stats.load_ms += milliseconds_since(start);
  }
  const std::lock_guard lock(mutex);
  ++stats.hits;
  return entry;
}

// ---- misses ----

void KernelStore::Impl::memory_only(const std::string& reason) {
  {
    const std::lock_guard lock(mutex);
    if (disk_failed) return;
    disk_failed = true;
  }
  spdlog::warn("kernel store: {}; kernels stay in memory and are compiled again next time", reason);
}

void KernelStore::Impl::publish(const std::string& digest, const store::DecodedEntry& entry) {
  if (options.mode != StoreMode::automatic) return;
  const auto folder = entries_folder();
  if (!folder) {
    memory_only("there is no place for it (QUERN_CACHE_DIR, XDG_CACHE_HOME and HOME are not set)");
    return;
  }
  {
    const std::lock_guard lock(mutex);
    if (disk_failed) return;
  }
  const std::filesystem::path path = *folder / (digest + std::string(store::entry_suffix));
  const auto image = store::encode(entry.kernel, entry.family, entry.spec);
  const std::string problem = store::publish(path, image);
  if (problem.empty()) {
    mark_used(path);
  } else {
    memory_only(fmt::format("{} cannot be written ({})", folder->string(), problem));
  }
}

KernelStore::Impl::Entry KernelStore::Impl::compile(const std::string& digest, const KernelKey& key,
                                                    const spec::AnySpec& spec, const Target& target,
                                                    const KernelCompiler& compiler) {
  const auto start = Clock::now();
  auto entry = std::make_shared<store::DecodedEntry>();
  entry->kernel = compiler(spec, target);
  entry->family = spec_family(spec);
  entry->spec = spec_to_text(spec);
  if (entry->kernel.key.fields != key.fields) {
    throw Error(ErrorKind::failed, fmt::format("kernel {}", entry->family),
                fmt::format("the compiler made it for another key: {}",
                            key_difference(entry->kernel.key, key)),
                "make the plan again with `quern compile`");
  }
  {
    const std::lock_guard lock(mutex);
    ++stats.compiled;
    stats.compile_ms += milliseconds_since(start);
  }
  publish(digest, *entry);
  return entry;
}

// ---- the public face ----

KernelStore::KernelStore(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
KernelStore::~KernelStore() = default;

CompiledKernel KernelStore::get(const KernelKey& key, const spec::AnySpec& spec,
                                const Target& target, const KernelCompiler& compiler) {
  Impl& impl = *impl_;
  const std::string digest = key.digest();
  {
    // Other threads that want the key wait for the one that has it in hand.
    std::unique_lock lock(impl.mutex);
    impl.finished.wait(lock, [&] { return !impl.in_flight.contains(digest); });
    impl.in_flight.insert(digest);
  }
  struct Landing {
    Impl& impl;
    const std::string& digest;
    ~Landing() {
      const std::lock_guard lock(impl.mutex);
      impl.in_flight.erase(digest);
      impl.finished.notify_all();
    }
  } const landing{impl, digest};

  if (const Impl::Entry entry = impl.look(digest, &key)) return entry->kernel;
  {
    const std::lock_guard lock(impl.mutex);
    ++impl.stats.misses;
  }
  if (impl.options.mode == StoreMode::strict) {
    throw Error(ErrorKind::failed,
                fmt::format("kernel {} ({})", spec_to_text(spec), digest.substr(0, 12)),
                "it is not in the store, and --store strict compiles nothing",
                "run `quern compile` first or use --store auto");
  }

  const auto folder = impl.entries_folder();
  const bool shared = folder && impl.options.mode == StoreMode::automatic;
  const auto locks = shared ? store::lock_folder() : std::nullopt;
  const store::KeyLock lock =
      locks ? store::KeyLock::acquire(*locks, lock_name(*folder, digest), impl.options.lock_timeout)
            : store::KeyLock();
  // Another process may have compiled it while this one waited.
  Impl::Entry entry = shared ? impl.look_on_disk(digest, &key, /*set_aside=*/true) : nullptr;
  if (entry) {
    const std::lock_guard guard(impl.mutex);
    --impl.stats.misses;
    ++impl.stats.hits;
  } else {
    entry = impl.compile(digest, key, spec, target, compiler);
  }
  impl.remember(digest, entry);
  return entry->kernel;
}

std::optional<CompiledKernel> KernelStore::find(const KernelKey& key) {
  const Impl::Entry entry = impl_->look(key.digest(), &key);
  if (!entry) return std::nullopt;
  return entry->kernel;
}

std::optional<CompiledKernel> KernelStore::find_digest(std::string_view key_digest) {
  // It becomes a file name and may come from a file that somebody wrote.
  const bool is_digest = key_digest.size() == 64 &&
                         key_digest.find_first_not_of("0123456789abcdef") == key_digest.npos;
  if (!is_digest) return std::nullopt;
  const Impl::Entry entry = impl_->look(std::string(key_digest), nullptr);
  if (!entry) return std::nullopt;
  return entry->kernel;
}

StoreStats KernelStore::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

const KernelStore::Options& KernelStore::options() const {
  return impl_->options;
}

}  // namespace quern
