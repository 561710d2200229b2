#include "tools/bundle.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "models/error.h"
#include "models/sha256.h"
#include "tools/common.h"
#include "tools/output.h"
#include "tools/plan_kernels.h"

namespace quern::tools {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> trusted_list() {
  const std::optional<fs::path> store = default_store_path();
  if (!store) return std::nullopt;
  return *store / "trusted-bundles";
}

bool is_bundle(const fs::path& path) {
  return fs::is_directory(path) && fs::is_regular_file(path / "plan.json") &&
         fs::is_directory(path / "kernels");
}

void feed_field(Sha256& hash, std::string_view text) {
  const std::string length = fmt::format("{}:", text.size());
  hash.update(std::as_bytes(std::span(length)));
  hash.update(std::as_bytes(std::span(text)));
}

}  // namespace

BundleWriter::BundleWriter(fs::path path) : path_(std::move(path)) {
  if (!path_.has_filename()) path_ = path_.parent_path();  // "dir/" means "dir"
  if (fs::exists(path_) && !is_bundle(path_) && !(fs::is_directory(path_) && fs::is_empty(path_))) {
    throw Error(ErrorKind::failed, path_.string(), "exists and is no bundle",
                "give another name; nothing was changed");
  }
  std::string name = path_.string() + ".tmp-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) {
    throw Error(ErrorKind::failed, path_.string(),
                fmt::format("cannot be written ({})", std::strerror(errno)),
                "choose a folder that exists and that you may write to");
  }
  temporary_ = name;
  fs::permissions(temporary_, fs::perms::owner_all | fs::perms::group_read | fs::perms::group_exec |
                                  fs::perms::others_read | fs::perms::others_exec);
}

BundleWriter::~BundleWriter() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

std::string BundleWriter::publish(Plan plan, const KernelStore& store) {
  const std::set<std::string> unique = [&] {
    std::set<std::string> digests;
    for (const uint32_t i : distinct_kernels(plan)) digests.insert(plan.kernels[i].key_digest);
    return digests;
  }();
  store.export_entries({unique.begin(), unique.end()}, temporary_ / "kernels");

  KernelStore::Options options;
  options.readonly_tiers = {temporary_ / "kernels"};
  options.mode = StoreMode::readonly;
  std::map<std::string, std::string> entry_digests;
  for (const StoreEntry& entry : KernelStore(options).list()) {
    entry_digests[entry.key_digest] = entry.entry_digest;
  }
  for (PlanKernel& kernel : plan.kernels) {
    if (is_library(kernel.spec)) continue;
    const auto entry = entry_digests.find(kernel.key_digest);
    if (entry == entry_digests.end()) {
      throw Error(ErrorKind::failed, path_.string(),
                  fmt::format("kernel {} is not in the store", kernel.key_digest.substr(0, 12)),
                  "run quern cache verify, then compile again");
    }
    kernel.entry_digest = entry->second;
  }
  {
    AtomicFile file(temporary_ / "plan.json");
    const std::string text = plan_to_json(plan);
    file.write(text.data(), text.size());
    file.commit();
  }
  std::string digest = bundle_digest(temporary_);

  // A folder cannot replace one that has files: the old bundle steps aside for a moment.
  fs::path old;
  if (fs::exists(path_)) {
    old = temporary_.string() + "-old";
    fs::rename(path_, old);
  }
  fs::rename(temporary_, path_);
  temporary_.clear();
  if (!old.empty()) fs::remove_all(old);
  return digest;
}

std::string bundle_digest(const fs::path& bundle) {
  if (!is_bundle(bundle)) {
    throw Error(ErrorKind::failed, bundle.string(), "is no bundle (plan.json and kernels/)",
                "give a folder that quern compile -o wrote");
  }
  std::vector<std::string> names = {"plan.json"};
  for (const fs::directory_entry& file : fs::directory_iterator(bundle / "kernels")) {
    if (!file.is_regular_file() || file.is_symlink()) {
      throw Error(ErrorKind::failed, file.path().string(), "does not belong into a bundle",
                  "give a folder that quern compile -o wrote");
    }
    names.push_back("kernels/" + file.path().filename().string());
  }
  std::sort(names.begin() + 1, names.end());
  Sha256 hash;
  feed_field(hash, "quern bundle 1");
  for (const std::string& name : names) {
    feed_field(hash, name);
    feed_field(hash, read_file((bundle / name).string()));
  }
  return hash.hex();
}

bool remember_digest(std::string_view digest) {
  const std::optional<fs::path> list = trusted_list();
  if (!list) return false;
  std::error_code error;
  fs::create_directories(list->parent_path(), error);
  // One short line in one write: with O_APPEND, lines of several processes do not mix.
  const int descriptor = open(list->c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (descriptor < 0) return false;
  const std::string line = fmt::format("{}\n", digest);
  const bool written =
      write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  return close(descriptor) == 0 && written;
}

void check_trust(const fs::path& bundle, std::string_view trust) {
  const std::string digest = bundle_digest(bundle);
  if (!trust.empty()) {
    if (trust == digest) return;
    throw Error(ErrorKind::usage, "--trust",
                fmt::format("the digest of {} is {}", bundle.string(), digest),
                "ask its maker for the digest that compile printed; do not run it if they differ");
  }
  const std::optional<fs::path> list = trusted_list();
  if (list && fs::exists(*list)) {
    const std::string known = read_file(list->string());
    if (("\n" + known).find("\n" + digest + "\n") != std::string::npos) return;
  }
  throw Error(ErrorKind::failed, bundle.string(),
              "was not compiled on this machine, and a bundle holds machine code",
              fmt::format("if its maker gave you the digest {}, add --trust with it", digest));
}

}  // namespace quern::tools
