// What every family demands of its spec, so that a plan read from a file cannot make a kernel that
// reads or writes outside its buffers.

#include <fmt/format.h>

#include <cmath>

#include "compiler/arguments.h"
#include "compiler/spec_names.h"
#include "models/error.h"
#include "templates/spec/gemm_launch.h"

namespace quern {

namespace {

// Far above any model, and low enough that products of two stay far from 2^64.
constexpr uint64_t max_width = 1u << 26;
constexpr uint64_t max_heads = 1u << 16;
constexpr uint64_t max_head_dim = 1u << 12;
constexpr uint64_t max_experts = 1u << 16;

struct Checker {
  std::string where;

  [[noreturn]] void refuse(std::string_view field, std::string_view reason) const {
    throw Error(ErrorKind::failed, fmt::format("{}.{}", where, field), reason,
                "write the plan again with `quern compile`");
  }
  void range(std::string_view field, uint64_t value, uint64_t least, uint64_t most) const {
    if (value < least || value > most) {
      refuse(field, fmt::format("{} is outside {} to {}", value, least, most));
    }
  }
  void flag(std::string_view field, uint32_t value) const { range(field, value, 0, 1); }
  void inside(std::string_view field, uint64_t offset, uint64_t width, uint64_t row_width) const {
    if (offset + width > row_width) {
      refuse(field,
             fmt::format("{} values at {} reach beyond a row of {}", width, offset, row_width));
    }
  }
  void whole_blocks(std::string_view field, spec::QuantType type, uint64_t k) const {
    range(field, k, 1, max_width);
    const uint32_t block = quant_traits(from_spec(type)).block_values;
    if (k % block != 0) {
      refuse(field, fmt::format("{} values are not whole {} blocks", k, spec_name(type)));
    }
  }
  void positive(std::string_view field, float value) const {
    if (!(value >= 0)) refuse(field, "is negative");
  }

  void operator()(const spec::EmbedSpec& s) const { whole_blocks("width", s.type, s.width); }
  /// Refuses what only the CPU's kernels do.
  void cpu_only(std::string_view field, spec::Tier tier, bool used) const {
    if (used && tier != spec::Tier::cpu) refuse(field, "has no GPU kernel");
  }
  void operator()(const spec::NormSpec& s) const {
    cpu_only("group", s.tier, s.group != s.width);
    cpu_only("gate", s.tier, s.gate != 0);
    range("width", s.width, 1, max_width);
    range("group", s.group, 1, s.width);
    if (s.width % s.group != 0) refuse("group", "does not divide the width");
    positive("eps", s.eps);
    flag("residual", s.residual);
    flag("gate", s.gate);
    range("z_row_width", s.z_row_width, s.gate, s.gate != 0 ? max_width : 0);
    range("z_offset", s.z_offset, 0, s.gate != 0 ? max_width : 0);
    if (s.gate != 0) inside("z_offset", s.z_offset, s.width, s.z_row_width);
  }
  void operator()(const spec::GatherSpec& s) const {
    range("width", s.width, 1, max_width);
    flag("operand", s.operand);
  }
  void operator()(const spec::AddSpec& s) const {
    range("width", s.width, 1, max_width);
    range("gate_width", s.gate_width, 0, max_width);
  }

  template <class Spec>
  void segments(const Spec& s) const {
    constexpr size_t count = std::size(decltype(s.segments){});
    range("n_segments", s.n_segments, 1, count);
    for (size_t i = 0; i < count; ++i) {
      const std::string field = fmt::format("segments[{}].rows", i);
      if (i >= s.n_segments) {
        range(field, s.segments[i].rows, 0, 0);
        continue;
      }
      range(field, s.segments[i].rows, 1, max_width);
      whole_blocks("k", s.segments[i].type, s.k);
    }
  }
  template <class Spec>
  static bool is_glu(const Spec& s) {
    return s.epilogue == spec::Epilogue::swiglu || s.epilogue == spec::Epilogue::gelu_glu;
  }
  template <class Spec>
  void cpu_tile(const Spec& s) const {
    if (is_glu(s) && (s.n_segments != 2 || s.segments[0].rows != s.segments[1].rows)) {
      refuse("epilogue", "a gated unit needs two segments of equal rows");
    }
    range("tile_tokens", s.tile_tokens, 1, 64);
    range("tile_cells", s.tile_cells, 1, 64);
    range("k_block", s.k_block, 16, 1u << 16);
    range("gemv_max_tokens", s.gemv_max_tokens, 0, 64);
  }
  template <class Spec>
  void gpu_cells(const Spec& s) const {
    for (uint32_t i = 0; i < s.n_segments; ++i) {
      if (spec::gpu_cell_bytes(s.segments[i].type) == 0) {
        refuse(fmt::format("segments[{}].type", i), "has no GPU cells");
      }
    }
  }
  template <class Spec>
  void gpu_glu(const Spec& s, uint32_t rows) const {
    if (s.n_segments != 1 || rows % 16 != 0) {
      refuse("epilogue", "a gated unit needs one segment of gate and up rows by 8");
    }
    if (s.bias != 0) refuse("bias", "gated units have none on the GPU");
  }
  void gpu_tile(const spec::GemmSpec& s) const {
    gpu_cells(s);
    if (is_glu(s)) gpu_glu(s, s.segments[0].rows);
    const bool decode = s.tile_tokens == 8;
    if (!decode && s.tile_tokens != 64 && s.tile_tokens != 128 && s.tile_tokens != 256) {
      refuse("tile_tokens", "is none of 8, 64, 128 and 256");
    }
    range("tile_cells", s.tile_cells, decode ? 1 : 8, decode ? 32 : 8);
    range("stages", s.stages, 2, 16);
    range("shared_groups", s.shared_groups, 0, decode ? s.tile_cells : 0);
    range("sharers", s.sharers, s.shared_groups > 0 ? 2 : 0, s.shared_groups > 0 ? 16 : 0);
    if (s.shared_groups > 0 ? s.turn_slabs != 4 && s.turn_slabs != 8 : s.turn_slabs != 0) {
      refuse("turn_slabs", "is neither 4 nor 8, or 0 where no row group is shared");
    }
    if (decode && spec::launch_shape(s, 1).threads > 1024) {
      refuse("tile_cells", "makes blocks of more than 1024 threads");
    }
  }
  void operator()(const spec::GemmSpec& s) const {
    segments(s);
    s.tier == spec::Tier::cpu ? cpu_tile(s) : gpu_tile(s);
    range("bias", s.bias, 0, (1u << s.n_segments) - 1);
    positive("softcap", s.softcap);
  }
  void operator()(const spec::ExpertsSpec& s) const {
    segments(s);
    cpu_tile(s);
    if (s.epilogue == spec::Epilogue::residual) refuse("epilogue", "experts have no residual");
    range("n_expert", s.n_expert, 1, max_experts);
    range("n_used", s.n_used, 1, s.n_expert);
    flag("in_per_pair", s.in_per_pair);
  }

  template <class Spec>
  void heads(const Spec& s) const {
    range("n_head", s.n_head, 1, max_heads);
    range("n_head_kv", s.n_head_kv, 1, s.n_head);
    if (s.n_head % s.n_head_kv != 0) refuse("n_head_kv", "does not divide n_head");
    range("head_dim", s.head_dim, 1, max_head_dim);
    range("value_dim", s.value_dim, 1, max_head_dim);
  }
  void operator()(const spec::QkvPostSpec& s) const {
    heads(s);
    range("row_width", s.row_width, 1, max_width);
    inside("q_offset", s.q_offset, uint64_t{s.n_head} * s.head_dim, s.row_width);
    inside("k_offset", s.k_offset, uint64_t{s.n_head_kv} * s.head_dim, s.row_width);
    inside("v_offset", s.v_offset, uint64_t{s.n_head_kv} * s.value_dim, s.row_width);
    positive("eps", s.eps);
    range("n_rot", s.n_rot, s.rope == spec::RopePairing::none ? 0 : 2,
          s.rope == spec::RopePairing::none ? 0 : s.head_dim);
    if (s.n_rot % 2 != 0) refuse("n_rot", "is odd");
  }
  void operator()(const spec::AttentionSpec& s) const {
    heads(s);
    range("q_row_width", s.q_row_width, 1, max_width);
    inside("q_offset", s.q_offset, uint64_t{s.n_head} * s.head_dim, s.q_row_width);
    positive("softcap", s.softcap);
    flag("gate", s.gate);
    range("gate_row_width", s.gate_row_width, s.gate, s.gate != 0 ? max_width : 0);
    range("gate_offset", s.gate_offset, 0, s.gate != 0 ? max_width : 0);
    if (s.gate != 0) {
      inside("gate_offset", s.gate_offset, uint64_t{s.n_head} * s.value_dim, s.gate_row_width);
    }
    range("block_keys", s.block_keys, 1, 1u << 16);
    range("segment_keys", s.segment_keys, s.block_keys, 1u << 24);
    if (s.block_keys % 16 != 0) refuse("block_keys", "are not a multiple of 16");
    if (s.segment_keys % s.block_keys != 0) refuse("segment_keys", "are not whole blocks");
    range("decode", s.decode, 0, s.tier == spec::Tier::cpu ? 0 : 1);
    range("warps", s.warps, 0, s.tier == spec::Tier::cpu ? 0 : 16);
    if (s.tier != spec::Tier::cpu && s.path == spec::AttentionPath::flash) gpu_flash(s);
  }
  void gpu_flash(const spec::AttentionSpec& s) const {
    if (s.head_dim % 16 != 0 || s.value_dim % 16 != 0) {
      refuse("head_dim", "is not a multiple of 16, which flash attention takes on the GPU");
    }
    range("head_dim", s.head_dim, 16, 256);
    range("value_dim", s.value_dim, 16, 256);
    range("block_keys", s.block_keys, 64, 128);
    if (s.block_keys % 64 != 0) refuse("block_keys", "are not a multiple of 64");
    if (s.n_head / s.n_head_kv > 16) refuse("n_head_kv", "has more than 16 query heads each");
    if (s.kv == spec::KvType::f32) refuse("kv", "is f32, which flash attention does not read");
  }
  void operator()(const spec::ConvSpec& s) const {
    range("channels", s.channels, 1, max_width);
    range("kernel", s.kernel, 1, 64);
    range("row_width", s.row_width, 1, max_width);
    inside("offset", s.offset, s.channels, s.row_width);
  }
  void operator()(const spec::DeltaSpec& s) const {
    range("n_k_heads", s.n_k_heads, 1, max_heads);
    range("n_v_heads", s.n_v_heads, s.n_k_heads, max_heads);
    if (s.n_v_heads % s.n_k_heads != 0) refuse("n_k_heads", "does not divide n_v_heads");
    range("dim", s.dim, 1, max_head_dim);
    positive("eps", s.eps);
    range("ab_row_width", s.ab_row_width, 1, max_width);
    inside("a_offset", s.a_offset, s.n_v_heads, s.ab_row_width);
    inside("b_offset", s.b_offset, s.n_v_heads, s.ab_row_width);
  }
  void operator()(const spec::RouterSpec& s) const {
    whole_blocks("k", s.type, s.k);
    range("n_expert", s.n_expert, 1, max_experts);
    range("n_used", s.n_used, 1, s.n_expert);
    flag("renormalise", s.renormalise);
  }
  void operator()(const spec::GroupSpec& s) const {
    range("n_expert", s.n_expert, 1, max_experts);
    range("n_used", s.n_used, 1, s.n_expert);
  }
  void operator()(const spec::CombineSpec& s) const {
    range("width", s.width, 1, max_width);
    range("n_used", s.n_used, 1, max_experts);
    flag("residual", s.residual);
  }
  void operator()(const spec::RepackSpec& s) const { whole_blocks("k", s.type, s.k); }

  void operator()(const spec::UnpackSpec& s) const {
    segments(s);
    gpu_cells(s);
  }
  void operator()(const spec::FlattenSpec& s) const { range("width", s.width, 1, max_width); }
  void operator()(const spec::MatmulSpec& s) const {
    range("rows", s.rows, 8, spec::GemmSpec::max_segments * max_width);
    if (s.rows % 8 != 0) refuse("rows", "are not a multiple of 8, as cuBLASLt's are");
    range("k", s.k, 64, max_width);
    if (s.k % 64 != 0) refuse("k", "is not whole slabs of 64");
    flag("residual", s.residual);
  }
  void operator()(const spec::FinishSpec& s) const {
    constexpr uint32_t most = spec::GemmSpec::max_segments;
    range("n_segments", s.n_segments, 1, most);
    for (uint32_t i = 0; i < most; ++i) {
      range(fmt::format("rows[{}]", i), s.rows[i], i < s.n_segments ? 1 : 0,
            i < s.n_segments ? max_width : 0);
    }
    if (is_glu(s)) gpu_glu(s, s.rows[0]);
    range("bias", s.bias, 0, (1u << s.n_segments) - 1);
    positive("softcap", s.softcap);
  }
  void operator()(const spec::SelectSpec& s) const {
    range("vocabulary", s.vocabulary, 1, max_width);
    range("count", s.count, 1, spec::select_most_count);
  }
};

}  // namespace

void check_spec(const spec::AnySpec& spec, std::string_view where) {
  std::visit(Checker{std::string(where)}, spec);
}

}  // namespace quern
