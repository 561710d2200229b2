#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "models/error.h"
#include "models/gguf/file.h"
#include "tests/support/fixtures.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/temporary_folder.h"

namespace quern::gguf {
namespace {

using test::GgufBytes;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint32_t kF32 = 0;

template <typename Call>
Error error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ErrorKind::failed, "", "");
}

TEST(accept, an_empty_header_of_both_versions) {
  for (const uint32_t version : {2u, 3u}) {
    const auto image = GgufBytes::header(version, 0, 0);
    const File file = File::parse(image.bytes(), "empty");
    EXPECT_EQ(file.version(), version);
    EXPECT_EQ(file.alignment(), 32u);
    EXPECT_EQ(file.metadata().size(), 0u);
    EXPECT_TRUE(file.tensors().empty());
    EXPECT_EQ(file.file_bytes(), image.size());
  }
}

TEST(accept, values_of_every_type) {
  auto image = GgufBytes::header(3, 0, 12);
  image.key("u8", 0).number(uint8_t{255}).key("i8", 1).number(int8_t{-128});
  image.key("u16", 2).number(uint16_t{65535}).key("i16", 3).number(int16_t{-32768});
  image.key("u32", 4).number(~0u).key("i32", 5).number(int32_t{-5});
  image.key("f32", 6).number(0.1f).key("bool", 7).number(uint8_t{1});
  image.key("string", 8).text("text").key("u64", 10).number(~uint64_t{0});
  image.key("i64", 11).number(int64_t{-6}).key("f64", 12).number(0.1);
  const File file = File::parse(image.bytes(), "values");
  const Metadata& metadata = file.metadata();
  EXPECT_EQ(metadata.get_uint("u8"), 255u);
  EXPECT_EQ(std::get<int64_t>(metadata.find("i8")->data), -128);
  EXPECT_EQ(metadata.get_uint("u16"), 65535u);
  EXPECT_EQ(std::get<int64_t>(metadata.find("i16")->data), -32768);
  EXPECT_EQ(metadata.get_uint("u32"), 0xffffffffu);
  EXPECT_EQ(std::get<int64_t>(metadata.find("i32")->data), -5);
  EXPECT_EQ(metadata.get_float("f32"), double{0.1f});
  EXPECT_TRUE(metadata.get_bool("bool"));
  EXPECT_EQ(metadata.get_string("string"), "text");
  EXPECT_EQ(metadata.get_uint("u64"), ~uint64_t{0});
  EXPECT_EQ(std::get<int64_t>(metadata.find("i64")->data), -6);
  EXPECT_EQ(metadata.get_float("f64"), 0.1);
  EXPECT_THAT(metadata.keys(), ElementsAre("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool",
                                           "string", "u64", "i64", "f64"));
}

TEST(accept, arrays_of_every_element_type_and_empty_ones) {
  auto image = GgufBytes::header(3, 0, 6);
  image.array("u8", 0, 3).raw("\x01\x02\xff");
  image.array("i16", 3, 2).number(int16_t{-1}).number(int16_t{7});
  image.array("f32", 6, 1).number(2.5f);
  image.array("bool", 7, 2).raw(std::string_view("\x01\x00", 2));
  image.array("string", 8, 2).text("").text("b");
  image.array("empty", 8, 0);
  const File file = File::parse(image.bytes(), "arrays");
  EXPECT_THAT(file.metadata().get_ints("u8"), ElementsAre(1, 2, 255));
  EXPECT_THAT(file.metadata().get_ints("i16"), ElementsAre(-1, 7));
  EXPECT_THAT(file.metadata().get_floats("f32"), ElementsAre(2.5));
  EXPECT_THAT(file.metadata().get_bools("bool"), ElementsAre(true, false));
  EXPECT_THAT(file.metadata().get_strings("string"), ElementsAre("", "b"));
  EXPECT_TRUE(file.metadata().get_strings("empty").empty());
}

TEST(accept, tensors_of_no_dimension_and_of_no_element) {
  auto image = GgufBytes::header(3, 4, 0);
  image.tensor("scalar", {}, kF32, 0).tensor("none", {0, 3}, 8, 32);
  image.tensor("rows", {2, 0, 5}, kF32, 32).tensor("last", {1, 1, 1, 2}, kF32, 32);
  image.pad().number(1.0f).pad().number(2.0f).number(3.0f);
  const File file = File::parse(image.bytes(), "shapes");
  EXPECT_EQ(file.find("scalar")->elements(), 1u);
  EXPECT_EQ(file.find("scalar")->rows(), 1u);
  EXPECT_EQ(file.find("scalar")->data.size(), 4u);
  EXPECT_EQ(file.find("none")->data.size(), 0u);
  EXPECT_EQ(file.find("none")->row_length(), 0u);
  EXPECT_EQ(file.find("rows")->elements(), 0u);
  EXPECT_EQ(file.find("last")->rows(), 2u);
  float value = 0;
  std::memcpy(&value, file.find("last")->data.data() + 4, 4);
  EXPECT_EQ(value, 3.0f);
  EXPECT_EQ(file.find("absent"), nullptr);
}

TEST(accept, alignment_1_and_large_alignments) {
  for (const uint32_t alignment : {1u, 8u, 64u, 4096u}) {
    auto image = GgufBytes::header(3, 2, 1).u32_pair("general.alignment", alignment);
    const uint64_t second = (3 + alignment - 1) / alignment * alignment;
    image.tensor("a", {3}, 24, 0).tensor("b", {5}, 24, second);  // i8
    image.pad(alignment).fill(3, 'a').pad(alignment).fill(5, 'b');
    const File file = File::parse(image.bytes(), "aligned", TensorTypes::any);
    EXPECT_EQ(file.alignment(), alignment);
    EXPECT_EQ(file.find("b")->data[4], std::byte{'b'});
  }
}

TEST(accept, missing_padding_after_the_last_tensor_and_bytes_after_the_end) {
  auto image = GgufBytes::header(3, 1, 0).tensor("a", {1}, kF32, 0).pad().number(4.0f);
  EXPECT_EQ(File::parse(image.bytes(), "unpadded").find("a")->data.size(), 4u);
  image.fill(1000);
  EXPECT_EQ(File::parse(image.bytes(), "longer").find("a")->data.size(), 4u);
}

TEST(tensor_types, any_also_reads_what_quern_does_not_decode) {
  auto image = GgufBytes::header(3, 1, 0).tensor("ids", {4}, 26, 0).pad().fill(16);
  EXPECT_THAT(error_of([&] { File::parse(image.bytes(), "x"); }).reason(), HasSubstr("i32"));
  const File file = File::parse(image.bytes(), "x", TensorTypes::any);
  EXPECT_EQ(file.find("ids")->data.size(), 16u);
  EXPECT_EQ(static_cast<uint32_t>(file.find("ids")->type), 26u);
}

TEST(tensor_types, a_type_that_the_format_does_not_have_is_never_read) {
  for (const uint32_t type : {4u, 31u, 77u}) {
    auto image = GgufBytes::header(3, 1, 0).tensor("t", {256}, type, 0).pad().fill(4096);
    EXPECT_EQ(error_of([&] { File::parse(image.bytes(), "x", TensorTypes::any); }).kind(),
              ErrorKind::bad_model);
  }
}

TEST(open, what_is_not_a_readable_file_fails_with_the_path) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  test::write_bytes(folder / "empty", {});
  const auto check = [&](std::string_view name, ErrorKind kind, std::string_view reason) {
    const Error error = error_of([&] { File::open(folder / name); });
    EXPECT_EQ(error.kind(), kind) << name;
    EXPECT_EQ(error.thing(), (folder / name).string());
    EXPECT_THAT(error.reason(), HasSubstr(reason));
  };
  check("absent.gguf", ErrorKind::failed, "No such file");
  check("", ErrorKind::failed, "directory");
  check("pipe", ErrorKind::failed, "not a regular file");
  check("empty", ErrorKind::bad_model, "empty");
}

TEST(open, gives_the_same_as_parsing_the_bytes) {
  const auto path = test::data_file("fixtures/llama.gguf");
  File moved = File::open(path);
  const File file = std::move(moved);
  EXPECT_EQ(file.name(), path.string());
  EXPECT_EQ(file.file_bytes(), std::filesystem::file_size(path));
  EXPECT_EQ(file.metadata().get_string("general.architecture"), "llama");
  EXPECT_EQ(file.metadata().get_uint("llama.block_count"), 2u);
  const Tensor* embedding = file.find("token_embd.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->type, QuantType::f16);
  EXPECT_EQ(embedding->rows(), 320u);
  EXPECT_EQ(embedding->data.size(), embedding->elements() * 2);
}

TEST(open, every_fixture_of_the_repository) {
  size_t files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(test::data_file("fixtures"))) {
    if (entry.path().extension() != ".gguf") continue;
    ++files;
    const bool model = entry.path().string().find("golden") == std::string::npos &&
                       entry.path().filename() != "quant_blocks.gguf";
    const File file = File::open(entry.path(), model ? TensorTypes::decodable : TensorTypes::any);
    EXPECT_FALSE(file.tensors().empty()) << entry.path();
  }
  EXPECT_EQ(files, 27u);
}

TEST(open, vocabulary_files_without_tensors) {
  constexpr std::string_view kPath = "tokenizers/ggml-vocab-gpt-2.gguf";
  const auto path = test::shared_file(kPath);
  if (!path) GTEST_SKIP() << test::missing_shared(kPath);
  const File file = File::open(*path);
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.metadata().get_strings("tokenizer.ggml.tokens").size(), 50257u);
}

TEST(golden, holds_ids_and_one_row_of_logits_a_position) {
  const auto golden = test::load_golden(test::data_file("fixtures/llama.golden.gguf"));
  EXPECT_EQ(golden.token_ids.size(), 48u);
  EXPECT_EQ(golden.positions.size(), 48u);
  EXPECT_EQ(golden.vocabulary, 320u);
  EXPECT_EQ(golden.logits.size(), 48u * 320u);
}

// Fingerprint: what it must notice.

std::vector<std::byte> large_image() {
  auto image = GgufBytes::header(3, 2, 1).string_pair("general.name", "one");
  image.tensor("a", {1 << 18}, kF32, 0).tensor("b", {3}, kF32, 1 << 20).pad();
  image.fill(1 << 20).fill(12);
  return {image.bytes().begin(), image.bytes().end()};
}

TEST(fingerprint, is_64_hex_digits_and_the_same_each_time) {
  const auto image = large_image();
  const std::string print = File::parse(image, "one").fingerprint();
  EXPECT_EQ(print.size(), 64u);
  EXPECT_TRUE(
      std::all_of(print.begin(), print.end(), [](unsigned char c) { return std::isxdigit(c); }));
  EXPECT_EQ(File::parse(image, "another name").fingerprint(), print);
}

TEST(fingerprint, changes_with_metadata_and_the_ends_of_each_tensor) {
  const auto image = large_image();
  const std::string print = File::parse(image, "x").fingerprint();
  const File file = File::parse(image, "x");
  const auto offset_of = [&](const std::byte* p) { return static_cast<size_t>(p - image.data()); };
  const auto& a = file.tensors()[0].data;
  const auto& b = file.tensors()[1].data;
  const size_t name_at = 24 + 8 + 12 + 4 + 8;  // The "one" of general.name.
  ASSERT_EQ(image[name_at], std::byte{'o'});
  for (const size_t at : {name_at, offset_of(a.data()), offset_of(a.data() + a.size() - 1),
                          offset_of(b.data()), offset_of(b.data() + b.size() - 1)}) {
    auto changed = image;
    changed[at] ^= std::byte{0x20};
    EXPECT_NE(File::parse(changed, "x").fingerprint(), print) << at;
  }
}

}  // namespace
}  // namespace quern::gguf
