#include "runtime/cuda/gpu_backend.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>

#include "models/error.h"
#include "runtime/cuda/launch.h"
#include "runtime/rope_row.h"

namespace quern::cuda {
namespace {

/// Inputs on the device: RunState, then the rows whose logits are asked for, then what a selection
/// is asked for (with room for all tokens that it may take), then token ids.
constexpr uint64_t outputs_at = 64;
constexpr uint64_t most_pinned_logits = uint64_t{64} << 20;

uint64_t align_up(uint64_t bytes) {
  return (bytes + 63) / 64 * 64;
}
uint64_t wish_at(const Plan& plan) {
  return outputs_at + align_up(plan.max_outputs * sizeof(int32_t));
}
uint64_t tokens_at(const Plan& plan) {
  const bool selects = selection_of(plan) != nullptr;
  return wish_at(plan) + (selects ? align_up(spec::select_wish_bytes()) : 0);
}
uint64_t logits_bytes(const Plan& plan) {
  return uint64_t{plan.max_outputs} * plan.vocabulary * sizeof(float);
}

/// The most shared memory that a kernel is launched with.
uint32_t shared_bytes(const spec::AnySpec& spec, const Plan& plan) {
  return launch_shape_of(spec, 1, plan).shared_bytes;
}

}  // namespace

GpuBackend::GpuBackend(const gguf::File& file, const Plan& plan,
                       std::vector<CompiledKernel> compiled, std::shared_ptr<Device> device,
                       cpu::ThreadPool& pool, const Progress& progress)
    : plan_(plan),
      selection_(selection_of(plan)),
      device_(std::move(device)),
      threads_(pool.size()),
      stream_(device_) {
  for (size_t i = 0; i < compiled.size(); ++i) {
    const spec::AnySpec& spec = plan.kernels[i].spec;
    if (is_library(spec)) {
      kernels_.emplace_back();
      continue;
    }
    kernels_.emplace_back(device_, compiled[i].code, shared_bytes(spec, plan),
                          fmt::format("kernel {}", spec_to_text(spec)));
  }
  for (const Step& step : plan.steps) add_step(step);
  graph_name_ = index_of_name(names_, "launch graph");

  // Everything is allocated before the long work, so that what does not fit is said at once.
  if (needs_library(plan)) library_.emplace(device_, plan);
  arena_ = DeviceBuffer(device_, plan.arena_bytes, "activations");
  logits_ = DeviceBuffer(device_, logits_bytes(plan), "logits");
  if (selection_ != nullptr) {
    candidates_ = DeviceBuffer(device_, spec::select_answer_bytes(*selection_), "candidates");
  }
  inputs_ = DeviceBuffer(device_, input_bytes(plan.options.chunk), "token ids");
  host_inputs_ = PinnedBuffer(device_, input_bytes(plan.options.chunk));
  const uint64_t counter_bytes = plan.steps.size() * sizeof(uint32_t);
  saturated_ = DeviceBuffer(device_, counter_bytes, "counters");
  host_saturated_ = PinnedBuffer(device_, counter_bytes);
  std::memset(host_saturated_.data(), 0, counter_bytes);
  saturated_before_.assign(plan.steps.size(), 0);
  stream_.fill(arena_.address(), 0, arena_.bytes());
  stream_.fill(saturated_.address(), 0, saturated_.bytes());
  // All of it is copied to the host, whatever number of candidates is wanted.
  if (selection_ != nullptr) stream_.fill(candidates_.address(), 0, candidates_.bytes());
  upload_ropes(pool);
  weights_.emplace(file, plan, kernels_, device_, pool, progress);
  run_once_steps();
  stream_.synchronize();
}

void GpuBackend::run_once_steps() {
  for (const Step& step : plan_.steps) {
    if (step.run != StepRun::once) continue;
    launch(step, step.kernel, 1, step_args(step, DeviceBuffer()));
  }
}

void GpuBackend::add_step(const Step& step) {
  std::vector<Choice>& choices = choices_.emplace_back();
  const auto add = [&](uint32_t max_rows, uint32_t kernel) {
    choices.push_back(
        {max_rows, kernel, index_of_name(names_, launch_name(plan_.kernels[kernel].spec))});
  };
  for (const StepVariant& variant : step.variants) add(variant.max_tokens, variant.kernel);
  add(~0U, step.kernel);
}

const GpuBackend::Choice& GpuBackend::choice(size_t step, uint32_t rows) const {
  return *std::ranges::find_if(choices_[step],
                               [rows](const Choice& c) { return rows <= c.max_rows; });
}

void GpuBackend::upload_ropes(cpu::ThreadPool& pool) {
  for (const Rope& rope : plan_.ropes) {
    const size_t pairs = rope.inverse_frequency.size();
    std::vector<float> table(size_t{plan_.options.context} * pairs * 2);
    pool.run([&](uint32_t worker) {
      for (size_t position = worker; position < plan_.options.context; position += pool.size()) {
        fill_rope_row(rope, position, table.data() + position * pairs * 2);
      }
    });
    const auto bytes = std::as_bytes(std::span(table));
    ropes_.emplace_back(device_, bytes.size(), "RoPE tables");
    stream_.copy_to_device(ropes_.back().address(), bytes);
    stream_.synchronize();
  }
}

std::unique_ptr<SessionMemory> GpuBackend::new_session() {
  return std::make_unique<GpuMemory>(*this);
}

std::vector<std::pair<std::string, uint64_t>> GpuBackend::saturated() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::string, uint64_t>> steps;
  for (size_t i = 0; i < saturated_before_.size(); ++i) {
    if (saturated_before_[i] > 0) steps.emplace_back(plan_.steps[i].name, saturated_before_[i]);
  }
  return steps;
}

template <class Work>
void GpuBackend::in_turn(Work&& work) {
  const std::lock_guard lock(mutex_);
  if (!dead_.empty()) {
    throw Error(ErrorKind::failed, device_->name(), fmt::format("it failed earlier ({})", dead_),
                "load the model again");
  }
  try {
    device_->use();
    work();
    stream_.synchronize();
    note_saturation();
  } catch (const std::exception& error) {
    note_failure(error.what());
    throw;
  }
}

/// Waits for what is still running. Where even that fails the context is lost, with all memory.
void GpuBackend::note_failure(const std::string& what) {
  try {
    stream_.synchronize();
  } catch (const Error&) {
    dead_ = what;
  }
}

void GpuBackend::note_saturation() {
  const auto* now = reinterpret_cast<const uint32_t*>(host_saturated_.data());
  for (size_t i = 0; i < saturated_before_.size(); ++i) {
    if (now[i] == saturated_before_[i]) continue;
    if (saturated_before_[i] == 0) {
      spdlog::warn("{}: {} values were too large for f16 and were clamped", plan_.steps[i].name,
                   now[i]);
    }
    saturated_before_[i] = now[i];
  }
}

KernelArgs GpuBackend::step_args(const Step& step, const DeviceBuffer& state) const {
  const auto address = [&](const BufferRef& ref) -> void* {
    switch (ref.kind) {
      case BufferKind::none:
        return nullptr;
      case BufferKind::activation:
        return arena_.pointer(plan_.activations[ref.index].offset);
      case BufferKind::weight:
        return weights_->at(ref.index);
      case BufferKind::state:
        return state.pointer(plan_.states[ref.index].offset);
      case BufferKind::tokens:
        return inputs_.pointer(tokens_at(plan_));
      case BufferKind::rope:
        return ropes_[ref.index].pointer();
      case BufferKind::outputs:
        return inputs_.pointer(outputs_at);
      case BufferKind::logits:
        return logits_.pointer();
      case BufferKind::wish:
        return inputs_.pointer(wish_at(plan_));
      case BufferKind::candidates:
        return candidates_.pointer();
    }
    return nullptr;
  };
  KernelArgs args{};
  std::ranges::transform(step.buffers, args.buffers, address);
  args.state = static_cast<const RunState*>(inputs_.pointer());
  args.rows_are_outputs = step.rows == StepRows::outputs ? 1 : 0;
  args.operand_rows = operand_rows(plan_.options.chunk);
  args.kv_capacity = kv_capacity(plan_.options.context);
  const auto index = static_cast<uint64_t>(&step - plan_.steps.data());
  args.saturated = static_cast<uint32_t*>(saturated_.pointer(index * sizeof(uint32_t)));
  args.x_scale = step.x_scale;
  args.out_scale = step.out_scale;
  args.weight_scale = step.weight_scale;
  return args;
}

uint64_t GpuBackend::input_bytes(size_t tokens) const {
  return tokens_at(plan_) + tokens * sizeof(int32_t);
}

void GpuBackend::write_inputs(const Chunk& chunk) {
  const RunState state{.n_tokens = static_cast<uint32_t>(chunk.tokens.size()),
                       .start_position = chunk.start_position,
                       .n_outputs = static_cast<uint32_t>(chunk.outputs.size()),
                       .reserved = 0};
  std::byte* to = host_inputs_.data();
  std::memcpy(to, &state, sizeof state);
  std::ranges::copy(std::as_bytes(chunk.outputs), to + outputs_at);
  std::ranges::copy(std::as_bytes(chunk.tokens), to + tokens_at(plan_));
  if (chunk.selection == nullptr) return;
  const SelectionRequest& request = *chunk.selection;
  const spec::SelectWish wish{.wanted = request.count,
                              .n_seen = static_cast<uint32_t>(request.seen.size()),
                              .penalty = request.penalty,
                              .reserved = 0};
  std::memcpy(to + wish_at(plan_), &wish, sizeof wish);
  std::ranges::copy(std::as_bytes(std::span(request.seen)), to + wish_at(plan_) + sizeof wish);
}

SelectionLimits GpuBackend::selection_limits() const {
  if (selection_ == nullptr) return {};
  return {selection_->count, spec::select_most_seen, selection_->vocabulary};
}

bool GpuBackend::is_left_out(const GpuMemory& memory, size_t step) const {
  return selection_ != nullptr && memory.wanted_ == 0 && step + 1 == plan_.steps.size();
}

uint32_t GpuBackend::rows_of(const Step& step, uint32_t n_tokens, uint32_t n_outputs) const {
  return step.rows == StepRows::tokens ? n_tokens : n_outputs;
}

void GpuBackend::launch(const Step& step, uint32_t kernel, uint32_t rows, const KernelArgs& args) {
  const spec::AnySpec& spec = plan_.kernels[kernel].spec;
  if (is_library(spec)) {
    library_->run(stream_, step, rows, args);
    return;
  }
  const spec::LaunchShape shape = launch_shape_of(spec, rows, plan_);
  kernels_[kernel].launch(stream_, shape.grid_x, shape.grid_y, shape.threads, shape.shared_bytes,
                          args, /*early=*/true);
}

void GpuBackend::enqueue(GpuMemory& memory, uint32_t n_tokens, uint32_t n_outputs, size_t n_steps) {
  stream_.copy_to_device(inputs_.address(), {host_inputs_.data(), input_bytes(n_tokens)});
  for (size_t i = 0; i < n_steps; ++i) {
    const uint32_t rows = rows_of(plan_.steps[i], n_tokens, n_outputs);
    if (!runs(plan_, plan_.steps[i], rows) || is_left_out(memory, i)) continue;
    launch(plan_.steps[i], choice(i, rows).kernel, rows, memory.args_[i]);
  }
  if (memory.wanted_ > 0) {
    const PinnedBuffer& to = memory.pinned_candidates_;
    stream_.copy_to_host({to.data(), to.bytes()}, candidates_.address());
  } else if (n_outputs > 0) {
    stream_.copy_to_host(memory.host_logits(n_outputs), logits_.address());
  }
  stream_.copy_to_host({host_saturated_.data(), host_saturated_.bytes()}, saturated_.address());
}

void GpuBackend::count(GpuMemory& memory, uint32_t n_tokens, uint32_t n_outputs,
                       size_t n_steps) const {
  for (size_t i = 0; i < n_steps; ++i) {
    const uint32_t rows = rows_of(plan_.steps[i], n_tokens, n_outputs);
    if (!runs(plan_, plan_.steps[i], rows) || is_left_out(memory, i)) continue;
    ++memory.launches_[choice(i, rows).name];
  }
}

void GpuBackend::run(GpuMemory& memory, const Chunk& chunk) {
  const auto n_tokens = static_cast<uint32_t>(chunk.tokens.size());
  const auto n_outputs = static_cast<uint32_t>(chunk.outputs.size());
  const size_t all = plan_.steps.size();
  size_t n_steps = all;
  in_turn([&] {
    n_steps = steps_before_failure(all);
    write_inputs(chunk);
    memory.last_outputs_ = n_outputs;
    memory.wanted_ = chunk.selection == nullptr ? 0 : chunk.selection->count;
    if (n_tokens == 1 && n_steps == all) {
      std::unique_ptr<LaunchGraph>& graph = memory.graphs_[memory.wanted_ > 0 ? 2 : n_outputs];
      if (graph == nullptr) {
        graph = std::make_unique<LaunchGraph>(
            device_, stream_, [&] { enqueue(memory, n_tokens, n_outputs, n_steps); });
      }
      graph->launch(stream_);
      ++memory.launches_[graph_name_];
    } else {
      enqueue(memory, n_tokens, n_outputs, n_steps);
    }
    count(memory, n_tokens, n_outputs, n_steps);
  });
  if (n_steps < all) fail_at_step(plan_, n_steps);
}

GpuMemory::GpuMemory(GpuBackend& backend) : backend_(backend) {
  const Plan& plan = backend.plan_;
  state_ = DeviceBuffer(backend.device_, plan.state_bytes, "the state of a session");
  const uint64_t all = logits_bytes(plan), row = plan.vocabulary * sizeof(float);
  pinned_logits_ = PinnedBuffer(backend.device_, std::min(all, std::max(most_pinned_logits, row)));
  if (all > pinned_logits_.bytes()) pageable_logits_ = ZeroedMemory(all, "logits of the session");
  if (backend.selection_ != nullptr) {
    pinned_candidates_ = PinnedBuffer(backend.device_, backend.candidates_.bytes());
  }
  for (const Step& step : plan.steps) args_.push_back(backend.step_args(step, state_));
  launches_.assign(backend.names_.size(), 0);
  clear();
}

std::span<std::byte> GpuMemory::host_logits(uint32_t rows) const {
  const uint64_t bytes = uint64_t{rows} * backend_.plan_.vocabulary * sizeof(float);
  return {bytes <= pinned_logits_.bytes() ? pinned_logits_.data() : pageable_logits_.data(), bytes};
}

const float* GpuMemory::logits() const {
  return reinterpret_cast<const float*>(host_logits(last_outputs_).data());
}

Candidates GpuMemory::candidates() const {
  const std::byte* from = pinned_candidates_.data();
  spec::SelectAnswer answer;
  std::memcpy(&answer, from, sizeof answer);
  std::vector<spec::SelectCandidate> best(wanted_);
  std::memcpy(best.data(), from + sizeof answer, best.size() * sizeof best[0]);
  Candidates result{.best = {},
                    .not_finite = answer.not_finite,
                    .first_not_finite = static_cast<TokenId>(answer.first_not_finite)};
  for (const auto& [logit, id] : best) result.best.emplace_back(logit, static_cast<TokenId>(id));
  return result;
}

void GpuMemory::clear() {
  backend_.in_turn([&] { backend_.stream_.fill(state_.address(), 0, state_.bytes()); });
}

void GpuMemory::copy_from(const SessionMemory& other) {
  const DeviceBuffer& from = static_cast<const GpuMemory&>(other).state_;
  backend_.in_turn(
      [&] { backend_.stream_.copy_on_device(state_.address(), from.address(), state_.bytes()); });
}

std::vector<std::byte> GpuMemory::save(std::string_view fingerprint, uint32_t position) const {
  ZeroedMemory host(state_.bytes(), "saved state");
  backend_.in_turn([&] { backend_.stream_.copy_to_host(host.bytes(), state_.address()); });
  return encode_state(host.bytes(), fingerprint, position);
}

void GpuMemory::restore(const StateImage& image) {
  backend_.in_turn([&] {
    backend_.stream_.fill(state_.address(), 0, state_.bytes());
    for (const StateImage::Run& run : image.runs) {
      backend_.stream_.copy_to_device(state_.address() + run.offset, run.bytes);
    }
  });
}

}  // namespace quern::cuda
