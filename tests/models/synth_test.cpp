// Synthetic models: their structure is that of the Python script's files (tests/data/synth was made
// from it), their values are sound and depend on seed, name and position alone.

#include "models/synth/synth.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "models/error.h"
#include "models/gguf/file.h"
#include "models/model.h"
#include "models/sha256.h"
#include "models/synth/values.h"
#include "tests/support/fixtures.h"

namespace quern::synth {
namespace {

using testing::HasSubstr;

constexpr const char* kScriptMixes[] = {"q4_k_m", "q8_0", "q4_0", "f16"};

std::vector<std::byte> image_of(const Shape& shape, const Mix& mix, SynthOptions options = {}) {
  std::vector<std::byte> image;
  write_synthetic(shape, mix, options, [&](std::span<const std::byte> piece) {
    image.insert(image.end(), piece.begin(), piece.end());
  });
  return image;
}

std::vector<std::string> names_of_small_shapes() {
  std::vector<std::string> names;
  for (const Shape& shape : shapes()) {
    if (shape.name.ends_with("-long") || shape.name.ends_with("-tiny")) {
      names.emplace_back(shape.name);
    }
  }
  return names;
}

/// Digest of what a file of this shape has before its tensors' bytes.
std::string header_digest(const Shape& shape, const Mix& mix) {
  struct HeaderDone {};
  std::vector<gguf::TensorToWrite> tensors;
  for (const SynthTensor& tensor : tensors_of(shape, mix)) {
    tensors.push_back({tensor.name, tensor.shape, tensor.type,
                       [](const gguf::TensorToWrite::Sink&) { throw HeaderDone(); }});
  }
  Sha256 digest;
  uint64_t bytes = 0;
  try {
    gguf::write_stream(
        [&](std::span<const std::byte> piece) {
          digest.update(piece);
          bytes += piece.size();
        },
        metadata_of(shape), tensors);
  } catch (const HeaderDone&) {
  }
  return fmt::format("{} {}", bytes, digest.hex());
}

TEST(SynthStructure, headers_of_all_shapes_are_those_of_the_python_script) {
  std::ifstream expected(test::data_file("synth/headers.txt"));
  size_t compared = 0;
  for (std::string shape, mix, bytes, digest; expected >> shape >> mix >> bytes >> digest;) {
    EXPECT_EQ(header_digest(shape_named(shape), mix_named(mix)), bytes + " " + digest)
        << shape << " " << mix;
    ++compared;
  }
  EXPECT_EQ(compared, shapes().size() * std::size(kScriptMixes));
}

std::string value_text(const gguf::Value& value) {
  if (value.type == gguf::ValueType::u32)
    return fmt::format("u32 {}", std::get<uint64_t>(value.data));
  if (value.type == gguf::ValueType::f32) {
    return fmt::format("f32 {:.9g}", std::get<double>(value.data));
  }
  if (value.type == gguf::ValueType::string) return "string " + std::get<std::string>(value.data);
  return fmt::format("i32[] {}", fmt::join(std::get<std::vector<int64_t>>(value.data), ","));
}

/// A file's structure as tests/data/synth has it; types of each of the script's mixes.
std::string structure_of(const Shape& shape) {
  std::vector<std::vector<std::byte>> images;
  std::vector<gguf::File> files;
  for (const char* mix : kScriptMixes) {
    images.push_back(image_of(shape, mix_named(mix)));
    files.push_back(gguf::File::parse(images.back(), mix));
  }
  std::string text = "# metadata: key, type, value\n";
  for (const std::string& key : files[0].metadata().keys()) {
    text += fmt::format("{} {}\n", key, value_text(*files[0].metadata().find(key)));
  }
  text += fmt::format("# tensors: name, shape, type in {}\n", fmt::join(kScriptMixes, ", "));
  for (size_t i = 0; i < files[0].tensors().size(); ++i) {
    const gguf::Tensor& first = files[0].tensors()[i];
    text += fmt::format("{} {}", first.name, fmt::join(first.shape, "x"));
    for (const gguf::File& file : files) {
      text += fmt::format(" {}", quant_traits(file.tensors().at(i).type).name);
    }
    text += "\n";
  }
  return text;
}

TEST(SynthStructure, files_have_the_metadata_and_tensors_of_the_python_script) {
  for (const char* name : {"llama-tiny", "qwen3-long", "olmoe-long", "qwen35-long"}) {
    std::ifstream in(test::data_file(fmt::format("synth/{}.txt", name)));
    std::ostringstream expected;
    expected << in.rdbuf();
    EXPECT_EQ(structure_of(shape_named(name)), expected.str()) << name;
  }
}

TEST(SynthStructure, every_shape_has_whole_blocks_in_every_mix) {
  for (const Shape& shape : shapes()) {
    for (const Mix& mix : mixes()) {
      const auto tensors = tensors_of(shape, mix);
      EXPECT_GT(total_bytes(tensors), total_values(tensors) / 2) << shape.name << " " << mix.name;
    }
  }
}

TEST(SynthStructure, mixes_give_the_head_and_some_layers_more_bits) {
  const auto type_of = [](const char* mix, const char* shape, std::string_view tensor) {
    for (const SynthTensor& each : tensors_of(shape_named(shape), mix_named(mix))) {
      if (each.name == tensor) return quant_traits(each.type).name;
    }
    return std::string_view("absent");
  };
  EXPECT_EQ(type_of("q5_k_m", "llama-tiny", "output.weight"), "q6_k");
  EXPECT_EQ(type_of("q5_k_m", "llama-tiny", "blk.1.ffn_down.weight"), "q6_k");
  EXPECT_EQ(type_of("q5_k_m", "llama-tiny", "blk.0.ffn_down.weight"), "q5_k");
  EXPECT_EQ(type_of("iq4_xs", "llama-tiny", "blk.1.attn_v.weight"), "q5_k");
  EXPECT_EQ(type_of("iq4_xs", "llama-tiny", "blk.1.attn_k.weight"), "iq4_xs");
  EXPECT_EQ(type_of("mxfp4", "olmoe-long", "blk.1.ffn_down_exps.weight"), "mxfp4");
  EXPECT_EQ(type_of("mxfp4", "olmoe-long", "blk.1.attn_q.weight"), "q8_0");
  EXPECT_EQ(type_of("bf16", "llama-tiny", "output.weight"), "bf16");
}

TEST(SynthNames, unknown_ones_are_usage_errors_that_list_the_known) {
  const auto message = [](auto call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      return error.what();
    }
    return "nothing was thrown";
  };
  const std::string shape = message([] { shape_named("llama-9b"); });
  EXPECT_THAT(shape, HasSubstr("llama-9b"));
  for (const Shape& known : shapes()) EXPECT_THAT(shape, HasSubstr(std::string(known.name)));
  const std::string mix = message([] { mix_named("q9"); });
  for (const Mix& known : mixes()) EXPECT_THAT(mix, HasSubstr(std::string(known.name)));
}

/// What a tensor's decoded values are like; of a large one a sample of rows.
struct Spread {
  double deviation = 0, mean = 0;
  bool finite = true;
};
Spread spread_of(const gguf::Tensor& tensor) {
  const uint64_t rows = tensor.rows(), step = std::max<uint64_t>(1, rows / 61);
  const size_t bytes = row_bytes(tensor.type, tensor.row_length());
  std::vector<float> row(tensor.row_length());
  Spread spread;
  double sum = 0, squares = 0, count = 0;
  for (uint64_t r = 0; r < rows; r += step) {
    decode_row(tensor.type, tensor.data.data() + r * bytes, row.data(), row.size());
    for (const float value : row) {
      spread.finite = spread.finite && std::isfinite(value);
      sum += value;
      squares += static_cast<double>(value) * value;
      ++count;
    }
  }
  spread.mean = sum / count;
  spread.deviation = std::sqrt(squares / count - spread.mean * spread.mean);
  return spread;
}

class SmallShape : public testing::TestWithParam<std::string> {};

TEST_P(SmallShape, reads_back_and_builds_a_graph_in_every_mix) {
  for (const Mix& mix : mixes()) {
    const std::vector<std::byte> image = image_of(shape_named(GetParam()), mix);
    const gguf::File file = gguf::File::parse(image, GetParam());
    EXPECT_EQ(build_graph(file).n_layers, shape_named(GetParam()).layers) << mix.name;
    for (const gguf::Tensor& tensor : file.tensors()) {
      const Spread spread = spread_of(tensor);
      EXPECT_TRUE(spread.finite) << mix.name << " " << tensor.name;
      if (tensor.elements() < 4096) continue;
      // A q4_k matrix is 1.29 times as wide as the others, as the script makes it.
      const double wanted = (tensor.type == QuantType::q4_k ? 1.29 : 1) /
                            std::sqrt(static_cast<double>(tensor.row_length()));
      EXPECT_NEAR(spread.deviation / wanted, 1, 0.08) << mix.name << " " << tensor.name;
      EXPECT_LT(std::abs(spread.mean), 0.15 * wanted) << mix.name << " " << tensor.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Synth, SmallShape, testing::ValuesIn(names_of_small_shapes()),
                         [](const auto& each) {
                           std::string name = each.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(SynthValues, vectors_are_ones_and_decays_are_negative) {
  const auto image = image_of(shape_named("qwen35-long"), mix_named("q8_0"));
  const gguf::File file = gguf::File::parse(image, "qwen35-long");
  const auto values = [&](const char* name) {
    const gguf::Tensor& tensor = *file.find(name);
    std::vector<float> out(tensor.elements());
    decode_row(tensor.type, tensor.data.data(), out.data(), out.size());
    return out;
  };
  EXPECT_THAT(values("blk.0.attn_norm.weight"), testing::Each(1.F));
  EXPECT_THAT(values("blk.0.ssm_a"), testing::Each(testing::AllOf(testing::Le(-std::exp(-1.F)),
                                                                  testing::Ge(-std::exp(2.F)))));
}

TEST(SynthValues, threads_never_change_a_byte_and_the_seed_does) {
  const Shape& shape = shape_named("qwen3moe-long");
  const Mix& mix = mix_named("q4_k_m");
  const std::string one = sha256_hex(image_of(shape, mix, {.threads = 1}));
  EXPECT_EQ(sha256_hex(image_of(shape, mix, {.threads = 2})), one);
  EXPECT_EQ(sha256_hex(image_of(shape, mix, {.threads = 7})), one);
  EXPECT_NE(sha256_hex(image_of(shape, mix, {.seed = 2})), one);
}

TEST(SynthValues, are_the_same_on_every_machine) {
  const Shape& shape = shape_named("llama-tiny");
  EXPECT_EQ(sha256_hex(image_of(shape, mix_named("q4_k_m"))),
            "224b06c8b0c7eff34f1f7b3af7f40a1c7046083e1a738507617d6b5ca4e415b9");
  EXPECT_EQ(sha256_hex(image_of(shape, mix_named("f16"))),
            "5b4e6b25b465f40fdbb0a080343a9a9efd060fbddb9bc1b6807ec5457c7459c4");
  EXPECT_EQ(sha256_hex(image_of(shape, mix_named("mxfp4"))),
            "79219cf85bba6137316febb39d0554ce7a52c7aea946129bfd8dc25618c5b724");
}

TEST(SynthValues, a_piece_of_a_tensor_is_that_part_of_the_whole) {
  for (const QuantTraits& traits : quant_table()) {
    const uint64_t row = 4 * uint64_t{256};
    const SynthTensor tensor{"blk.0.x.weight", {row, 16}, traits.type, Values::random};
    const uint64_t key = tensor_key(3, tensor.name);
    std::vector<std::byte> whole(tensor.bytes());
    fill_blocks(tensor, key, 0, whole);
    const uint64_t first = piece_alignment * 3;
    std::vector<std::byte> part(traits.block_bytes * size_t{5});
    fill_blocks(tensor, key, first, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(),
                           whole.begin() + static_cast<ptrdiff_t>(first * traits.block_bytes)))
        << traits.name;
  }
}

TEST(SynthValues, tensors_of_different_names_differ) {
  EXPECT_NE(tensor_key(1, "blk.0.attn_k.weight"), tensor_key(1, "blk.0.attn_v.weight"));
  EXPECT_NE(tensor_key(1, "blk.0.attn_k.weight"), tensor_key(2, "blk.0.attn_k.weight"));
}

TEST(SynthStream, a_sink_that_fails_ends_it_with_its_own_error) {
  for (const size_t limit : {size_t{1}, size_t{3} << 20}) {
    size_t passed = 0;
    const auto sink = [&](std::span<const std::byte> piece) {
      passed += piece.size();
      if (passed > limit) throw std::runtime_error("full");
    };
    EXPECT_THROW(
        write_synthetic(shape_named("qwen3moe-long"), mix_named("q8_0"), {.threads = 3}, sink),
        std::runtime_error);
  }
}

TEST(SynthStream, progress_ends_at_the_total) {
  uint64_t last = 0, all = 0;
  SynthOptions options;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GT(done, last);
    last = done;
    all = total;
  };
  image_of(shape_named("llama-tiny"), mix_named("q4_0"), options);
  EXPECT_EQ(last, all);
  EXPECT_EQ(all, total_bytes(tensors_of(shape_named("llama-tiny"), mix_named("q4_0"))));
}

}  // namespace
}  // namespace quern::synth
