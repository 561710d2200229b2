#include "runtime/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <variant>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/spec_names.h"
#include "models/error.h"

namespace quern {
namespace {

constexpr uint64_t kAlignment = 64;

uint64_t aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

[[noreturn]] void mismatch(const WeightSlice& slice, std::string_view reason) {
  throw Error(ErrorKind::bad_model, fmt::format("tensor {}", slice.tensor), reason,
              "compile a plan for this file");
}

const gguf::Tensor& find_tensor(const gguf::File& file, const WeightSlice& slice) {
  const gguf::Tensor* tensor = file.find(slice.tensor);
  if (tensor == nullptr) mismatch(slice, "the plan reads it and the file does not have it");
  return *tensor;
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
  const auto source = [&slice](uint64_t row) {
    return slice.offset + row / slice.block * slice.stride + row % slice.block;
  };
  // The furthest is the last row, or the last one of the last whole block.
  uint64_t last_row = source(slice.rows - 1);
  if (slice.rows >= slice.block) {
    last_row = std::max(last_row, source(slice.rows / slice.block * slice.block - 1));
  }
  if (last_row >= slice.tensor_rows) {
    mismatch(slice, fmt::format("the plan reads row {} of {}", last_row, slice.tensor_rows));
  }
}

bool in_place(const gguf::Tensor& tensor) {
  return tensor.type == QuantType::f32 &&
         reinterpret_cast<uintptr_t>(tensor.data.data()) % alignof(float) == 0;
}

/// A part of a vector as f32.
void copy_vector(const gguf::Tensor& tensor, const WeightSlice& slice, std::byte* out) {
  std::vector<float> whole(tensor.elements());
  decode_row(tensor.type, tensor.data.data(), whole.data(), whole.size());
  std::memcpy(out, whole.data() + slice.offset, slice.rows * sizeof(float));
}

uint64_t packed_slice_bytes(const WeightSlice& slice) {
  return slice.experts * cpu::packed_bytes(to_spec(slice.type), slice.rows, slice.k);
}

/// Bytes in memory that a binding takes.
uint64_t memory_bytes(const WeightBinding& binding, const gguf::Tensor& tensor) {
  switch (binding.form) {
    case WeightForm::packed:
      return packed_slice_bytes(binding.slice);
    case WeightForm::raw:
      return 0;
    case WeightForm::vector:
      return in_place(tensor) ? 0 : binding.slice.rows * sizeof(float);
  }
  return 0;
}

void check_binding(const WeightBinding& binding, const gguf::Tensor& tensor, const Plan& plan) {
  const WeightSlice& slice = binding.slice;
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
}

/// Repacks one binding, every expert's matrix alike, by all workers.
void repack(const WeightBinding& binding, const gguf::Tensor& tensor, cpu::KernelFunction kernel,
            cpu::ThreadPool& pool, std::byte* out) {
  const WeightSlice& slice = binding.slice;
  const uint64_t from_bytes = slice.tensor_rows * row_bytes(slice.type, slice.k);
  const uint64_t to_bytes = cpu::packed_bytes(to_spec(slice.type), slice.rows, slice.k);
  struct alignas(64) Counter {
    uint32_t next = 0;
  };
  std::vector<Counter> counters(slice.experts);
  pool.run([&](uint32_t worker) {
    for (uint64_t expert = 0; expert < slice.experts; ++expert) {
      void* buffers[2] = {const_cast<std::byte*>(tensor.data.data()) + expert * from_bytes,
                          out + expert * to_bytes};
      cpu::KernelArgs args;
      args.buffers = buffers;
      args.n_tokens = static_cast<uint32_t>(slice.rows);
      args.params[0] = static_cast<uint32_t>(slice.offset);
      args.params[1] = static_cast<uint32_t>(slice.block);
      args.params[2] = static_cast<uint32_t>(slice.stride);
      args.worker = worker;
      args.n_workers = pool.size();
      args.next_tile = &counters[expert].next;
      kernel(&args);
    }
  });
}

}  // namespace

Weights::Weights(const gguf::File& file, const Plan& plan,
                 const std::vector<cpu::KernelFunction>& kernels, cpu::ThreadPool& pool,
                 const Progress& progress)
    : pointers_(plan.weights.size(), nullptr) {
  uint64_t total = 0;
  for (const WeightBinding& binding : plan.weights) {
    const gguf::Tensor& tensor = find_tensor(file, binding.slice);
    check_binding(binding, tensor, plan);
    total += aligned(memory_bytes(binding, tensor));
  }
  const std::string what = fmt::format("weights of {}", file.name());
  require_memory(total, what);
  memory_ = ZeroedMemory(total, what);

  uint64_t at = 0;
  for (size_t i = 0; i < plan.weights.size(); ++i) {
    const WeightBinding& binding = plan.weights[i];
    const gguf::Tensor& tensor = find_tensor(file, binding.slice);
    const uint64_t bytes = memory_bytes(binding, tensor);
    std::byte* out = memory_.data() + at;
    if (binding.form == WeightForm::packed) {
      repack(binding, tensor, kernels[binding.repack_kernel], pool, out);
      pointers_[i] = out;
    } else if (binding.form == WeightForm::raw) {
      pointers_[i] = tensor.data.data() +
                     binding.slice.offset * row_bytes(binding.slice.type, binding.slice.k);
    } else if (in_place(tensor)) {
      pointers_[i] = tensor.data.data() + binding.slice.offset * sizeof(float);
    } else {
      copy_vector(tensor, binding.slice, out);
      pointers_[i] = out;
    }
    at += aligned(bytes);
    if (progress && bytes > 0) progress("weights", at, total);
  }
}

}  // namespace quern
