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
  rope,        ///< Table of Plan::ropes[index] for the chunk's positions: [tokens][n_rot / 2][2] f32
  outputs,     ///< Row numbers (within the chunk) whose logits are asked for, i32
  logits,      ///< [outputs][vocabulary] f32
};

struct BufferRef {
  BufferKind kind = BufferKind::none;
  uint32_t index = 0;
};

/// An activation in the arena: `bytes_per_row` for each of `rows` rows at `offset` (64-byte aligned).
/// Buffers whose lives do not overlap share bytes.
struct ActivationBuffer {
  std::string name;
  uint64_t bytes_per_row = 0;
  uint64_t fixed_bytes = 0;  ///< Beside the rows (for example expert offsets).
  bool selected = false;     ///< Rows are requested outputs, not chunk tokens.
  uint64_t offset = 0;
  uint64_t bytes = 0;        ///< At the plan's chunk (or output) size.
};

enum class WeightForm {
  packed,  ///< Repacked into cells by the plan's repack kernel.
  raw,     ///< Read in place from the file's mapping.
  vector,  ///< f32 vector read in place (copied when not aligned to 4 bytes).
};

/// One weight that steps read.
struct WeightBinding {
  WeightForm form = WeightForm::raw;
  WeightSlice slice;               ///< For vectors: `tensor` and `rows` alone.
  uint32_t repack_kernel = ~0u;    ///< Index into kernels, for packed ones.
  uint64_t bytes = 0;              ///< Bytes it takes in memory of the device (0 when read in place).
};

enum class StateKind { key_cache, value_cache, conv, recurrent };

/// One piece of a session's state.
struct StateBuffer {
  StateKind kind = StateKind::key_cache;
  int32_t layer = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;       ///< In the session's state arena, 64-byte aligned.
};

enum class StepRows { tokens, outputs };

/// One launch.
struct Step {
  uint32_t kernel = 0;                ///< Index into kernels.
  std::vector<BufferRef> buffers;     ///< In the family's order.
  StepRows rows = StepRows::tokens;
  int32_t layer = -1;
  std::string name;                   ///< For people: "blk.3 qkv".
};

struct PlanKernel {
  spec::AnySpec spec;
  std::string key_digest;    ///< KernelKey::digest() for the plan's target.
  std::string entry_digest;  ///< Digest of the compiled entry; set by `compile`, empty before.
};

/// A choice that a pass made, with its reason, for `plan show`.
struct Decision {
  std::string subject, choice, reason;
};

/// Bytes by class, at the plan's context and chunk. Weights: what is repacked (tables read in place from
/// the file count nothing). Workspace: activations, logits, token ids and RoPE tables. Overhead: the scratch
/// of one worker thread.
struct CapacityAccount {
  uint64_t weights = 0, kv = 0, recurrent = 0, workspace = 0, overhead = 0;
  uint64_t total() const { return weights + kv + recurrent + workspace + overhead; }
};

/// What runs, on what, how. Canonical JSON; a plan for one target can be made on any machine.
struct Plan {
  static constexpr uint32_t version = 1;

  std::string architecture, model_name, model_fingerprint;
  Target target;
  PlanOptions options;                 ///< Resolved: nothing left to choose.
  uint32_t vocabulary = 0;
  uint32_t max_outputs = 0;            ///< Rows of logits at most for one chunk.
  std::vector<Rope> ropes;
  std::vector<PlanKernel> kernels;
  std::vector<ActivationBuffer> activations;
  uint64_t arena_bytes = 0;
  std::vector<WeightBinding> weights;
  std::vector<StateBuffer> states;
  uint64_t state_bytes = 0;
  std::vector<Step> steps;
  std::vector<Decision> decisions;
  CapacityAccount capacity;
};

/// Positions of the KV cache for a context: the next multiple of 64.
uint32_t kv_capacity(uint32_t context);

/// The account of a plan whose buffers, weights, states and kernels are set.
CapacityAccount account_of(const Plan& plan);

/// Runs the passes (fuse, place, choose, lay out) on a graph. Pure. Throws Error: `usage` for options that
/// make no sense for the model, `does_not_fit` where the device cannot hold it.
Plan make_plan(const ModelGraph& graph, const PlanOptions& options, const Target& target);

/// Canonical JSON text and back; `plan_from_json` checks the version and every index, and throws
/// Error (`failed`) naming the field.
std::string plan_to_json(const Plan& plan);
Plan plan_from_json(std::string_view text, std::string_view name);

/// Human-readable account of a plan (`plan show`), and the differences of two (`plan diff`), a line each.
std::string describe_plan(const Plan& plan);
std::vector<std::string> diff_plans(const Plan& a, const Plan& b);

}  // namespace quern
