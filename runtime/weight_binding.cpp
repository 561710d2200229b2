#include "runtime/weight_binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <variant>
#include <vector>

#include "compiler/spec_names.h"
#include "models/error.h"

namespace quern {
namespace {

[[noreturn]] void mismatch(const WeightSlice& slice, std::string_view reason) {
  throw Error(ErrorKind::bad_model, fmt::format("tensor {}", slice.tensor), reason,
              "compile a plan for this file");
}

/// A vector may be a part of a longer one: a fused projection's bias.
void check_vector(const gguf::Tensor& tensor, const WeightSlice& slice) {
  if (slice.offset > tensor.elements() || slice.rows > tensor.elements() - slice.offset) {
    mismatch(slice, fmt::format("it has {} values, the plan wants {} from {} on", tensor.elements(),
                                slice.rows, slice.offset));
  }
}

/// That every row which a kernel will read lies inside the tensor.
void check_matrix(const gguf::Tensor& tensor, const WeightSlice& slice) {
  if (tensor.type != slice.type) {
    mismatch(slice, fmt::format("its type is {}, the plan wants {}", quant_traits(tensor.type).name,
                                quant_traits(slice.type).name));
  }
  if (tensor.row_length() != slice.k || slice.experts == 0 || tensor.rows() % slice.experts != 0 ||
      tensor.rows() / slice.experts != slice.tensor_rows) {
    mismatch(slice, fmt::format("it has {} rows of {}, the plan wants {} x {} of {}", tensor.rows(),
                                tensor.row_length(), slice.experts, slice.tensor_rows, slice.k));
  }
  constexpr uint64_t limit = std::numeric_limits<uint32_t>::max();
  if (slice.rows == 0 || slice.block == 0 || slice.rows > limit || slice.offset > limit ||
      slice.stride > limit || slice.block > limit) {
    mismatch(slice, "the plan's slice of it is out of range");
  }
  // The furthest is the last row, or the last one of the last whole block.
  uint64_t last_row = source_row(slice, slice.rows - 1);
  if (slice.rows >= slice.block) {
    last_row = std::max(last_row, source_row(slice, slice.rows / slice.block * slice.block - 1));
  }
  if (last_row >= slice.tensor_rows) {
    mismatch(slice, fmt::format("the plan reads row {} of {}", last_row, slice.tensor_rows));
  }
}

}  // namespace

const gguf::Tensor& find_tensor(const gguf::File& file, const WeightSlice& slice) {
  const gguf::Tensor* tensor = file.find(slice.tensor);
  if (tensor == nullptr) mismatch(slice, "the plan reads it and the file does not have it");
  return *tensor;
}

void check_binding(const WeightBinding& binding, const gguf::File& file, const Plan& plan) {
  const WeightSlice& slice = binding.slice;
  const gguf::Tensor& tensor = find_tensor(file, slice);
  if (binding.form == WeightForm::vector) {
    check_vector(tensor, slice);
    return;
  }
  check_matrix(tensor, slice);
  if (binding.form == WeightForm::raw) {
    // A kernel reads it as it lies: consecutive rows.
    if (slice.rows > slice.block && slice.stride != slice.block)
      mismatch(slice, "the plan reads scattered rows in place");
    return;
  }
  const auto* repack =
      binding.repack_kernel < plan.kernels.size()
          ? std::get_if<spec::RepackSpec>(&plan.kernels[binding.repack_kernel].spec)
          : nullptr;
  if (repack == nullptr || repack->k != slice.k || from_spec(repack->type) != slice.type) {
    mismatch(slice, "the plan's repack kernel is not for it");
  }
  if (!binding.glu_up) return;
  const WeightSlice& up = *binding.glu_up;
  check_matrix(find_tensor(file, up), up);
  if (up.type != slice.type || up.k != slice.k || up.rows != slice.rows) {
    mismatch(
        up, fmt::format("it and {} are not alike, and one packed weight holds both", slice.tensor));
  }
}

/// A part of a vector as f32.
void copy_vector(const gguf::Tensor& tensor, const WeightSlice& slice, std::byte* out) {
  std::vector<float> whole(tensor.elements());
  decode_row(tensor.type, tensor.data.data(), whole.data(), whole.size());
  std::memcpy(out, whole.data() + slice.offset, slice.rows * sizeof(float));
}

}  // namespace quern
