#include "runtime/cuda/gpu_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "compiler/device_sizes.h"
#include "compiler/spec_names.h"
#include "models/error.h"
#include "runtime/cuda/launch.h"
#include "runtime/weight_binding.h"
#include "templates/spec/gemm_launch.h"

namespace quern::cuda {
namespace {

constexpr uint64_t alignment = 256;
constexpr uint64_t usual_slot_bytes = uint64_t{16} << 20;
/// Rows of a tile of packed cells: repacking works on whole tiles.
constexpr uint64_t tile_rows = 128;
/// A slot of the staging memory begins with the RunState of its repack launch.
constexpr uint64_t header_bytes = alignment;

uint64_t aligned(uint64_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

uint64_t file_row_bytes(const WeightBinding& binding) {
  return binding.form == WeightForm::vector ? sizeof(float)
                                            : row_bytes(binding.slice.type, binding.slice.k);
}

/// Rows of the slice (of each half of a gated unit) that share a tile.
uint64_t rows_of_tile(const WeightBinding& binding) {
  if (binding.form != WeightForm::packed) return 1;
  return binding.glu_up ? tile_rows / 2 : tile_rows;
}

/// Bytes that `rows` rows of a binding take in a slot.
uint64_t staged_bytes(const WeightBinding& binding, uint64_t rows) {
  const uint64_t half = aligned(rows * file_row_bytes(binding));
  return header_bytes + (binding.glu_up ? 2 * half : half);
}

/// Copies rows [first, first + count) of a slice to consecutive memory.
void gather_rows(const gguf::Tensor& tensor, const WeightSlice& slice, uint64_t first,
                 uint64_t count, std::byte* out) {
  const uint64_t bytes = row_bytes(slice.type, slice.k);
  for (uint64_t row = first; row < first + count;) {
    const uint64_t run = std::min(first + count - row, slice.block - row % slice.block);
    std::memcpy(out, tensor.data.data() + source_row(slice, row) * bytes, run * bytes);
    out += run * bytes;
    row += run;
  }
}

/// What repacking needs beside the rows.
struct Repack {
  const LoadedKernel* kernel = nullptr;
  float weight_scale = 1;
  uint64_t tile_bytes = 0;  ///< Of 128 rows of cells.
};

/// Pinned memory and device memory of one piece on its way.
struct Slot {
  std::byte* host;
  DevicePointer device;
  Event free;
};

class Uploader {
 public:
  Uploader(const std::shared_ptr<Device>& device, cpu::ThreadPool& pool, uint64_t slot_bytes)
      : pool_(pool), stream_(device), slot_bytes_(slot_bytes) {
    const uint64_t slots = std::max<uint64_t>(2, staging_bytes / slot_bytes);
    pinned_ = PinnedBuffer(device, slots * slot_bytes);
    staging_ = DeviceBuffer(device, slots * slot_bytes, "staging of weights");
    for (uint64_t i = 0; i < slots; ++i) {
      slots_.push_back(
          {pinned_.data() + i * slot_bytes, staging_.address() + i * slot_bytes, Event(device)});
    }
  }

  /// Brings all rows of a binding to `to`, in pieces.
  void upload(const WeightBinding& binding, const gguf::File& file, const Repack& repack,
              DevicePointer to) {
    if (binding.form == WeightForm::vector) {
      upload_vector(find_tensor(file, binding.slice), binding.slice, to);
      return;
    }
    const uint64_t tile = rows_of_tile(binding);
    uint64_t rows = tile;
    while (staged_bytes(binding, rows + tile) <= slot_bytes_) rows += tile;
    for (uint64_t first = 0; first < binding.slice.rows; first += rows) {
      const uint64_t count = std::min(rows, binding.slice.rows - first);
      if (binding.form == WeightForm::raw) {
        upload_raw(find_tensor(file, binding.slice), binding.slice, first, count, to);
      } else {
        upload_packed(binding, file, repack, first, count, to + first / tile * repack.tile_bytes);
      }
    }
  }
  void finish() const { stream_.synchronize(); }

 private:
  Slot& next_slot() {
    Slot& slot = slots_[next_++ % slots_.size()];
    slot.free.synchronize();
    return slot;
  }

  /// Calls copy(first, count) for parts of `rows` on all threads.
  template <class Copy>
  void in_parts(uint64_t rows, Copy&& copy) {
    const uint64_t parts = pool_.size(), part = (rows + parts - 1) / parts;
    pool_.run([&](uint32_t worker) {
      const uint64_t first = std::min(rows, worker * part);
      const uint64_t count = std::min(rows - first, part);
      if (count > 0) copy(first, count);
    });
  }

  /// Vectors are short: one piece each, whatever the slots hold, part by part.
  void upload_vector(const gguf::Tensor& tensor, const WeightSlice& slice, DevicePointer to) {
    std::vector<float> values(slice.rows);
    copy_vector(tensor, slice, reinterpret_cast<std::byte*>(values.data()));
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    for (uint64_t at = 0; at < bytes.size(); at += slot_bytes_) {
      Slot& slot = next_slot();
      const std::span<const std::byte> piece =
          bytes.subspan(at, std::min(slot_bytes_, bytes.size() - at));
      std::memcpy(slot.host, piece.data(), piece.size());
      stream_.copy_to_device(to + at, {slot.host, piece.size()});
      slot.free.record(stream_);
    }
  }

  void upload_raw(const gguf::Tensor& tensor, const WeightSlice& slice, uint64_t first,
                  uint64_t count, DevicePointer to) {
    const uint64_t bytes = row_bytes(slice.type, slice.k);
    Slot& slot = next_slot();
    in_parts(count, [&](uint64_t row, uint64_t n) {
      gather_rows(tensor, slice, first + row, n, slot.host + row * bytes);
    });
    stream_.copy_to_device(to + first * bytes, {slot.host, count * bytes});
    slot.free.record(stream_);
  }

  void upload_packed(const WeightBinding& binding, const gguf::File& file, const Repack& repack,
                     uint64_t first, uint64_t count, DevicePointer to) {
    const uint64_t bytes = file_row_bytes(binding);
    const uint64_t second = header_bytes + aligned(count * bytes);
    Slot& slot = next_slot();
    const auto gather = [&](const WeightSlice& slice, uint64_t at) {
      const gguf::Tensor& tensor = find_tensor(file, slice);
      in_parts(count, [&](uint64_t row, uint64_t n) {
        gather_rows(tensor, slice, first + row, n, slot.host + at + row * bytes);
      });
    };
    gather(binding.slice, header_bytes);
    if (binding.glu_up) gather(*binding.glu_up, second);
    const auto out_rows = static_cast<uint32_t>(binding.glu_up ? 2 * count : count);
    const RunState state{.n_tokens = out_rows, .start_position = 0, .n_outputs = 0, .reserved = 0};
    std::memcpy(slot.host, &state, sizeof state);
    stream_.copy_to_device(slot.device, {slot.host, staged_bytes(binding, count)});

    KernelArgs args{};
    args.buffers[0] = std::bit_cast<void*>(slot.device + header_bytes);
    args.buffers[1] = std::bit_cast<void*>(to);
    if (binding.glu_up) args.buffers[2] = std::bit_cast<void*>(slot.device + second);
    args.state = std::bit_cast<const RunState*>(slot.device);
    args.x_scale = args.out_scale = 1;
    args.weight_scale = repack.weight_scale;
    args.params[0] = args.params[1] = static_cast<uint32_t>(count);
    const auto resident = spec::gpu_resident_type(to_spec(binding.slice.type));
    const auto cells = static_cast<uint32_t>(spec::gpu_row_tiles(out_rows) * repack.tile_bytes /
                                             spec::gpu_cell_bytes(resident));
    repack.kernel->launch(stream_, cells, 1, threads_of_repack, 0, args);
    slot.free.record(stream_);
  }

  cpu::ThreadPool& pool_;
  StreamQueue stream_;
  uint64_t slot_bytes_;
  PinnedBuffer pinned_;
  DeviceBuffer staging_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

/// Every weight's scale: that of the step that reads it.
std::vector<float> weight_scales(const Plan& plan) {
  std::vector<float> scales(plan.weights.size(), 1.0f);
  for (const Step& step : plan.steps) {
    for (const BufferRef& buffer : step.buffers) {
      if (buffer.kind == BufferKind::weight) scales[buffer.index] = step.weight_scale;
    }
  }
  return scales;
}

void check_gpu_binding(const WeightBinding& binding, const gguf::File& file, const Plan& plan) {
  check_binding(binding, file, plan);
  if (binding.form == WeightForm::vector || binding.slice.experts == 1) return;
  throw Error(ErrorKind::bad_model, fmt::format("tensor {}", binding.slice.tensor),
              "it holds experts, which the GPU cannot run yet", "use --device cpu");
}

}  // namespace

GpuWeights::GpuWeights(const gguf::File& file, const Plan& plan,
                       const std::vector<LoadedKernel>& kernels,
                       const std::shared_ptr<Device>& device, cpu::ThreadPool& pool,
                       const Progress& progress) {
  uint64_t total = 0, slot_bytes = usual_slot_bytes;
  for (const WeightBinding& binding : plan.weights) {
    check_gpu_binding(binding, file, plan);
    offsets_.push_back(total);
    total += aligned(weight_bytes(plan.target, binding));
    slot_bytes = std::max(slot_bytes, staged_bytes(binding, rows_of_tile(binding)));
  }
  memory_ = DeviceBuffer(device, total, fmt::format("the weights of {}", file.name()));
  Uploader uploader(device, pool, aligned(slot_bytes));
  const std::vector<float> scales = weight_scales(plan);
  for (size_t i = 0; i < plan.weights.size(); ++i) {
    const WeightBinding& binding = plan.weights[i];
    Repack repack;
    if (binding.form == WeightForm::packed) {
      repack = {.kernel = &kernels[binding.repack_kernel],
                .weight_scale = scales[i],
                .tile_bytes = packed_bytes(plan.target, to_spec(binding.slice.type), tile_rows,
                                           binding.slice.k)};
    }
    uploader.upload(binding, file, repack, memory_.address() + offsets_[i]);
    if (progress) {
      progress("weights", i + 1 < offsets_.size() ? offsets_[i + 1] : total, total);
    }
  }
  uploader.finish();
}

}  // namespace quern::cuda
