#include "runtime/weights.h"

#include <fmt/format.h>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/spec_names.h"
#include "runtime/weight_binding.h"

namespace quern {
namespace {

constexpr uint64_t kAlignment = 64;

uint64_t aligned(uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

bool in_place(const gguf::Tensor& tensor) {
  return tensor.type == QuantType::f32 &&
         reinterpret_cast<uintptr_t>(tensor.data.data()) % alignof(float) == 0;
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
    check_binding(binding, file, plan);
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
