// Kernels that move rows: embeddings of every type against the reference decoders bit for bit,
// gathered rows, sums.

#include <cmath>

#include "models/quant/quant_type.h"
#include "tests/gpu/support/attention_case.h"
#include "tests/gpu/support/gpu.h"
#include "tests/gpu/support/weights.h"

namespace quern::test {
namespace {

cuda::RunState rows_state(uint32_t tokens) {
  return {.n_tokens = tokens, .start_position = 0, .n_outputs = tokens, .reserved = 0};
}

class EmbedType : public testing::TestWithParam<spec::QuantType> {};

TEST_P(EmbedType, rows_have_the_reference_decoders_bits) {
  QUERN_NEED_GPU();
  constexpr uint32_t width = 512, vocabulary = 37;
  std::mt19937 random(7);
  const std::vector<std::byte> table = random_weight(GetParam(), vocabulary, width, random);
  const std::vector<float> decoded = decode_weight(GetParam(), table, vocabulary, width);
  const std::vector<int32_t> ids = {36, 0, 5, 5, 17};
  const auto tokens = static_cast<uint32_t>(ids.size());
  for (const float scale : {1.0f, 22.627417f}) {
    Array<int32_t> device_ids(ids);
    Array<std::byte> device_table(table);
    Array<float> y(tokens * width);
    y.poison();
    cuda::KernelArgs args = plain_args();
    args.buffers[0] = device_ids.pointer();
    args.buffers[1] = device_table.pointer();
    args.buffers[2] = y.pointer();
    Kernel kernel(
        spec::EmbedSpec{
            .type = GetParam(), .width = width, .scale = scale, .tier = spec::Tier::mma},
        {.threads = 256});
    kernel.run(args, rows_state(tokens), tokens + 1, 1);
    const std::vector<float> out = y.download();
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t i = 0; i < width; ++i) {
        const float wanted = decoded[static_cast<size_t>(ids[t]) * width + i] * scale;
        ASSERT_EQ(std::bit_cast<uint32_t>(out[t * width + i]), std::bit_cast<uint32_t>(wanted))
            << t << ", " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EmbedType,
                         testing::Values(spec::QuantType::f32, spec::QuantType::f16,
                                         spec::QuantType::bf16, spec::QuantType::q4_0,
                                         spec::QuantType::q4_1, spec::QuantType::q5_0,
                                         spec::QuantType::q5_1, spec::QuantType::q8_0,
                                         spec::QuantType::q2_k, spec::QuantType::q3_k,
                                         spec::QuantType::q4_k, spec::QuantType::q5_k,
                                         spec::QuantType::q6_k, spec::QuantType::iq4_nl,
                                         spec::QuantType::iq4_xs, spec::QuantType::mxfp4));

TEST(Gather, rows_are_copied_by_index) {
  QUERN_NEED_GPU();
  constexpr uint32_t width = 100, rows = 9;
  std::vector<float> x(rows * width);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const std::vector<int32_t> index = {8, 0, 3};
  Array<float> device_x(x), y(index.size() * width);
  Array<int32_t> device_index(index);
  y.poison();
  cuda::KernelArgs args = plain_args();
  args.buffers[0] = device_x.pointer();
  args.buffers[1] = device_index.pointer();
  args.buffers[2] = y.pointer();
  Kernel kernel(spec::GatherSpec{.width = width}, {.threads = 256});
  kernel.run(args, rows_state(3), 4, 1);
  const std::vector<float> out = y.download();
  for (size_t r = 0; r < index.size(); ++r) {
    for (uint32_t i = 0; i < width; ++i) {
      ASSERT_EQ(out[r * width + i], x[static_cast<size_t>(index[r]) * width + i]) << r << ", " << i;
    }
  }
}

TEST(Gather, rows_of_an_operand_are_copied_by_index) {
  QUERN_NEED_GPU();
  constexpr uint32_t width = 192, rows = 16;
  std::vector<uint16_t> x(rows * width);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(i);
  const std::vector<int32_t> index = {13, 2, 8};
  Array<uint16_t> device_x(make_operand(x, rows, width, rows)),
      y(static_cast<size_t>(rows) * width);
  Array<int32_t> device_index(index);
  y.poison();
  cuda::KernelArgs args = plain_args();
  args.buffers[0] = device_x.pointer();
  args.buffers[1] = device_index.pointer();
  args.buffers[2] = y.pointer();
  args.operand_rows = rows;
  Kernel kernel(spec::GatherSpec{.width = width, .operand = 1}, {.threads = 256});
  kernel.run(args, rows_state(3), 3, 1);
  const std::vector<uint16_t> out = y.download();
  for (uint32_t r = 0; r < index.size(); ++r) {
    for (uint32_t i = 0; i < width; ++i) {
      ASSERT_EQ(out[operand_index(i, r, rows)], x[static_cast<size_t>(index[r]) * width + i])
          << r << ", " << i;
    }
  }
}

TEST(Add, sums_are_f32_sums) {
  QUERN_NEED_GPU();
  constexpr uint32_t width = 300, rows = 3;
  RandomNormal random(3);
  std::vector<float> a(rows * width), b(rows * width);
  for (float& v : a) v = random();
  for (float& v : b) v = random() * 100;
  Array<float> device_a(a), device_b(b), y(a.size());
  y.poison();
  cuda::KernelArgs args = plain_args();
  args.buffers[0] = device_a.pointer();
  args.buffers[1] = device_b.pointer();
  args.buffers[2] = y.pointer();
  Kernel kernel(spec::AddSpec{.width = width}, {.threads = 256});
  kernel.run(args, rows_state(rows), rows, 1);
  const std::vector<float> out = y.download();
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(out[i], a[i] + b[i]) << i;
}

}  // namespace
}  // namespace quern::test
