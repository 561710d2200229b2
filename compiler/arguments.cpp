#include "compiler/arguments.h"

#include <algorithm>
#include <limits>

#include "compiler/device_sizes.h"

namespace quern {

namespace {

constexpr uint64_t f32_bytes = 4, f16_bytes = 2, i32_bytes = 4;

uint64_t floats(uint64_t count) {
  return saturating_mul(count, f32_bytes);
}
uint64_t product(uint64_t a, uint64_t b, uint64_t c) {
  return saturating_mul(saturating_mul(a, b), c);
}

Argument null(std::string_view name) {
  return {.name = name};
}

Argument rows(std::string_view name, Access access, uint64_t bytes_per_row) {
  return {.name = name,
          .kind = BufferKind::activation,
          .access = access,
          .bytes_per_row = bytes_per_row};
}
Argument read_rows(std::string_view name, uint64_t width) {
  return rows(name, Access::read, floats(width));
}
Argument write_rows(std::string_view name, uint64_t width) {
  return rows(name, Access::write, floats(width));
}

Argument operand(std::string_view name, Access access, uint64_t width) {
  Argument argument = rows(name, access, operand_row_bytes(width));
  argument.activation = ActivationForm::operand;
  return argument;
}

Argument weight(std::string_view name, WeightForm form, spec::QuantType type, uint64_t k,
                uint64_t n_rows, uint64_t experts = 1) {
  return {.name = name,
          .kind = BufferKind::weight,
          .form = form,
          .type = type,
          .k = k,
          .rows = n_rows,
          .experts = experts};
}
Argument vector(std::string_view name, uint64_t size) {
  return weight(name, WeightForm::vector, spec::QuantType::f32, 0, size);
}

Argument state(std::string_view name, StateKind kind, uint64_t bytes, Access access) {
  return {.name = name,
          .kind = BufferKind::state,
          .access = access,
          .fixed_bytes = bytes,
          .state = kind};
}

bool is_glu(spec::Epilogue epilogue) {
  return epilogue == spec::Epilogue::swiglu || epilogue == spec::Epilogue::gelu_glu;
}

template <size_t N>
uint64_t out_rows(const spec::RowSegment (&segments)[N], uint32_t n_segments,
                  spec::Epilogue epilogue) {
  // On the GPU gate and up are one segment.
  if (is_glu(epilogue)) return n_segments == 1 ? segments[0].rows / 2 : segments[0].rows;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < n_segments && i < N; ++i) sum += segments[i].rows;
  return sum;
}

/// Lists the arguments of each family.
struct Lister {
  const Plan& plan;

  using List = std::vector<Argument>;

  List operator()(const spec::EmbedSpec& s) const {
    Argument ids{.name = "token ids", .kind = BufferKind::tokens, .bytes_per_row = i32_bytes};
    // The table's rows are the vocabulary, which the spec does not know: 0 stands for any number.
    return {ids, weight("table", WeightForm::raw, s.type, s.width, 0), write_rows("y", s.width)};
  }
  List operator()(const spec::NormSpec& s) const {
    const bool operands = s.tier != spec::Tier::cpu && s.residual == 0;
    return {read_rows("x", s.width), vector("w", s.group),
            operands ? operand("y", Access::write, s.width) : write_rows("y", s.width),
            s.residual != 0 ? read_rows("residual", s.width) : null("residual"),
            s.gate != 0 ? read_rows("z", s.z_row_width) : null("z")};
  }
  List operator()(const spec::GatherSpec& s) const {
    const bool operands = s.operand != 0;
    Argument x = operands ? operand("x", Access::read, s.width) : read_rows("x", s.width);
    x.token_rows = true;
    return {x,
            {.name = "index", .kind = BufferKind::outputs, .bytes_per_row = i32_bytes},
            operands ? operand("y", Access::write, s.width) : write_rows("y", s.width)};
  }
  List operator()(const spec::AddSpec& s) const {
    const bool gated = s.gate_width != 0;
    return {read_rows("a", s.width), read_rows("b", s.width), write_rows("y", s.width),
            gated ? read_rows("x", s.gate_width) : null("x"),
            gated ? vector("g", s.gate_width) : null("g")};
  }
  List operator()(const spec::GemmSpec& s) const {
    const uint64_t out = out_rows(s.segments, s.n_segments, s.epilogue);
    const bool gpu = s.tier != spec::Tier::cpu;
    List list = {
        gpu ? operand("x", Access::read, s.k) : read_rows("x", s.k),
        gpu && is_glu(s.epilogue) ? operand("y", Access::write, out) : write_rows("y", out),
        s.epilogue == spec::Epilogue::residual ? read_rows("residual", out) : null("residual")};
    for (uint32_t i = 0; i < s.n_segments && i < spec::GemmSpec::max_segments; ++i) {
      list.push_back(
          weight("weight", WeightForm::packed, s.segments[i].type, s.k, s.segments[i].rows));
      list.back().glu = gpu && is_glu(s.epilogue);
    }
    for (uint32_t i = 0; i < s.n_segments && i < spec::GemmSpec::max_segments; ++i) {
      list.push_back((s.bias >> i & 1u) != 0 ? vector("bias", s.segments[i].rows) : null("bias"));
    }
    return list;
  }
  List operator()(const spec::QkvPostSpec& s) const {
    Argument table = null("rope table");
    if (s.rope != spec::RopePairing::none) {
      table = {.name = "rope table",
               .kind = BufferKind::rope,
               .bytes_per_row = floats(s.n_rot),
               .rows = s.n_rot};
    }
    const bool per_head = s.qk_norm == spec::QkNorm::per_head;
    const auto norm = [&](std::string_view name, uint64_t heads) {
      if (s.qk_norm == spec::QkNorm::none) return null(name);
      return vector(name, saturating_mul(per_head ? 1 : heads, s.head_dim));
    };
    List list = {rows("qkv", Access::update, floats(s.row_width)),
                 table,
                 norm("q norm", s.n_head),
                 norm("k norm", s.n_head_kv),
                 state("K cache", StateKind::key_cache, cache_bytes(s.kv, s.n_head_kv, s.head_dim),
                       Access::update),
                 state("V cache", StateKind::value_cache,
                       cache_bytes(s.kv, s.n_head_kv, s.value_dim), Access::update)};
    if (s.tier == spec::Tier::cpu) return list;
    // For flash attention the queries leave as f16 here; for wave attention they stay in place.
    list.push_back(rows("q", Access::write, product(s.n_head, s.head_dim, f16_bytes)));
    list.back().optional = true;
    return list;
  }
  List operator()(const spec::AttentionSpec& s) const {
    const bool gpu = s.tier != spec::Tier::cpu, flash = s.path == spec::AttentionPath::flash;
    List list = {gpu && flash ? rows("q", Access::read, product(s.n_head, s.head_dim, f16_bytes))
                              : read_rows("q", s.q_row_width),
                 state("K cache", StateKind::key_cache, cache_bytes(s.kv, s.n_head_kv, s.head_dim),
                       Access::read),
                 state("V cache", StateKind::value_cache,
                       cache_bytes(s.kv, s.n_head_kv, s.value_dim), Access::read),
                 gpu ? operand("out", Access::write, saturating_mul(s.n_head, s.value_dim))
                     : rows("out", Access::write, product(s.n_head, s.value_dim, f32_bytes)),
                 s.gate != 0 ? read_rows("gate", s.gate_row_width) : null("gate")};
    if (!gpu) return list;
    Argument scratch = rows("scratch", Access::write, 0);
    scratch.fixed_bytes = attention_scratch_bytes(s, plan.options.chunk, plan.options.context);
    list.push_back(scratch);
    Argument counters = flash ? rows("counters", Access::update, 0) : null("counters");
    counters.activation = ActivationForm::counters;
    counters.fixed_bytes = flash ? uint64_t{s.n_head_kv} * sizeof(uint32_t) : 0;
    list.push_back(counters);
    return list;
  }
  List operator()(const spec::ConvSpec& s) const {
    const uint64_t kept = s.kernel == 0 ? 0 : s.kernel - 1;
    return {
        read_rows("u", s.row_width), vector("w", saturating_mul(s.channels, s.kernel)),
        write_rows("y", s.channels),
        state("conv state", StateKind::conv, product(kept, s.channels, f32_bytes), Access::update)};
  }
  List operator()(const spec::DeltaSpec& s) const {
    const uint64_t heads = saturating_add(2 * uint64_t{s.n_k_heads}, s.n_v_heads);
    return {rows("x", Access::read, product(heads, s.dim, f32_bytes)),
            read_rows("ab", s.ab_row_width),
            vector("ssm_a", s.n_v_heads),
            vector("dt_bias", s.n_v_heads),
            rows("o", Access::write, product(s.n_v_heads, s.dim, f32_bytes)),
            state("recurrent state", StateKind::recurrent,
                  floats(product(s.n_v_heads, s.dim, s.dim)), Access::update)};
  }
  List operator()(const spec::RouterSpec& s) const {
    return {read_rows("x", s.k), weight("router", WeightForm::packed, s.type, s.k, s.n_expert),
            rows("ids", Access::write, i32_bytes * s.n_used), write_rows("weights", s.n_used),
            write_rows("logits", s.n_expert)};
  }
  List operator()(const spec::GroupSpec& s) const {
    Argument offsets = rows("offsets", Access::write, 0);
    offsets.fixed_bytes = i32_bytes * (uint64_t{s.n_expert} + 1);
    return {rows("ids", Access::read, i32_bytes * s.n_used), offsets,
            rows("pairs", Access::write, i32_bytes * s.n_used)};
  }
  List operator()(const spec::ExpertsSpec& s) const {
    const uint64_t out = out_rows(s.segments, s.n_segments, s.epilogue);
    Argument offsets = rows("offsets", Access::read, 0);
    offsets.fixed_bytes = i32_bytes * (uint64_t{s.n_expert} + 1);
    List list = {
        rows("x", Access::read, product(s.in_per_pair != 0 ? s.n_used : 1, s.k, f32_bytes)),
        rows("y", Access::write, product(s.n_used, out, f32_bytes)), offsets,
        rows("pairs", Access::read, i32_bytes * s.n_used)};
    for (uint32_t i = 0; i < s.n_segments && i < 2; ++i) {
      list.push_back(weight("weight", WeightForm::packed, s.segments[i].type, s.k,
                            s.segments[i].rows, s.n_expert));
    }
    return list;
  }
  List operator()(const spec::CombineSpec& s) const {
    return {rows("experts' rows", Access::read, product(s.n_used, s.width, f32_bytes)),
            read_rows("weights", s.n_used), write_rows("y", s.width),
            s.residual != 0 ? read_rows("residual", s.width) : null("residual")};
  }
  List operator()(const spec::RepackSpec&) const { return {}; }
  List operator()(const spec::SelectSpec& s) const {
    Argument scratch = rows("scratch", Access::write, 0);
    scratch.fixed_bytes = spec::select_scratch_bytes(s);
    Argument counters = rows("counters", Access::update, 0);
    counters.activation = ActivationForm::counters;
    counters.fixed_bytes = uint64_t{spec::select_counters(s)} * sizeof(uint32_t);
    return {{.name = "logits", .kind = BufferKind::logits, .bytes_per_row = floats(s.vocabulary)},
            {.name = "wish", .kind = BufferKind::wish},
            {.name = "candidates", .kind = BufferKind::candidates, .access = Access::write},
            scratch,
            counters};
  }

  // ---- cuBLASLt's route ----
  static uint64_t plain_row(uint64_t width) { return (width + 63) / 64 * 64 * f16_bytes; }
  static Argument plain_weights(Access access, uint64_t n_rows, uint64_t k) {
    Argument argument = rows("plain weights", access, 0);
    argument.fixed_bytes = saturating_mul(n_rows, plain_row(k));
    argument.may_be_kept = true;
    return argument;
  }
  List operator()(const spec::UnpackSpec& s) const {
    uint64_t n_rows = 0;
    List list(1);
    for (uint32_t i = 0; i < s.n_segments && i < spec::GemmSpec::max_segments; ++i) {
      list.push_back(
          weight("weight", WeightForm::packed, s.segments[i].type, s.k, s.segments[i].rows));
      list.back().glu_or_not = true;
      n_rows += s.segments[i].rows;
    }
    list[0] = plain_weights(Access::write, n_rows, s.k);
    return list;
  }
  List operator()(const spec::FlattenSpec& s) const {
    return {operand("x", Access::read, s.width),
            rows("plain x", Access::write, plain_row(s.width))};
  }
  List operator()(const spec::MatmulSpec& s) const {
    return {rows("plain x", Access::read, plain_row(s.k)), write_rows("y", s.rows),
            s.residual != 0 ? read_rows("residual", s.rows) : null("residual"),
            plain_weights(Access::read, s.rows, s.k)};
  }
  List operator()(const spec::FinishSpec& s) const {
    const bool glu = is_glu(s.epilogue);
    uint64_t n_rows = 0;
    for (uint32_t i = 0; i < s.n_segments && i < spec::GemmSpec::max_segments; ++i) {
      n_rows += s.rows[i];
    }
    List list = {
        read_rows("sums", n_rows),
        glu ? operand("y", Access::write, n_rows / 2) : write_rows("y", n_rows),
        s.epilogue == spec::Epilogue::residual ? read_rows("residual", n_rows) : null("residual")};
    const uint32_t n = std::min(s.n_segments, spec::GemmSpec::max_segments);
    list.resize(list.size() + n, null("weight"));
    for (uint32_t i = 0; i < n; ++i) {
      list.push_back((s.bias >> i & 1u) != 0 ? vector("bias", s.rows[i]) : null("bias"));
    }
    return list;
  }

 private:
  uint64_t cache_bytes(spec::KvType kv, uint32_t n_head_kv, uint32_t dim) const {
    return kv_cache_bytes(plan.target, kv, n_head_kv, dim, kv_capacity(plan.options.context));
  }
};

}  // namespace

uint64_t saturating_mul(uint64_t a, uint64_t b) {
  if (a != 0 && b > std::numeric_limits<uint64_t>::max() / a) {
    return std::numeric_limits<uint64_t>::max();
  }
  return a * b;
}

uint64_t saturating_add(uint64_t a, uint64_t b) {
  return b > std::numeric_limits<uint64_t>::max() - a ? std::numeric_limits<uint64_t>::max()
                                                      : a + b;
}

std::vector<Argument> kernel_arguments(const spec::AnySpec& spec, const Plan& plan) {
  return std::visit(Lister{plan}, spec);
}

}  // namespace quern
