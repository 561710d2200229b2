#include "tests/support/graph_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <string>

#include "models/quant/quant_type.h"

namespace quern::test {
namespace {

/// Rows of values: one a token, or one a requested output.
struct Matrix {
  size_t rows = 0;
  size_t width = 0;
  std::vector<double> data;

  Matrix() = default;
  Matrix(size_t n_rows, size_t n_width) : rows(n_rows), width(n_width), data(n_rows * n_width) {}
  double* row(size_t r) { return data.data() + r * width; }
  const double* row(size_t r) const { return data.data() + r * width; }
};

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double silu(double x) {
  return x * sigmoid(x);
}
double softplus(double x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double activate(GluActivation activation, double x) {
  return activation == GluActivation::silu ? silu(x) : gelu_tanh(x);
}

/// Eight running sums, so that the compiler may use vectors.
double dot(const float* a, const double* b, size_t n) {
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return std::accumulate(sums, sums + 8, 0.0);
}

class Interpreter {
 public:
  Interpreter(const gguf::File& file, const ModelGraph& graph, const std::vector<int32_t>& tokens,
              const std::vector<int32_t>& positions, ReferenceFaults faults)
      : file_(file),
        graph_(graph),
        tokens_(tokens),
        positions_(positions),
        faults_(faults),
        values_(graph.values.size()) {}

  Matrix run() {
    for (const Node& node : graph_.nodes) {
      node_ = &node;
      out_ = Matrix(graph_.values[node.output].selected ? positions_.size() : tokens_.size(),
                    graph_.values[node.output].width);
      std::visit([&](const auto& op) { compute(op); }, node.op);
      values_[node.output] = std::move(out_);
    }
    return values_[graph_.logits];
  }

 private:
  const Matrix& input(size_t i) const { return values_[node_->inputs[i]]; }

  const gguf::Tensor& tensor(const std::string& name) const {
    const gguf::Tensor* found = file_.find(name);
    if (found == nullptr) throw std::runtime_error("no tensor " + name);
    return *found;
  }

  /// The rows of a slice (of one expert), decoded.
  std::vector<float> decode(const WeightSlice& slice, uint64_t expert = 0) const {
    const gguf::Tensor& weight = tensor(slice.tensor);
    const size_t bytes = row_bytes(slice.type, slice.k);
    std::vector<float> rows(slice.rows * slice.k);
    for (uint64_t r = 0; r < slice.rows; ++r) {
      const uint64_t source = expert * slice.tensor_rows + slice.offset +
                              r / slice.block * slice.stride + r % slice.block;
      decode_row(slice.type, weight.data.subspan(source * bytes, bytes).data(),
                 rows.data() + r * slice.k, slice.k);
    }
    return rows;
  }

  std::vector<float> decode(const VectorRef& ref) const {
    std::vector<float> values(ref.size);
    std::memcpy(values.data(),
                tensor(ref.tensor).data.subspan(ref.offset * sizeof(float), ref.size * 4).data(),
                ref.size * sizeof(float));
    return values;
  }

  static void multiply(const std::vector<float>& weight, const Matrix& x, Matrix& y) {
    for (size_t t = 0; t < x.rows; ++t) {
      for (size_t r = 0; r < y.width; ++r) {
        y.row(t)[r] = dot(weight.data() + r * x.width, x.row(t), x.width);
      }
    }
  }

  void compute(const Embed& op) {
    const std::vector<float> table = decode(op.table);
    for (size_t t = 0; t < out_.rows; ++t) {
      for (size_t i = 0; i < out_.width; ++i) {
        out_.row(t)[i] = double{op.scale} * table[static_cast<size_t>(tokens_[t]) * out_.width + i];
      }
    }
  }

  Matrix rms_norm(const VectorRef& ref, uint32_t group, double eps) const {
    const std::vector<float> weight = decode(ref);
    Matrix y = input(0);
    for (size_t begin = 0; begin < y.data.size(); begin += group) {
      double* x = y.data.data() + begin;
      const double squares = std::inner_product(x, x + group, x, 0.0);
      const double factor = 1 / std::sqrt(squares / group + eps);
      for (size_t i = 0; i < group; ++i) x[i] *= factor * weight[(begin + i) % weight.size()];
    }
    return y;
  }

  void compute(const RmsNorm& op) { out_ = rms_norm(op.weight, op.group, op.eps); }

  void compute(const GatedRmsNorm& op) {
    out_ = rms_norm(op.weight, op.group, op.eps);
    for (size_t i = 0; i < out_.data.size(); ++i) out_.data[i] *= silu(input(1).data[i]);
  }

  void compute(const Linear& op) {
    multiply(decode(op.weight), input(0), out_);
    if (!op.bias.present()) return;
    const std::vector<float> bias = decode(op.bias);
    for (size_t i = 0; i < out_.data.size(); ++i) out_.data[i] += bias[i % out_.width];
  }

  void compute(const ApplyRope& op) {
    const Rope& rope = graph_.ropes[op.rope];
    const uint32_t half = rope.n_rot / 2;
    out_ = input(0);
    for (size_t t = 0; t < out_.rows; ++t) {
      for (size_t head = 0; head < out_.width / op.head_dim; ++head) {
        double* x = out_.row(t) + head * op.head_dim;
        for (uint32_t i = 0; i < half; ++i) {
          const double angle = static_cast<double>(t) * rope.inverse_frequency[i];
          const double c = std::cos(angle) * rope.mscale;
          const double s = std::sin(angle) * rope.mscale;
          double& a = x[rope.kind == RopeKind::norm ? 2 * i : i];
          double& b = x[rope.kind == RopeKind::norm ? 2 * i + 1 : i + half];
          const double first = a;
          a = first * c - b * s;
          b = first * s + b * c;
        }
      }
    }
  }

  void compute(const Attention& op) {
    const Matrix& q = input(0);
    const Matrix& k = input(1);
    const Matrix& v = input(2);
    std::vector<double> scores(q.rows);
    for (size_t t = 0; t < q.rows; ++t) {
      for (uint32_t head = 0; head < op.n_head; ++head) {
        const uint32_t kv = head / (op.n_head / op.n_head_kv);
        const double* query = q.row(t) + head * op.head_dim;
        const size_t first = op.window != 0 && t + 1 > op.window ? t + 1 - op.window : 0;
        double largest = -std::numeric_limits<double>::infinity();
        for (size_t j = first; j <= t; ++j) {
          const double* key = k.row(j) + kv * op.head_dim;
          double score = op.scale * std::inner_product(query, query + op.head_dim, key, 0.0);
          if (op.softcap != 0) score = op.softcap * std::tanh(score / op.softcap);
          scores[j] = score;
          largest = std::max(largest, score);
        }
        double sum = 0;
        double* out = out_.row(t) + head * op.value_dim;
        for (size_t j = first; j <= t; ++j) {
          const double p = std::exp(scores[j] - largest);
          sum += p;
          const double* value = v.row(j) + kv * op.value_dim;
          for (uint32_t i = 0; i < op.value_dim; ++i) out[i] += p * value[i];
        }
        for (uint32_t i = 0; i < op.value_dim; ++i) out[i] /= sum;
      }
    }
    if (node_->inputs.size() < 4) return;
    for (size_t i = 0; i < out_.data.size(); ++i) {
      const double gate = input(3).data[i];
      out_.data[i] *= faults_.raw_gate ? gate : sigmoid(gate);
    }
  }

  void compute(const Glu& op) {
    for (size_t i = 0; i < out_.data.size(); ++i) {
      out_.data[i] = activate(op.activation, input(0).data[i]) * input(1).data[i];
    }
  }

  void compute(const Add&) {
    std::ranges::transform(input(0).data, input(1).data, out_.data.begin(), std::plus{});
  }

  /// Row: the ids of the experts used, then their weights.
  void compute(const Route& op) {
    Matrix p(input(0).rows, op.n_expert);
    multiply(decode(op.weight), input(0), p);
    out_ = Matrix(p.rows, 2 * op.n_used);
    for (size_t t = 0; t < p.rows; ++t) {
      double* row = p.row(t);
      const double largest = *std::max_element(row, row + op.n_expert);
      double sum = 0;
      for (uint32_t e = 0; e < op.n_expert; ++e) sum += row[e] = std::exp(row[e] - largest);
      for (uint32_t e = 0; e < op.n_expert; ++e) row[e] /= sum;
      std::vector<uint32_t> order(op.n_expert);
      std::iota(order.begin(), order.end(), 0);
      // Of equal experts the one with the lower index comes first.
      std::ranges::sort(order, [&](uint32_t left, uint32_t right) {
        return row[left] != row[right] ? row[left] > row[right] : left < right;
      });
      double used = 0;
      for (uint32_t s = 0; s < op.n_used; ++s) used += row[order[s]];
      const double divisor = op.renormalise ? std::max(used, 6.103515625e-5) : 1;
      for (uint32_t s = 0; s < op.n_used; ++s) {
        out_.row(t)[s] = order[s];
        out_.row(t)[op.n_used + s] = row[order[s]] / divisor * op.weights_scale;
      }
    }
  }

  void compute(const RoutedExperts& op) {
    const Matrix& x = input(0);
    const Matrix& routing = input(1);
    for (uint32_t e = 0; e < op.n_expert; ++e) {
      const std::vector<float> gate = decode(op.gate, e);
      const std::vector<float> up = decode(op.up, e);
      const std::vector<float> down = decode(op.down, e);
      std::vector<double> hidden(op.gate.rows);
      for (size_t t = 0; t < x.rows; ++t) {
        for (uint32_t s = 0; s < op.n_used; ++s) {
          if (routing.row(t)[s] != e) continue;
          for (size_t i = 0; i < hidden.size(); ++i) {
            hidden[i] = activate(op.activation, dot(&gate[i * x.width], x.row(t), x.width)) *
                        dot(&up[i * x.width], x.row(t), x.width);
          }
          const double weight = routing.row(t)[op.n_used + s];
          for (size_t i = 0; i < out_.width; ++i) {
            out_.row(t)[i] += weight * dot(&down[i * hidden.size()], hidden.data(), hidden.size());
          }
        }
      }
    }
  }

  void compute(const AddGated& op) {
    const std::vector<float> gate = decode(op.gate);
    for (size_t t = 0; t < out_.rows; ++t) {
      const double weight = sigmoid(dot(gate.data(), input(2).row(t), gate.size()));
      for (size_t i = 0; i < out_.width; ++i) {
        out_.row(t)[i] = input(0).row(t)[i] + weight * input(1).row(t)[i];
      }
    }
  }

  void compute(const CausalConv& op) {
    const std::vector<float> taps = decode(op.weight);
    const Matrix& u = input(0);
    for (size_t t = 0; t < u.rows; ++t) {
      for (uint32_t c = 0; c < op.channels; ++c) {
        double sum = 0;
        for (uint32_t i = 0; i < op.kernel && i <= t; ++i) {
          const double x = u.row(t - i)[c];
          const bool wrong = i > 0 && faults_.convolve_past_silu;
          sum += taps[c * op.kernel + op.kernel - 1 - i] * (wrong ? silu(x) : x);
        }
        out_.row(t)[c] = silu(sum);
      }
    }
  }

  void compute(const DeltaRule& op) {
    const std::vector<float> a = decode(op.ssm_a);
    const std::vector<float> dt_bias = decode(op.dt_bias);
    const size_t d = op.dim;
    const auto normalised = [&](const double* x) {
      const double factor = 1 / std::sqrt(std::inner_product(x, x + d, x, 0.0) + double{op.eps});
      std::vector<double> y(x, x + d);
      for (double& value : y) value *= factor;
      return y;
    };
    for (uint32_t head = 0; head < op.n_v_heads; ++head) {
      const uint32_t ratio = op.n_v_heads / op.n_k_heads;
      const uint32_t k_head =
          op.head_map == DeltaHeadMap::tiled ? head % op.n_k_heads : head / ratio;
      std::vector<double> state(d * d);  // [key dimension][value dimension]
      for (size_t t = 0; t < out_.rows; ++t) {
        const double* x = input(0).row(t);
        const std::vector<double> q = normalised(x + k_head * d);
        const std::vector<double> k = normalised(x + (op.n_k_heads + k_head) * d);
        const double* v = x + (2 * op.n_k_heads + head) * d;
        const double decay = std::exp(a[head] * softplus(input(1).row(t)[head] + dt_bias[head]));
        const double beta = sigmoid(input(2).row(t)[head]);
        double* out = out_.row(t) + head * d;
        if (!faults_.decay_after_update) scale(state, decay);
        if (faults_.read_before_update) read(state, q, out);
        write(state, k, v, beta);
        if (!faults_.read_before_update) read(state, q, out);
        if (faults_.decay_after_update) scale(state, decay);
      }
    }
  }

  static void scale(std::vector<double>& state, double factor) {
    for (double& value : state) value *= factor;
  }

  /// S += k (beta (v - S^T k))^T.
  static void write(std::vector<double>& state, const std::vector<double>& k, const double* v,
                    double beta) {
    const size_t d = k.size();
    std::vector<double> delta(d);
    for (size_t i = 0; i < d; ++i) {
      for (size_t j = 0; j < d; ++j) delta[j] += k[i] * state[i * d + j];
    }
    for (size_t j = 0; j < d; ++j) delta[j] = beta * (v[j] - delta[j]);
    for (size_t i = 0; i < d; ++i) {
      for (size_t j = 0; j < d; ++j) state[i * d + j] += k[i] * delta[j];
    }
  }

  /// S^T q / sqrt(d).
  static void read(const std::vector<double>& state, const std::vector<double>& q, double* out) {
    const size_t d = q.size();
    for (size_t i = 0; i < d; ++i) {
      const double weight = q[i] / std::sqrt(static_cast<double>(d));
      for (size_t j = 0; j < d; ++j) out[j] += weight * state[i * d + j];
    }
  }

  void compute(const SelectOutputs&) {
    for (size_t r = 0; r < out_.rows; ++r) {
      std::copy_n(input(0).row(static_cast<size_t>(positions_[r])), out_.width, out_.row(r));
    }
  }

  void compute(const Softcap& op) {
    for (size_t i = 0; i < out_.data.size(); ++i) {
      out_.data[i] = op.cap * std::tanh(input(0).data[i] / op.cap);
    }
  }

  const gguf::File& file_;
  const ModelGraph& graph_;
  const std::vector<int32_t>& tokens_;
  const std::vector<int32_t>& positions_;
  const ReferenceFaults faults_;
  std::vector<Matrix> values_;
  const Node* node_ = nullptr;
  Matrix out_;
};

}  // namespace

std::vector<std::vector<double>> reference_logits(const gguf::File& file, const ModelGraph& graph,
                                                  const std::vector<int32_t>& tokens,
                                                  const std::vector<int32_t>& positions,
                                                  ReferenceFaults faults) {
  std::vector<int32_t> rows = positions;
  if (rows.empty()) {
    rows.resize(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
  }
  const Matrix logits = Interpreter(file, graph, tokens, rows, faults).run();
  std::vector<std::vector<double>> result;
  for (size_t r = 0; r < logits.rows; ++r) {
    result.emplace_back(logits.row(r), logits.row(r) + logits.width);
  }
  return result;
}

}  // namespace quern::test
