#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan.h"
#include "runtime/store/kernel_store.h"

namespace quern::tools {

/// A plan bundle (`model.qplan/`): plan.json and kernels/, in the store's own entry format. It
/// holds machine code, so it runs only where its digest is known (DESIGN section 6).

/// A folder that becomes a bundle when it is complete. Creating the object is also the check that
/// the bundle can be written: its files go to a temporary folder beside it.
class BundleWriter {
 public:
  /// Throws Error (`failed`) where the folder cannot be made, or where something other than a
  /// bundle stands at `path`.
  explicit BundleWriter(std::filesystem::path path);
  ~BundleWriter();
  BundleWriter(const BundleWriter&) = delete;
  BundleWriter& operator=(const BundleWriter&) = delete;

  /// Copies the plan's kernels from the store, fills in their entry digests, writes the plan,
  /// publishes the folder and returns the bundle's digest.
  std::string publish(Plan plan, const KernelStore& store);

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
};

/// SHA-256 over the names and contents of plan.json and of every file in kernels/, in name order.
/// Throws Error (`failed`) where the folder is no bundle or holds anything else.
std::string bundle_digest(const std::filesystem::path& bundle);

/// Remembers a digest that a compile of this machine printed. False where there is nowhere to keep
/// it (no store folder, or one that cannot be written).
bool remember_digest(std::string_view digest);

/// Throws Error (`failed`) unless the bundle's digest was printed by a compile on this machine or
/// is `trust`; Error (`usage`) where `trust` is given and is not the bundle's digest.
void check_trust(const std::filesystem::path& bundle, std::string_view trust);

}  // namespace quern::tools
