#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compiler/plan.h"
#include "models/gguf/file.h"

namespace quern {

/// The tensor that a slice is cut from. Throws Error (`bad_model`) where the file has none.
const gguf::Tensor& find_tensor(const gguf::File& file, const WeightSlice& slice);

/// Throws Error (`bad_model`), naming the tensor, where it has another shape or type than the plan
/// says, a row that a kernel would read lies outside of it, or the plan's repack kernel is not for
/// it.
void check_binding(const WeightBinding& binding, const gguf::File& file, const Plan& plan);

/// A part of a vector as f32; `out` has room for `slice.rows` values.
void copy_vector(const gguf::Tensor& tensor, const WeightSlice& slice, std::byte* out);

/// Row of the tensor that row `row` of a slice is.
constexpr uint64_t source_row(const WeightSlice& slice, uint64_t row) {
  return slice.offset + row / slice.block * slice.stride + row % slice.block;
}

}  // namespace quern
