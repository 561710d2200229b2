#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/kernel.h"

namespace quern {

/// How a run may use the store (DESIGN section 6): auto compiles and keeps; readonly compiles and
/// keeps nothing on disk; strict never compiles (a miss is an error); off neither reads nor writes.
enum class StoreMode { automatic, readonly, strict, off };

StoreMode store_mode_from_name(std::string_view name);

/// Where the store lives: QUERN_CACHE_DIR, else XDG_CACHE_HOME/quern, else HOME/.cache/quern, else
/// nothing (memory only, with one warning).
std::optional<std::filesystem::path> default_store_path();

/// One entry as the inspector sees it.
struct StoreEntry {
  std::string key_digest;
  std::string entry_digest;  ///< As entry_digest() gives it.
  std::string family;
  std::string spec;  ///< Canonical text.
  KernelKey key;
  std::vector<std::pair<std::string, std::string>> record;
  uint64_t file_bytes = 0;
  std::chrono::system_clock::time_point last_used;
  std::filesystem::path path;
};

struct StoreStats {
  uint64_t hits = 0, misses = 0, compiled = 0, rejected = 0 /* bad entries set aside */;
  double compile_ms = 0, load_ms = 0;
};

/// Compiles one kernel; given to the store by the caller, so that the store knows no compiler.
using KernelCompiler = std::function<CompiledKernel(const spec::AnySpec&, const Target&)>;

/// The content-addressed store of compiled kernels, CPU objects and cubins alike: one file an
/// entry, verified on every read, published by rename, bad entries set aside and rebuilt, each
/// kernel compiled once however many processes start together (a lock a key, held while its holder
/// lives). Thread-safe. When the disk fails, kernels stay in memory and one warning is logged.
class KernelStore {
 public:
  struct Options {
    std::optional<std::filesystem::path> directory;  ///< None: memory only.
    std::vector<std::filesystem::path>
        readonly_tiers;  ///< Bundles' kernels/ folders, looked up first.
    StoreMode mode = StoreMode::automatic;
    std::chrono::milliseconds lock_timeout{120'000};
  };
  explicit KernelStore(Options options);
  ~KernelStore();

  /// The kernel with this key, from memory, a tier or the directory; compiled by `compile` where it
  /// is in none. In strict mode a miss throws Error (`failed`) naming the kernel.
  CompiledKernel get(const KernelKey& key, const spec::AnySpec& spec, const Target& target,
                     const KernelCompiler& compile);
  /// Look-up alone; nothing is compiled or set aside. A plan lists entry digests: its reader
  /// compares them with entry_digest() of what it gets.
  std::optional<CompiledKernel> find(const KernelKey& key);
  std::optional<CompiledKernel> find_digest(std::string_view key_digest);

  StoreStats stats() const;
  const Options& options() const;

  // ---- inspection ----
  std::vector<StoreEntry> list() const;  ///< Sorted by family, then spec.
  std::optional<StoreEntry> entry(
      std::string_view digest_prefix) const;  ///< Unique prefix; Error if ambiguous.
  struct Verification {
    std::filesystem::path path;
    bool good;
    std::string problem;
  };
  std::vector<Verification> verify() const;
  /// Removes least recently used entries until at most `max_bytes` remain; returns what went. Also
  /// removes set-aside and abandoned temporary files.
  std::vector<StoreEntry> prune(uint64_t max_bytes);
  /// Copies entries into a folder in the store's own format (bundles).
  void export_entries(const std::vector<std::string>& key_digests,
                      const std::filesystem::path& folder) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// SHA-256 (hex) of what a kernel executes: key, symbol, scratch size and code. Two compilations of
/// one key give the same digest; facts such as the time it took are covered by the file's own
/// digest alone.
std::string entry_digest(const CompiledKernel& kernel);

/// Entry file image and back (exposed for tests): magic, schema, record text, payload length and
/// SHA-256.
std::vector<std::byte> encode_entry(const CompiledKernel& kernel, const spec::AnySpec& spec);
/// Throws Error (`failed`) saying what is wrong with the image.
CompiledKernel decode_entry(std::span<const std::byte> image, std::string_view name);

}  // namespace quern
