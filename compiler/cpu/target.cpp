#include <llvm/ADT/StringMap.h>
#include <llvm/ADT/StringRef.h>
#include <llvm/TargetParser/Host.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compiler/cpu/cpu_compiler.h"
#include "models/error.h"

namespace quern::cpu {
namespace {

/// Features of the x86-64 psABI's levels beyond the base, sorted.
constexpr std::string_view kLevel3 =
    "+avx,+avx2,+bmi,+bmi2,+cx16,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,"
    "+ssse3,+xsave";
constexpr std::string_view kLevel4 =
    "+avx,+avx2,+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl,+bmi,+bmi2,+cx16,+f16c,+fma,"
    "+lzcnt,+movbe,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave";

/// What every kernel needs: without a fused multiply-add the bits would differ.
constexpr std::string_view kRequired[] = {"avx2", "f16c", "fma"};

std::vector<std::string> host_features() {
  std::vector<std::string> present;
  for (const auto& feature : llvm::sys::getHostCPUFeatures()) {
    if (feature.second) present.push_back(feature.first().str());
  }
  std::sort(present.begin(), present.end());
  return present;
}

std::vector<std::string> split_features(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    if (item.size() > 1 && item.front() == '+') names.emplace_back(item.substr(1));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return names;
}

Target native_target() {
  const std::vector<std::string> features = host_features();
  Target target{.kind = "cpu", .name = llvm::sys::getHostCPUName().str(), .features = {}};
  for (const std::string& feature : features) {
    if (!target.features.empty()) target.features += ',';
    target.features += '+';
    target.features += feature;
  }
  for (const std::string_view required : kRequired) {
    if (!std::binary_search(features.begin(), features.end(), required)) {
      throw Error(ErrorKind::failed, fmt::format("CPU {}", target.name),
                  fmt::format("it has no {}, which Quern's kernels need", required),
                  "use a machine of the level x86-64-v3 (2013 or later)");
    }
  }
  return target;
}

}  // namespace

Target resolve_target(std::string_view name) {
  if (name == "native" || name == "cpu") return native_target();
  if (name == "x86-64-v3")
    return {.kind = "cpu", .name = "x86-64-v3", .features = std::string(kLevel3)};
  if (name == "x86-64-v4")
    return {.kind = "cpu", .name = "x86-64-v4", .features = std::string(kLevel4)};
  throw Error(ErrorKind::usage, fmt::format("target '{}'", name),
              "it is no CPU target that Quern knows", "use native, cpu, x86-64-v3 or x86-64-v4");
}

bool can_run(const Target& target, std::string* missing) {
  if (missing != nullptr) missing->clear();
  if (target.kind != "cpu") {
    if (missing != nullptr) *missing = target.kind;
    return false;
  }
  const std::vector<std::string> present = host_features();
  std::vector<std::string> lacking;
  for (const std::string& feature : split_features(target.features)) {
    if (!std::binary_search(present.begin(), present.end(), feature)) lacking.push_back(feature);
  }
  if (missing != nullptr) *missing = fmt::format("{}", fmt::join(lacking, ", "));
  return lacking.empty();
}

}  // namespace quern::cpu
