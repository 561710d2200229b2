#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/plan.h"

/// The passes that turn a graph into a plan, each a pure function with one job, in this order:
/// resolve, select, fuse, choose, lay out.
namespace quern::passes {

/// What the passes after `select` work on: the plan's parts while kernels and offsets are still
/// open.
struct Program {
  /// A kernel for launches of at most `max_tokens` rows.
  struct Variant {
    uint32_t max_tokens = 0;
    spec::AnySpec spec;
  };
  struct Launch {
    spec::AnySpec spec;
    std::vector<Variant> variants = {};  ///< As Step::variants; set by choose.
    std::vector<BufferRef> buffers;
    StepRows rows = StepRows::tokens;
    StepRun run = StepRun::always;
    int32_t layer = -1;
    std::string name;
  };

  std::vector<Launch> launches;
  std::vector<ActivationBuffer>
      activations;                     ///< Forms are set by choose, offsets and bytes by lay_out.
  std::vector<WeightBinding> weights;  ///< Bytes and repack kernels are set by lay_out.
  std::vector<StateBuffer> states;     ///< KV bytes and all offsets are set by lay_out.
  uint64_t arena_bytes = 0, state_bytes = 0;
  uint32_t few_rows = 0;            ///< As Plan::few_rows; 0 also where nothing may be relaxed.
  bool keep_plain_weights = false;  ///< cuBLASLt's weights stay decoded in memory.
  std::vector<Decision> decisions;
};

/// Rows that a plan is laid out for.
struct Sizes {
  uint32_t chunk = 0;        ///< Tokens a launch.
  uint32_t max_outputs = 0;  ///< Rows of logits a launch.
  uint32_t kv_capacity = 0;  ///< Positions, a multiple of 64.
};

/// Settles every option that was left open and refuses those that make no sense for the model or
/// the target (Error, `usage`, with the remedy). Nothing is left to choose afterwards.
PlanOptions resolve(const PlanOptions& options, const ModelGraph& graph, const Target& target,
                    std::vector<Decision>& decisions);

/// Whether flash attention's GPU kernels can do this; `why` then says what keeps them from it.
bool gpu_flash_runs(const Attention& attention, spec::KvType kv, std::string* why = nullptr);

/// Refuses a graph with operations that have no GPU kernel yet (Error, `usage`, with the remedy).
void require_gpu_kernels(const ModelGraph& graph, const Target& target);

/// Moves SelectOutputs up through token-wise operations, so that whatever only the requested rows
/// need is computed for those alone. Attention, convolution and the delta rule keep every row, and
/// so does what feeds them.
ModelGraph select_outputs(const ModelGraph& graph, std::vector<Decision>& decisions);

/// Covers the graph's nodes with kernels: projections that read the same value in one GEMM,
/// epilogues, QK-norm with RoPE and the cache's append, and so on. Tiles, cache types and paths
/// stay at the specs' defaults. Throws Error (`failed`) naming a node that no kernel computes.
Program fuse(const ModelGraph& graph);

/// Sets tiles, the attention path and the cache's type in the specs, for a GPU by choose_cuda.
void choose(Program& program, const PlanOptions& options, const Target& target);

/// The same for a GPU, and what differs there: f16 operands between kernels, a GLU's gate and up as
/// one packed weight, f16 queries and attention's scratch, kernels by the number of tokens. Throws
/// Error
/// (`failed`) naming the launch that no GPU kernel computes.
void choose_cuda(Program& program, const PlanOptions& options, const Target& target);

/// Rows up to which GEMMs keep their own kernels in fast mode. Where weights decode before each
/// product, what cuBLASLt gains on the rows must pay for that.
inline constexpr uint32_t few_rows_of_kept = 64, few_rows_of_decoded = 256;

/// Whether cuBLASLt may compute a GEMM's launches of more than `few_rows` rows: in fast mode (else
/// `few_rows` is 0), where there are such launches and the rows fit the library's alignment.
bool library_runs(const spec::GemmSpec& gemm, uint32_t most_rows, uint32_t few_rows);

/// Fast mode on a GPU: puts the steps of cuBLASLt's route beside every GEMM that it may compute,
/// and lists each as relaxed. Changes nothing in exact mode.
void relax(Program& program, const PlanOptions& options);

/// A GEMM may add to its residual in place: where nothing reads the residual afterwards, its buffer
/// becomes the output's, which keeps the residual stream in one place. A second time it changes
/// nothing.
void add_residuals_in_place(Program& program);

/// Shares activation bytes by liveness, sizes the state and the weights, and sets every offset.
void lay_out(Program& program, const Sizes& sizes, const Target& target);

/// Appends decisions that differ only in their layer as one: "blk.0-29 attn_q".
class LayerDecisions {
 public:
  void add(int32_t layer, std::string subject, std::string choice, std::string reason);
  void append_to(std::vector<Decision>& decisions) const;

 private:
  struct Row {
    Decision decision;
    std::vector<int32_t> layers;
  };
  std::vector<Row> rows_;
};

/// make_plan; a GPU plan's kernels may do without their keys (for accounts of many plans).
Plan build_plan(const ModelGraph& graph, const PlanOptions& options, const Target& target,
                bool keys);

/// The part of a node's name after its layer: "attn_q" of "blk.3.attn_q".
std::string_view short_name(std::string_view node_name);

}  // namespace quern::passes
