#include <llvm/Config/llvm-config.h>

#include "compiler/cpu/bitcode.h"
#include "compiler/cpu/cpu_compiler.h"
#include "models/error.h"

#include <fmt/format.h>

namespace quern::cpu {

const BitcodeRow& find_bitcode(std::string_view family) {
  for (const BitcodeRow& row : bitcode_table()) {
    if (row.family == family) return row;
  }
  throw Error(ErrorKind::failed, fmt::format("kernel family '{}'", family),
              "it has no CPU template in this build");
}

KernelKey kernel_key(const spec::AnySpec& spec, const Target& target) {
  const BitcodeRow& row = find_bitcode(spec_family(spec));
  return {.fields = {
              {"schema", "quern-cpu-1"},
              {"family", row.family},
              {"spec", spec_to_text(spec)},
              {"source", row.digest},
              {"headers", bitcode_abi_digest},
              {"options", std::string("O3 ") + bitcode_options_digest},
              {"target", target.kind + " " + target.name + " " + target.features},
              {"compiler", "LLVM " LLVM_VERSION_STRING},
          }};
}

}  // namespace quern::cpu
