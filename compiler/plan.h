#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/kernel.h"
#include "compiler/options.h"
#include "models/graph.h"

namespace quern {

/// Where a step's buffer comes from.
enum class BufferKind {
  none,        ///< The family's null argument.
  activation,  ///< Plan::activations[index]
  weight,      ///< Plan::weights[index]
  state,       ///< Plan::states[index]: KV cache, convolution and recurrent state of the session
  tokens,      ///< Token ids of the chunk, i32
  rope,     ///< Table of Plan::ropes[index]: [rows][n_rot / 2][2] f32. CPU: a row for each token of
            ///< the chunk. GPU: one for each position of the context, indexed by absolute position.
  outputs,  ///< Row numbers (within the chunk) whose logits are asked for, i32
  logits,   ///< [outputs][vocabulary] f32
  wish,     ///< GPU: what a selection is asked for (templates/spec/select.h) ...
  candidates,  ///< ... and its answer.
};

struct BufferRef {
  BufferKind kind = BufferKind::none;
  uint32_t index = 0;
};

enum class ActivationForm {
  rows,      ///< `bytes_per_row` for each row, beside `fixed_bytes`.
  operand,   ///< GPU: an f16 operand (docs/gpu.md): `bytes_per_row` for each of operand_rows(chunk)
             ///< rows, requested outputs as well as tokens.
  counters,  ///< GPU: `fixed_bytes` of u32 that are zero between launches. Filled with zeros once;
             ///< they share their bytes with nothing.
  kept,  ///< GPU: `fixed_bytes` that a step of StepRun::once writes; they share their bytes with
         ///< nothing. Counted as weights.
};

/// An activation in the arena: `bytes_per_row` for each of `rows` rows at `offset` (64-byte
/// aligned). Buffers whose lives do not overlap share bytes.
struct ActivationBuffer {
  std::string name;
  ActivationForm form = ActivationForm::rows;
  uint64_t bytes_per_row = 0;
  uint64_t fixed_bytes = 0;  ///< Beside the rows (expert offsets, attention's scratch).
  bool selected = false;     ///< Rows are requested outputs, not chunk tokens.
  uint64_t offset = 0;
  uint64_t bytes = 0;  ///< At the plan's chunk (or output) size.
};

enum class WeightForm {
  packed,  ///< Repacked into cells by the plan's repack kernel.
  raw,     ///< Rows as the file has them. CPU: read in place from its mapping; GPU: uploaded.
  vector,  ///< f32 vector. CPU: read in place (copied when not aligned to 4 bytes); GPU: uploaded.
};

/// One weight that steps read.
struct WeightBinding {
  WeightForm form = WeightForm::raw;
  WeightSlice slice;  ///< For vectors: `tensor`, `rows` and `offset` alone.
  /// GPU, packed: the up half of a gated unit, of the type, size and blocks of `slice` (the gate).
  /// Rows of both are interleaved by 8 in the packed weight, which has twice `slice.rows` rows.
  std::optional<WeightSlice> glu_up;
  uint32_t repack_kernel = ~0u;  ///< Index into kernels, for packed ones.
  uint64_t bytes = 0;            ///< Bytes it takes in memory of the device (0 when read in place).
};

enum class StateKind { key_cache, value_cache, conv, recurrent };

/// One piece of a session's state.
struct StateBuffer {
  StateKind kind = StateKind::key_cache;
  int32_t layer = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;  ///< In the session's state arena, 64-byte aligned.
};

enum class StepRows { tokens, outputs };

/// Which launches a step belongs to. All but `always` are of fast GPU plans, where some GEMMs of
/// many rows are cuBLASLt's (docs/gpu.md, "The cuBLASLt route").
enum class StepRun {
  always,
  few,   ///< Launches of at most Plan::few_rows rows ...
  many,  ///< ... and of more.
  once,  ///< None: it runs when the plan is loaded, reads weights and writes `kept` buffers.
};

/// A kernel for launches of few rows: computes the same bits as the step's general one.
struct StepVariant {
  uint32_t max_tokens = 0;  ///< Rows of a launch at most.
  uint32_t kernel = 0;      ///< Index into kernels.
};

/// One launch.
struct Step {
  uint32_t kernel = 0;  ///< Index into kernels: the general one.
  /// By ascending max_tokens: the first with max_tokens >= the launch's rows runs, `kernel` where
  /// there is none such. All take the same buffers. Empty on the CPU.
  std::vector<StepVariant> variants;
  std::vector<BufferRef> buffers;  ///< In the family's order.
  StepRows rows = StepRows::tokens;
  StepRun run = StepRun::always;
  int32_t layer = -1;
  std::string name;  ///< For people: "blk.3 qkv".
  /// GPU: powers of two that the kernel is launched with (templates/cuda/abi.h): of the f16 operand
  /// it writes, of its sums, and of its weights as they decode (the repack kernel's too).
  float x_scale = 1, out_scale = 1, weight_scale = 1;
};

struct PlanKernel {
  spec::AnySpec spec;
  std::string key_digest;  ///< KernelKey::digest() for the plan's target; empty where its compiler
                           ///< (NVRTC) is not on the machine that planned, and for a library's.
  std::string entry_digest;  ///< Digest of the compiled entry; set by `compile`, empty before.
};

/// A choice that a pass made, with its reason, for `plan show`.
struct Decision {
  std::string subject, choice, reason;
};

/// Bytes by class, at the plan's context and chunk. Weights: what is repacked and, on the GPU,
/// uploaded (what is read in place from the file counts nothing). Workspace: activations, logits,
/// token ids, RoPE tables and selections. Overhead: the scratch of one worker thread, or the GPU's
/// staging_bytes and, where a step is cuBLASLt's, library_workspace_bytes.
struct CapacityAccount {
  uint64_t weights = 0, kv = 0, recurrent = 0, workspace = 0, overhead = 0;
  uint64_t total() const { return weights + kv + recurrent + workspace + overhead; }
};

/// What runs, on what, how. Canonical JSON; a plan for one target can be made on any machine.
struct Plan {
  static constexpr uint32_t version = 2;

  std::string architecture, model_name, model_fingerprint;
  Target target;
  PlanOptions options;  ///< Resolved: nothing left to choose.
  uint32_t vocabulary = 0;
  uint32_t max_outputs = 0;  ///< Rows of logits at most for one chunk.
  std::vector<Rope> ropes;
  std::vector<PlanKernel> kernels;
  std::vector<ActivationBuffer> activations;
  uint64_t arena_bytes = 0;
  std::vector<WeightBinding> weights;
  std::vector<StateBuffer> states;
  uint64_t state_bytes = 0;
  uint32_t few_rows = 0;  ///< What `few` and `many` steps count as few; 0 in plans without them.
  std::vector<Step> steps;
  std::vector<Decision> decisions;
  CapacityAccount capacity;
};

/// Positions of the KV cache for a context: the next multiple of 64.
uint32_t kv_capacity(uint32_t context);

/// Rows that every f16 operand of a plan has room for: the chunk, up to the next multiple of 64.
uint32_t operand_rows(uint32_t chunk);

/// Device memory in which a GPU plan's weights are staged, raw, on their way to their cells.
inline constexpr uint64_t staging_bytes = uint64_t{64} << 20;
/// Device memory that cuBLASLt's algorithms may use.
inline constexpr uint64_t library_workspace_bytes = uint64_t{32} << 20;

/// Whether a launch of so many rows of a step of the plan takes place.
bool runs(const Plan& plan, const Step& step, uint32_t rows);
/// Whether a step of the plan is cuBLASLt's.
bool needs_library(const Plan& plan);

/// Candidates that a GPU plan's selection gives at most.
inline constexpr uint32_t plan_candidates = 256;

/// The selection of a GPU plan (its last step), or null where it has none.
const spec::SelectSpec* selection_of(const Plan& plan);

/// The account of a plan whose buffers, weights, states and kernels are set.
CapacityAccount account_of(const Plan& plan);

/// Runs the passes (fuse, place, choose, lay out) on a graph. Pure, except that the keys of GPU
/// kernels name the NVRTC that is there. Throws Error: `usage` for options that make no sense for
/// the model, `does_not_fit` where the device cannot hold it.
Plan make_plan(const ModelGraph& graph, const PlanOptions& options, const Target& target);

/// Canonical JSON text and back; `plan_from_json` checks the version and every index, and throws
/// Error (`failed`) naming the field.
std::string plan_to_json(const Plan& plan);
Plan plan_from_json(std::string_view text, std::string_view name);

/// Human-readable account of a plan (`plan show`), and the differences of two (`plan diff`), a line
/// each.
std::string describe_plan(const Plan& plan);
std::vector<std::string> diff_plans(const Plan& a, const Plan& b);

}  // namespace quern
