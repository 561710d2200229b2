#include <fmt/format.h>

#include <map>
#include <type_traits>

#include "compiler/compile_kernel.h"
#include "compiler/cpu/cpu_compiler.h"
#include "compiler/passes/passes.h"
#include "compiler/spec_names.h"
#include "models/error.h"

namespace quern::passes {

namespace {

/// Chooses once for every (k, epilogue) and says so once.
class TileChooser {
 public:
  TileChooser(const Target& target, std::vector<Decision>& decisions)
      : target_(target), decisions_(decisions) {}

  template <class Spec>
  void set(Spec& spec) {
    const auto [entry, added] = tiles_.try_emplace({spec.k, spec.epilogue});
    if (added) {
      entry->second = cpu::choose_gemm_tile(target_, spec.k, spec.epilogue);
      const cpu::GemmTile& tile = entry->second;
      decisions_.push_back(
          {fmt::format("gemm tile, k = {}, {}", spec.k, spec_name(spec.epilogue)),
           fmt::format("{} tokens x {} cells, K blocks of {}, decoded in registers up to {} tokens",
                       tile.tile_tokens, tile.tile_cells, tile.k_block, tile.gemv_max_tokens),
           tile.reason});
    }
    spec.tile_tokens = entry->second.tile_tokens;
    spec.tile_cells = entry->second.tile_cells;
    spec.k_block = entry->second.k_block;
    spec.gemv_max_tokens = entry->second.gemv_max_tokens;
  }

 private:
  const Target& target_;
  std::vector<Decision>& decisions_;
  std::map<std::pair<uint32_t, spec::Epilogue>, cpu::GemmTile> tiles_;
};

template <class E>
E enumerator(std::string_view option, const std::string& name) {
  E value{};
  if (!spec_value(name, value)) {
    throw Error(ErrorKind::usage, option, fmt::format("no such value: \"{}\"", name));
  }
  return value;
}

}  // namespace

void choose(Program& program, const PlanOptions& options, const Target& target) {
  if (is_cuda(target)) return choose_cuda(program, options, target);
  const auto kv = enumerator<spec::KvType>("--kv", options.kv);
  const auto path = enumerator<spec::AttentionPath>("--attention", options.attention);
  TileChooser tiles(target, program.decisions);
  for (Program::Launch& launch : program.launches) {
    std::visit(
        [&](auto& spec) {
          using Spec = std::decay_t<decltype(spec)>;
          if constexpr (std::is_same_v<Spec, spec::GemmSpec> ||
                        std::is_same_v<Spec, spec::ExpertsSpec>) {
            tiles.set(spec);
          } else if constexpr (std::is_same_v<Spec, spec::QkvPostSpec>) {
            spec.kv = kv;
          } else if constexpr (std::is_same_v<Spec, spec::AttentionSpec>) {
            spec.kv = kv;
            spec.path = path;
          }
        },
        launch.spec);
  }
}

}  // namespace quern::passes
