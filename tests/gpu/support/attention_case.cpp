#include "tests/gpu/support/attention_case.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "models/quant/quant_type.h"

namespace quern::test {

using spec::AttentionPath;
using spec::AttentionSpec;
using spec::KvType;

AttentionSpec flash_spec(uint32_t head_dim) {
  return {.n_head = 8,
          .n_head_kv = 2,
          .head_dim = head_dim,
          .value_dim = head_dim,
          .q_row_width = 8 * head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .kv = KvType::f16,
          .block_keys = head_dim > 128 ? 64u : 128u,
          .segment_keys = head_dim > 128 ? 2048u : 1024u,
          .tier = spec::Tier::mma};
}

AttentionSpec decode_of(AttentionSpec s) {
  s.decode = 1;
  return s;
}

AttentionSpec wave_spec(uint32_t head_dim) {
  AttentionSpec s = flash_spec(head_dim);
  s.path = AttentionPath::wave;
  s.kv = KvType::f32;
  s.q_row_width = 8 * head_dim + 24;
  s.q_offset = 8;
  return s;
}

float RandomNormal::operator()() {
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    sum += static_cast<float>(state_ >> 40) * 0x1p-24f;
  }
  return (sum - 2.0f) * 1.7320508f;
}

namespace {

/// Encodes a row for the cache; `values` becomes what the cache holds.
void encode_row(KvType type, std::byte* row, float* values, uint32_t dim) {
  if (type == KvType::f32) {
    std::memcpy(row, values, dim * 4);
  } else if (type == KvType::q8_0) {
    for (uint32_t block = 0; block < (dim + 31) / 32; ++block) {
      const uint32_t first = block * 32, count = std::min(32u, dim - first);
      std::byte* at = row + block * 34;
      float top = 0;
      for (uint32_t i = 0; i < count; ++i) top = std::max(top, std::abs(values[first + i]));
      const uint16_t bits = f32_to_f16(top / 127);
      std::memcpy(at + 32, &bits, 2);
      const float d = f16_to_f32(bits);
      for (uint32_t i = 0; i < count; ++i) {
        const auto code =
            static_cast<int8_t>(std::clamp(std::lround(values[first + i] / d), -127l, 127l));
        at[i] = static_cast<std::byte>(code);
        values[first + i] = d * static_cast<float>(code);
      }
    }
  } else {
    for (uint32_t i = 0; i < dim; ++i) {
      const uint16_t bits = type == KvType::f16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
      std::memcpy(row + i * 2, &bits, 2);
      values[i] = type == KvType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
  }
}

}  // namespace

AttentionCase::AttentionCase(const AttentionSpec& spec, uint32_t start, uint32_t tokens)
    : s_(spec),
      start_(start),
      tokens_(tokens),
      capacity_((start + tokens + 127) / 64 * 64),
      width_(spec.n_head * spec.value_dim) {
  RandomNormal random(start + tokens + spec.head_dim);
  std::vector<std::byte> bytes;
  make_cache(bytes, k_, s_.head_dim, random);
  k_cache_.emplace(bytes);
  make_cache(bytes, v_, s_.value_dim, random);
  v_cache_.emplace(bytes);

  // Queries of standard deviation 1.5: scores spread enough that a few keys matter.
  std::vector<float> rows(static_cast<size_t>(tokens) * s_.q_row_width, std::nanf(""));
  std::vector<uint16_t> halves(static_cast<size_t>(tokens) * s_.n_head * s_.head_dim);
  q_.resize(halves.size());
  const uint32_t heads = s_.n_head * s_.head_dim;
  for (size_t i = 0; i < q_.size(); ++i) {
    const float v = random() * 1.5f;
    halves[i] = f32_to_f16(v);
    q_[i] = s_.path == AttentionPath::wave ? v : f16_to_f32(halves[i]);
    rows[i / heads * s_.q_row_width + s_.q_offset + i % heads] = q_[i];
  }
  if (s_.path == AttentionPath::wave) {
    q32_.emplace(rows);
  } else {
    q16_.emplace(halves);
  }
  if (s_.gate != 0) {
    gate_.resize(static_cast<size_t>(tokens) * s_.gate_row_width);
    for (float& v : gate_) v = random() * 2;
    gate_rows_.emplace(gate_);
  }
}

void AttentionCase::make_cache(std::vector<std::byte>& bytes, std::vector<float>& values,
                               uint32_t dim, RandomNormal& random) const {
  const size_t row = spec::kv_row_bytes(s_.kv, dim), held = start_ + tokens_;
  bytes.assign(static_cast<size_t>(s_.n_head_kv) * capacity_ * row, std::byte{0xff});
  values.resize(s_.n_head_kv * held * dim);
  for (float& v : values) v = random();
  for (size_t head = 0; head < s_.n_head_kv; ++head) {
    for (size_t position = 0; position < held; ++position) {
      encode_row(s_.kv, bytes.data() + (head * capacity_ + position) * row,
                 values.data() + (head * held + position) * dim, dim);
    }
  }
}

cuda::KernelArgs AttentionCase::args_for(uint32_t first_token, Array<uint16_t>& out,
                                         uint32_t operand_rows) const {
  cuda::KernelArgs args = plain_args();
  args.buffers[0] =
      q32_ ? static_cast<void*>(q32_->pointer() + static_cast<size_t>(first_token) * s_.q_row_width)
           : q16_->pointer() + static_cast<size_t>(first_token) * s_.n_head * s_.head_dim;
  args.buffers[1] = k_cache_->pointer();
  args.buffers[2] = v_cache_->pointer();
  args.buffers[3] = out.pointer();
  if (gate_rows_)
    args.buffers[4] = gate_rows_->pointer() + static_cast<size_t>(first_token) * s_.gate_row_width;
  args.operand_rows = operand_rows;
  args.kv_capacity = capacity_;
  return args;
}

void AttentionCase::launch(Kernel& kernel, const cuda::KernelArgs& args,
                           const spec::LaunchShape& shape, uint32_t first, uint32_t tokens) const {
  kernel.run(args,
             {.n_tokens = tokens, .start_position = start_ + first, .n_outputs = 0, .reserved = 0},
             shape.grid_x, shape.grid_y);
}

void AttentionCase::take(const Array<uint16_t>& operand, uint32_t operand_rows, uint32_t first,
                         uint32_t tokens, std::vector<uint16_t>& out) {
  const std::vector<uint16_t> halves = operand.download();
  for (uint32_t t = 0; t < tokens; ++t) {
    for (uint32_t i = 0; i < width_; ++i) {
      out[static_cast<size_t>(first + t) * width_ + i] = halves[operand_index(i, t, operand_rows)];
    }
    for (uint32_t i = width_; i < (width_ + 63) / 64 * 64; ++i) {
      EXPECT_EQ(halves[operand_index(i, t, operand_rows)], 0)
          << "padding of the operand, token " << first + t;
    }
  }
}

std::vector<uint16_t> AttentionCase::run(const std::vector<uint32_t>& chunks,
                                         const CompiledKernel* mutant, uint32_t scratch_bytes) {
  const bool wave = s_.path == AttentionPath::wave;
  auto shape_of = [&](uint32_t tokens) {
    return wave ? attention_wave_shape(s_, tokens, capacity_, scratch_bytes)
                : attention_prefill_shape(s_, tokens);
  };
  std::optional<Kernel> kernel;
  if (mutant != nullptr) {
    kernel.emplace(*mutant, shape_of(1));
  } else {
    kernel.emplace(s_, shape_of(1));
  }
  std::vector<uint16_t> out(static_cast<size_t>(tokens_) * width_);
  Array<uint32_t> saturated(std::vector<uint32_t>{0});
  uint32_t first = 0;
  for (const uint32_t tokens : chunks) {
    const uint32_t operand_rows = (tokens + 7) / 8 * 8;
    Array<uint16_t> operand(static_cast<size_t>((width_ + 63) / 64 * 64) * operand_rows);
    Array<float> scratch(wave ? spec::attention_wave_floats(capacity_, scratch_bytes)
                              : static_cast<size_t>(tokens) * width_);
    operand.poison();
    scratch.poison();
    cuda::KernelArgs args = args_for(first, operand, operand_rows);
    args.buffers[5] = scratch.pointer();
    args.saturated = saturated.pointer();
    launch(*kernel, args, shape_of(tokens), first, tokens);
    take(operand, operand_rows, first, tokens, out);
    first += tokens;
  }
  EXPECT_EQ(first, tokens_);
  saturated_count_ = saturated.download()[0];
  return out;
}

std::vector<uint16_t> AttentionCase::run_decode(const CompiledKernel* mutant) {
  const AttentionSpec s = decode_of(s_);
  const spec::LaunchShape shape = attention_decode_shape(s, capacity_);
  std::optional<Kernel> kernel;
  if (mutant != nullptr) {
    kernel.emplace(*mutant, shape);
  } else {
    kernel.emplace(s, shape);
  }
  std::vector<uint16_t> out(static_cast<size_t>(tokens_) * width_);
  Array<float> partial(attention_partial_floats(s, capacity_));
  Array<uint32_t> counters(std::vector<uint32_t>(s.n_head_kv, 0));
  Array<uint16_t> operand(static_cast<size_t>((width_ + 63) / 64 * 64) * 8);
  for (uint32_t token = 0; token < tokens_; ++token) {
    operand.poison();
    partial.poison();
    cuda::KernelArgs args = args_for(token, operand, 8);
    args.buffers[5] = partial.pointer();
    args.buffers[6] = counters.pointer();
    launch(*kernel, args, shape, token, 1);
    take(operand, 8, token, 1, out);
  }
  for (const uint32_t counter : counters.download())
    EXPECT_EQ(counter, 0u) << "the counters are zero between launches";
  return out;
}

void AttentionCase::exact(uint32_t token, uint32_t head, std::vector<double>& out) const {
  const size_t held = start_ + tokens_, kv_head = head / (s_.n_head / s_.n_head_kv),
               position = start_ + token;
  const size_t first = s_.window != 0 && position + 1 > s_.window ? position + 1 - s_.window : 0;
  const float* q = q_.data() + (static_cast<size_t>(token) * s_.n_head + head) * s_.head_dim;
  std::vector<double> scores;
  double top = -1e300, sum = 0;
  for (size_t key = first; key <= position; ++key) {
    const float* k = k_.data() + (kv_head * held + key) * s_.head_dim;
    double score = 0;
    for (uint32_t d = 0; d < s_.head_dim; ++d) score += static_cast<double>(q[d]) * k[d];
    score *= s_.scale;
    if (s_.softcap > 0) score = s_.softcap * std::tanh(score / s_.softcap);
    scores.push_back(score);
    top = std::max(top, score);
  }
  out.assign(s_.value_dim, 0);
  for (size_t key = first; key <= position; ++key) {
    const double p = std::exp(scores[key - first] - top);
    const float* v = v_.data() + (kv_head * held + key) * s_.value_dim;
    for (uint32_t d = 0; d < s_.value_dim; ++d) out[d] += p * v[d];
    sum += p;
  }
  for (uint32_t d = 0; d < s_.value_dim; ++d) {
    out[d] /= sum;
    if (s_.gate == 0) continue;
    const double g = gate_[static_cast<size_t>(token) * s_.gate_row_width + s_.gate_offset +
                           head * s_.value_dim + d];
    out[d] /= 1 + std::exp(-g);
  }
}

double AttentionCase::error(const std::vector<uint16_t>& out, uint32_t most_tokens) const {
  std::set<uint32_t> checked{0, tokens_ - 1};
  for (uint32_t i = 1; i + 1 < most_tokens; ++i) checked.insert(i * tokens_ / most_tokens);
  double worst = 0, squares = 0;
  size_t count = 0;
  std::vector<double> row;
  for (const uint32_t token : checked) {
    for (uint32_t head = 0; head < s_.n_head; ++head) {
      exact(token, head, row);
      for (uint32_t d = 0; d < s_.value_dim; ++d) {
        const double got =
            f16_to_f32(out[static_cast<size_t>(token) * width_ + head * s_.value_dim + d]);
        const double ulp = std::max(std::abs(row[d]) * 0x1p-11, 0x1p-25);
        const double e = std::abs(got - row[d]) - ulp;
        worst = std::isfinite(e) ? std::max(worst, e) : 1e30;
        squares += row[d] * row[d];
        ++count;
      }
    }
  }
  return worst / std::sqrt(squares / static_cast<double>(count));
}

}  // namespace quern::test
