#include <algorithm>

#include "compiler/cpu/cpu_compiler.h"

namespace quern::cpu {

GemmTile choose_gemm_tile(const Target& target, uint32_t k, spec::Epilogue epilogue) {
  const bool wide = target.features.find("+avx512f") != std::string::npos;
  const bool glu = epilogue == spec::Epilogue::swiglu || epilogue == spec::Epilogue::gelu_glu;
  // A block of k is whole sub-blocks of 32; a short k needs no more scratch than itself.
  const uint32_t k_block = std::min(128u, (k + 31) / 32 * 32);
  if (wide) {
    return {
        6, 4, k_block, 2,
        "24 sums, 4 weights and a broadcast in 32 registers of 512 bits; a block of weights in L1"};
  }
  if (glu) {
    return {3, 2, k_block, 1, "gate and up of one cell: 12 sums in 16 registers of 256 bits"};
  }
  return {6, 1, k_block, 1, "12 sums, 2 weights and a broadcast in 16 registers of 256 bits"};
}

}  // namespace quern::cpu
