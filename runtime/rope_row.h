#pragma once

#include <cstdint>

#include "models/graph.h"

namespace quern {

/// A position's row of a RoPE table, [n_rot / 2][2]: cosine and sine of position times inverse
/// frequency, both times mscale, from double precision (DESIGN section 4, rule 8).
void fill_rope_row(const Rope& rope, uint64_t position, float* row);

}  // namespace quern
