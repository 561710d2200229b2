// The list of FACTS section A: what a reader must refuse, each with the words that its error needs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/error.h"
#include "models/gguf/file.h"
#include "tests/support/gguf_bytes.h"

namespace quern::gguf {
namespace {

using test::GgufBytes;
using testing::HasSubstr;

constexpr uint32_t kF32 = 0;
constexpr int64_t kHuge = int64_t{1} << 62;

struct Reject {
  std::string name;
  GgufBytes image;
  std::string needle;  ///< What the reason must say.
};

void PrintTo(const Reject& reject, std::ostream* out) {
  *out << reject.name;
}

GgufBytes header(int64_t tensors, int64_t keys) {
  return GgufBytes::header(3, tensors, keys);
}

std::vector<Reject> bad_headers() {
  return {
      {"empty_file", GgufBytes(), "empty"},
      {"bad_magic", GgufBytes().raw("GGML").number(3u).fill(16, 0), "not a GGUF file"},
      {"magic_alone_short", GgufBytes().raw("GG"), "not a GGUF file"},
      {"version_0", GgufBytes::header(0, 0, 0), "version 0"},
      {"version_1", GgufBytes::header(1, 0, 0), "version 1"},
      {"version_future", GgufBytes::header(4, 0, 0), "version 4"},
      {"big_endian", GgufBytes::header(0x03000000, 0, 0), "big-endian"},
      {"key_count_negative", header(0, -1), "metadata count is -1"},
      {"tensor_count_negative", header(-1, 0), "tensor count is -1"},
      {"key_count_beyond_file", header(0, kHuge).fill(64), "metadata keys, more than"},
      {"tensor_count_beyond_file", header(kHuge, 0).fill(64), "tensors, more than"},
      {"counts_together_beyond_file", header(2, 2).fill(60), "more than"},
  };
}

std::vector<Reject> bad_keys() {
  return {
      {"key_length_minus_1", header(0, 1).number(int64_t{-1}).fill(64), "metadata key claims"},
      {"key_length_beyond_limit", header(0, 1).number(uint64_t{65536}).fill(70000),
       "at most 65535"},
      {"key_empty", header(0, 1).u32_pair("", 1).fill(8), "without a name"},
      {"key_type_unknown", header(0, 1).key("k", 13).fill(16), "key k has value type 13"},
      {"key_type_minus_1", header(0, 1).key("k", ~0u).fill(16), "value type 4294967295"},
      {"key_twice", header(0, 2).u32_pair("k", 1).u32_pair("k", 1), "key k twice"},
      {"bool_neither_0_nor_1", header(0, 1).key("k", 7).number(uint8_t{2}),
       "key k holds the bool 2"},
      {"bool_in_array", header(0, 1).array("k", 7, 2).number(uint8_t{1}).number(uint8_t{255}),
       "bool 255"},
      {"string_length_minus_1", header(0, 1).key("k", 8).number(int64_t{-1}).fill(16),
       "key k claims"},
      {"string_beyond_1_gib", header(0, 1).key("k", 8).number((uint64_t{1} << 30) + 1).fill(16),
       "at most 1073741824"},
      {"string_beyond_file", header(0, 1).key("k", 8).number(uint64_t{100}).fill(16), "truncated"},
      {"array_of_arrays", header(0, 1).array("k", 9, 1).fill(32), "array of arrays"},
      {"array_element_unknown", header(0, 1).array("k", 13, 1).fill(32), "value type 13"},
      {"array_count_minus_1", header(0, 1).array("k", 4, ~uint64_t{0}).fill(32), "key k claims"},
      {"array_bytes_overflow", header(0, 1).array("k", 10, (uint64_t{1} << 61) + 1).fill(32),
       "key k claims"},
      {"array_beyond_1_gib", header(0, 1).array("k", 0, (uint64_t{1} << 30) + 1).fill(32),
       "at most 1073741824"},
      {"array_beyond_file", header(0, 1).array("k", 4, 9).fill(32), "truncated"},
      {"string_array_beyond_file", header(0, 1).array("k", 8, 5).fill(32, 0), "truncated"},
      {"string_in_array_length_minus_1", header(0, 1).array("k", 8, 1).number(int64_t{-1}).fill(32),
       "key k claims"},
  };
}

std::vector<Reject> bad_alignments() {
  const auto with = [](uint32_t alignment) {
    return header(0, 1).u32_pair("general.alignment", alignment);
  };
  return {
      {"alignment_13", with(13), "general.alignment is 13"},
      {"alignment_0", with(0), "general.alignment is 0"},
      {"alignment_i32", header(0, 1).key("general.alignment", 5).number(int32_t{32}),
       "general.alignment has type i32"},
      {"alignment_u64", header(0, 1).key("general.alignment", 10).number(uint64_t{32}),
       "general.alignment has type u64"},
      {"alignment_string", header(0, 1).string_pair("general.alignment", "32"),
       "general.alignment has type string"},
      {"offset_not_aligned",
       header(2, 0).tensor("a", {8}, kF32, 0).tensor("b", {8}, kF32, 36).pad().fill(128),
       "tensor b has offset 36, which is not a multiple"},
      // The data is laid out for an alignment of 32, the metadata says 64.
      {"alignment_inconsistent_with_offsets",
       header(2, 1)
           .u32_pair("general.alignment", 64)
           .tensor("a", {8}, kF32, 0)
           .tensor("b", {8}, kF32, 32)
           .pad(64)
           .fill(128),
       "tensor b has offset 32"},
      {"alignment_larger_than_file",
       header(1, 1)
           .u32_pair("general.alignment", 1u << 31)
           .tensor("a", {1}, kF32, 0)
           .pad()
           .fill(64),
       "truncated: tensor a"},
  };
}

std::vector<Reject> bad_tensors() {
  const std::string name_64(64, 'n');
  const auto one = [](std::initializer_list<int64_t> shape, uint32_t type = kF32,
                      uint64_t offset = 0) {
    return header(1, 0).tensor("t", shape, type, offset).pad().fill(256);
  };
  return {
      {"name_of_64", header(1, 0).tensor(name_64, {1}, kF32, 0).pad().fill(32), "claims 64 bytes"},
      {"name_length_minus_1", header(1, 0).number(int64_t{-1}).fill(64), "tensor name claims"},
      {"name_empty", header(1, 0).tensor("", {1}, kF32, 0).pad().fill(32), "without a name"},
      {"name_twice",
       header(2, 0).tensor("t", {8}, kF32, 0).tensor("t", {8}, kF32, 32).pad().fill(64),
       "tensor t twice"},
      {"dimensions_5", one({1, 1, 1, 1, 1}), "tensor t has 5 dimensions"},
      {"dimensions_minus_1", header(1, 0).text("t").number(~0u).fill(64), "4294967295 dimensions"},
      {"extent_minus_1", one({8, -1}), "extent -1"},
      {"extents_overflow", one({kHuge, kHuge}), "more elements"},
      {"extents_overflow_to_small", one({int64_t{1} << 32, int64_t{1} << 32, 1}), "more elements"},
      {"extents_overflow_past_zero", one({0, kHuge, kHuge}), "more elements"},
      {"bytes_overflow", one({kHuge}), "more bytes"},
      {"type_unknown", one({32}, 77), "tensor t has type type 77"},
      {"type_minus_1", one({32}, ~0u), "type 4294967295"},
      {"type_removed", one({32}, 4), "q4_2"},
      {"type_not_decoded", one({256}, 16),
       "tensor t has type iq2_xxs, which Quern does not decode"},
      {"row_not_whole_blocks", one({33}, 8), "rows of 33 values"},
      {"row_not_whole_blocks_scalar", one({}, 8), "rows of 1 values"},
      {"offset_of_first_not_0", one({8}, kF32, 32), "tensor t has offset 32 where 0"},
      {"offset_gap",
       header(2, 0).tensor("a", {8}, kF32, 0).tensor("b", {8}, kF32, 64).pad().fill(128),
       "tensor b has offset 64 where 32"},
      {"offset_overlap",
       header(2, 0).tensor("a", {8}, kF32, 0).tensor("b", {8}, kF32, 0).pad().fill(128),
       "tensor b has offset 0 where 32"},
      {"offset_minus_1", one({8}, kF32, ~uint64_t{0}), "offset 18446744073709551615"},
      {"offset_wraps", one({8}, kF32, ~uint64_t{0} - 31), "offset 18446744073709551584"},
      {"data_missing", header(1, 0).tensor("t", {8}, kF32, 0), "truncated: tensor t"},
      {"data_short", header(1, 0).tensor("t", {8}, kF32, 0).pad().fill(31), "truncated: tensor t"},
      {"data_padding_between_missing",
       header(2, 0).tensor("a", {1}, kF32, 0).tensor("b", {1}, kF32, 32).pad().fill(8),
       "truncated: tensor b"},
      {"memory_size_overflow",
       header(2, 0)
           .tensor("a", {(int64_t{1} << 60)}, kF32, 0)
           .tensor("b", {(int64_t{1} << 60)}, kF32, uint64_t{1} << 62)
           .pad()
           .fill(64),
       "truncated: tensor a"},
  };
}

class reject : public testing::TestWithParam<Reject> {};

TEST_P(reject, with_one_line_that_names_the_file_and_the_fault) {
  try {
    File::parse(GetParam().image.bytes(), "dir/model.gguf");
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_model);
    EXPECT_EQ(error.thing(), "dir/model.gguf");
    EXPECT_THAT(error.reason(), HasSubstr(GetParam().needle));
    EXPECT_THAT(std::string(error.what()), testing::Not(HasSubstr("\n")));
  }
}

std::string case_name(const testing::TestParamInfo<Reject>& row) {
  return row.param.name;
}

INSTANTIATE_TEST_SUITE_P(header, reject, testing::ValuesIn(bad_headers()), case_name);
INSTANTIATE_TEST_SUITE_P(keys, reject, testing::ValuesIn(bad_keys()), case_name);
INSTANTIATE_TEST_SUITE_P(alignment, reject, testing::ValuesIn(bad_alignments()), case_name);
INSTANTIATE_TEST_SUITE_P(tensors, reject, testing::ValuesIn(bad_tensors()), case_name);

/// An image with every value type and three tensors, the last of which needs no padding.
GgufBytes rich_image() {
  auto image = header(3, 7);
  image.string_pair("general.architecture", "llama").u32_pair("general.alignment", 32);
  image.key("f", 6).number(1.5f).key("d", 12).number(2.5);
  image.array("strings", 8, 2).text("one").text("");
  image.array("ints", 5, 3).number(-1).number(0).number(1);
  image.array("bools", 7, 2).number(uint8_t{0}).number(uint8_t{1});
  image.tensor("a", {4}, kF32, 0).tensor("b", {32, 2}, 8, 32).tensor("c", {8, 2}, kF32, 128);
  return image.pad().fill(192);
}

TEST(truncation, at_every_byte_is_a_bad_model) {
  const auto image = rich_image();
  ASSERT_NO_THROW(File::parse(image.bytes(), "whole"));
  for (size_t length = 0; length < image.size(); ++length) {
    try {
      // A copy of exactly this length, so that a sanitizer sees any read beyond it.
      const std::vector<std::byte> part(image.bytes().begin(), image.bytes().begin() + length);
      File::parse(part, "part");
      FAIL() << "accepted when cut after " << length << " of " << image.size() << " bytes";
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::bad_model) << length;
    }
  }
}

TEST(corruption, of_any_single_byte_is_refused_or_read_but_never_anything_else) {
  const auto image = rich_image();
  const std::vector<std::byte> sound(image.bytes().begin(), image.bytes().end());
  for (size_t at = 0; at < sound.size() - 192; ++at) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      std::vector<std::byte> corrupt = sound;
      corrupt[at] = static_cast<std::byte>(value);
      try {
        const File file = File::parse(corrupt, "corrupt");
        for (const Tensor& tensor : file.tensors()) {
          ASSERT_GE(tensor.data.data(), corrupt.data());
          ASSERT_LE(tensor.data.data() + tensor.data.size(), corrupt.data() + corrupt.size());
        }
      } catch (const Error& error) {
        ASSERT_EQ(error.kind(), ErrorKind::bad_model) << at;
      }
    }
  }
}

}  // namespace
}  // namespace quern::gguf
