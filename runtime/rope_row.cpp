#include "runtime/rope_row.h"

#include <cmath>

namespace quern {

void fill_rope_row(const Rope& rope, uint64_t position, float* row) {
  for (size_t pair = 0; pair < rope.inverse_frequency.size(); ++pair) {
    const double angle = static_cast<double>(position) * rope.inverse_frequency[pair];
    row[pair * 2] = static_cast<float>(std::cos(angle) * rope.mscale);
    row[pair * 2 + 1] = static_cast<float>(std::sin(angle) * rope.mscale);
  }
}

}  // namespace quern
