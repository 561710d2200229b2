// The part of the store that looks at entries and tidies them away.

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "models/error.h"
#include "runtime/store/store_impl.h"

namespace quern {
namespace {

namespace fs = std::filesystem;

/// Files of a folder whose names satisfy `wanted`, sorted; none where there is no such folder.
template <class Wanted>
std::vector<fs::path> files_in(const fs::path& folder, Wanted&& wanted) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (wanted(it->path().filename().string())) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> entry_files(const fs::path& folder) {
  return files_in(folder, [](const std::string& name) {
    return name.ends_with(store::entry_suffix) && !name.starts_with(store::temporary_prefix);
  });
}

StoreEntry describe(const store::DecodedEntry& decoded, const fs::path& path) {
  StoreEntry entry;
  entry.key_digest = decoded.kernel.key.digest();
  entry.entry_digest = entry_digest(decoded.kernel);
  entry.family = decoded.family;
  entry.spec = decoded.spec;
  entry.key = decoded.kernel.key;
  entry.record = decoded.kernel.record;
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  entry.file_bytes = error ? 0 : bytes;
  entry.last_used = std::chrono::system_clock::time_point(
      std::chrono::nanoseconds(store::modification_time(path).value_or(0)));
  entry.path = path;
  return entry;
}

}  // namespace

std::vector<StoreEntry> KernelStore::list() const {
  std::vector<StoreEntry> entries;
  std::set<std::string> seen;  // The first folder wins, as in look-ups.
  for (const fs::path& folder : impl_->folders()) {
    for (const fs::path& path : entry_files(folder)) {
      std::string problem;
      const auto decoded = Impl::read(path, &problem);
      if (decoded && seen.insert(path.stem().string()).second) {
        entries.push_back(describe(*decoded, path));
      }
    }
  }
  std::sort(entries.begin(), entries.end(), [](const StoreEntry& a, const StoreEntry& b) {
    return std::tie(a.family, a.spec, a.key_digest) < std::tie(b.family, b.spec, b.key_digest);
  });
  return entries;
}

std::optional<StoreEntry> KernelStore::entry(std::string_view digest_prefix) const {
  std::optional<StoreEntry> found;
  for (StoreEntry& candidate : list()) {
    if (!candidate.key_digest.starts_with(digest_prefix) &&
        !candidate.entry_digest.starts_with(digest_prefix)) {
      continue;
    }
    if (found) {
      throw Error(ErrorKind::usage, fmt::format("digest {}", digest_prefix),
                  "more than one entry begins with it", "give more of its digits");
    }
    found = std::move(candidate);
  }
  return found;
}

std::vector<KernelStore::Verification> KernelStore::verify() const {
  std::vector<Verification> results;
  for (const fs::path& folder : impl_->folders()) {
    for (const fs::path& path : entry_files(folder)) {
      std::string problem;
      const bool good = Impl::read(path, &problem) != nullptr;
      if (!good && problem.empty()) problem = "it cannot be read by this user";
      results.push_back({path, good, good ? std::string() : problem});
    }
  }
  return results;
}

std::vector<StoreEntry> KernelStore::prune(uint64_t max_bytes) {
  const auto folder = impl_->entries_folder();
  if (!folder) return {};
  std::error_code error;
  for (const fs::path& path : files_in(*folder, [](const std::string& name) {
         return name.ends_with(store::bad_suffix) || name.starts_with(store::temporary_prefix);
       })) {
    const bool temporary = path.filename().string().starts_with(store::temporary_prefix);
    if (!temporary || store::is_abandoned(path)) fs::remove(path, error);
  }

  std::vector<StoreEntry> entries;
  uint64_t total = 0;
  for (const fs::path& path : entry_files(*folder)) {
    std::string problem;
    if (const auto decoded = Impl::read(path, &problem)) {
      entries.push_back(describe(*decoded, path));
      total += entries.back().file_bytes;
    } else if (!problem.empty()) {
      fs::remove(path, error);
    }
  }
  std::sort(entries.begin(), entries.end(), [](const StoreEntry& a, const StoreEntry& b) {
    return std::tie(a.last_used, a.key_digest) < std::tie(b.last_used, b.key_digest);
  });
  std::vector<StoreEntry> removed;
  for (StoreEntry& entry : entries) {
    if (total <= max_bytes) break;
    total -= entry.file_bytes;
    fs::remove(entry.path, error);
    if (!error) removed.push_back(std::move(entry));
  }
  return removed;
}

void KernelStore::export_entries(const std::vector<std::string>& key_digests,
                                 const fs::path& folder) const {
  for (const std::string& digest : key_digests) {
    Impl::Entry entry = impl_->look_in_memory(digest);
    if (!entry) entry = impl_->look_on_disk(digest, nullptr, /*set_aside=*/false);
    if (!entry) {
      throw Error(ErrorKind::failed, fmt::format("kernel {}", digest.substr(0, 12)),
                  "it is not in the store", "compile the plan first");
    }
    const fs::path path = folder / (digest + std::string(store::entry_suffix));
    const auto image = store::encode(entry->kernel, entry->family, entry->spec);
    if (const std::string problem = store::publish(path, image); !problem.empty()) {
      throw Error(ErrorKind::failed, path.string(), problem, "check the folder and its free space");
    }
  }
}

}  // namespace quern
