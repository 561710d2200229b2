// Models in several files: -00001-of-000NN.gguf with split.no, split.count, split.tensors.count.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "models/error.h"
#include "models/gguf/file.h"
#include "models/gguf/split.h"
#include "models/gguf/writer.h"
#include "tests/support/temporary_folder.h"

namespace quern::gguf {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;

constexpr uint32_t kParts = 3;

TensorToWrite tensor(const std::string& name, float value) {
  return {.name = name, .shape = {1}, .type = QuantType::f32, .fill = [value](const auto& sink) {
            sink(std::as_bytes(std::span(&value, 1)));
          }};
}

void set_u16(Metadata& metadata, std::string key, uint64_t value) {
  metadata.set(std::move(key), {ValueType::u16, ValueType::u32, value});
}

/// What a part says about itself; a case changes what it wants to be wrong.
struct Part {
  uint32_t number = 0;
  uint32_t count = kParts;
  int32_t tensors = 2 * kParts;
  std::string_view first_name = {};
};

std::filesystem::path part_path(const TemporaryFolder& folder, uint32_t number) {
  return folder / fmt::format("model-{:05}-of-{:05}.gguf", number + 1, kParts);
}

void write_part(const std::filesystem::path& path, const Part& part) {
  Metadata metadata;
  if (part.number == 0) metadata.set_string("general.architecture", "llama");
  set_u16(metadata, "split.no", part.number);
  set_u16(metadata, "split.count", part.count);
  metadata.set("split.tensors.count", {ValueType::i32, ValueType::u32, int64_t{part.tensors}});
  const std::string first =
      part.first_name.empty() ? fmt::format("t{}", 2 * part.number) : std::string(part.first_name);
  write_file(path, metadata,
             {tensor(first, static_cast<float>(2 * part.number)),
              tensor(fmt::format("t{}", 2 * part.number + 1), 0.5f)});
}

void write_set(const TemporaryFolder& folder) {
  for (uint32_t i = 0; i < kParts; ++i) write_part(part_path(folder, i), {.number = i});
}

Error open_error(const std::filesystem::path& path) {
  try {
    File::open(path);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << path << " was accepted";
  return Error(ErrorKind::failed, "", "");
}

TEST(split, a_set_opens_from_its_first_part_as_one_model) {
  const TemporaryFolder folder;
  write_set(folder);
  const File file = File::open(part_path(folder, 0));
  EXPECT_EQ(file.metadata().get_string("general.architecture"), "llama");
  ASSERT_EQ(file.tensors().size(), 2 * kParts);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < kParts; ++i) {
    const std::string name = fmt::format("t{}", 2 * i);
    EXPECT_EQ(file.tensors()[2 * i].name, name);
    ASSERT_NE(file.find(name), nullptr);
    float value = -1;
    std::memcpy(&value, file.find(name)->data.data(), 4);
    EXPECT_EQ(value, static_cast<float>(2 * i));
    bytes += std::filesystem::file_size(part_path(folder, i));
  }
  EXPECT_EQ(file.file_bytes(), bytes);
}

TEST(split, the_fingerprint_covers_every_part) {
  const TemporaryFolder folder;
  write_set(folder);
  const std::string print = File::open(part_path(folder, 0)).fingerprint();
  write_part(part_path(folder, 2), {.number = 2, .first_name = "other"});
  EXPECT_NE(File::open(part_path(folder, 0)).fingerprint(), print);
}

TEST(split, a_set_opens_from_the_folder_it_lies_in) {
  const TemporaryFolder folder;
  write_set(folder);
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  EXPECT_EQ(File::open("model-00001-of-00003.gguf").tensors().size(), 2 * kParts);
  std::filesystem::current_path(before);
}

TEST(split, a_later_part_is_wrong_usage_that_names_the_first) {
  const TemporaryFolder folder;
  write_set(folder);
  const Error error = open_error(part_path(folder, 1));
  EXPECT_EQ(error.kind(), ErrorKind::usage);
  EXPECT_THAT(error.reason(), HasSubstr("part 2 of 3"));
  EXPECT_THAT(error.remedy(), HasSubstr(part_path(folder, 0).string()));
}

TEST(split, a_missing_part_is_named) {
  const TemporaryFolder folder;
  write_set(folder);
  std::filesystem::remove(part_path(folder, 2));
  const Error error = open_error(part_path(folder, 0));
  EXPECT_EQ(error.kind(), ErrorKind::bad_model);
  EXPECT_EQ(error.thing(), part_path(folder, 2).string());
  EXPECT_THAT(error.reason(), HasSubstr("is missing: the model has 3 parts"));
}

TEST(split, a_damaged_part_is_named) {
  const TemporaryFolder folder;
  write_set(folder);
  std::filesystem::resize_file(part_path(folder, 1), 100);
  const Error error = open_error(part_path(folder, 0));
  EXPECT_EQ(error.kind(), ErrorKind::bad_model);
  EXPECT_EQ(error.thing(), part_path(folder, 1).string());
}

/// One part replaced by a contradictory one: what the error must name.
struct Contradiction {
  std::string name;
  uint32_t replaced;
  Part part;
  std::string needle;
};

void PrintTo(const Contradiction& contradiction, std::ostream* out) {
  *out << contradiction.name;
}

class split_contradiction : public testing::TestWithParam<Contradiction> {};

TEST_P(split_contradiction, is_refused_with_the_key) {
  const TemporaryFolder folder;
  write_set(folder);
  write_part(part_path(folder, GetParam().replaced), GetParam().part);
  const Error error = open_error(part_path(folder, 0));
  EXPECT_EQ(error.kind(), ErrorKind::bad_model);
  EXPECT_THAT(error.reason(), HasSubstr(GetParam().needle));
}

INSTANTIATE_TEST_SUITE_P(
    parts, split_contradiction,
    testing::Values(
        Contradiction{"count_of_first", 0, {.count = 4}, "split.count is 4"},
        Contradiction{"count_of_first_is_1", 0, {.count = 1}, "split.count does not say so"},
        Contradiction{"count_of_later", 1, {.number = 1, .count = 2}, "split.count is 2"},
        Contradiction{"number_of_later", 1, {.number = 2}, "split.no is 2"},
        Contradiction{"tensors", 0, {.tensors = 7}, "split.tensors.count is 7"},
        Contradiction{"tensors_negative", 0, {.tensors = -1}, "split.tensors.count is -1"},
        Contradiction{"tensor_in_two_parts",
                      2,
                      {.number = 2, .first_name = "t0"},
                      "two parts hold tensor t0"}),
    [](const testing::TestParamInfo<Contradiction>& row) { return row.param.name; });

TEST(split, parts_under_other_names_cannot_be_found) {
  const TemporaryFolder folder;
  write_part(folder / "model.gguf", {});
  const Error error = open_error(folder / "model.gguf");
  EXPECT_EQ(error.kind(), ErrorKind::bad_model);
  EXPECT_THAT(error.reason(), HasSubstr("not named -00001-of-00003.gguf"));
}

TEST(split, a_name_of_several_parts_needs_the_keys) {
  const TemporaryFolder folder;
  write_file(part_path(folder, 0), Metadata(), {tensor("t", 1)});
  EXPECT_THAT(open_error(part_path(folder, 0)).reason(), HasSubstr("split.count"));
}

TEST(split, a_set_of_one_opens_under_any_name) {
  const TemporaryFolder folder;
  for (const char* name : {"model.gguf", "model-00001-of-00001.gguf"}) {
    write_part(folder / name, {.count = 1, .tensors = 2});
    EXPECT_EQ(File::open(folder / name).tensors().size(), 2u);
  }
}

TEST(split, an_image_of_a_part_is_not_a_whole_model) {
  Metadata metadata;
  set_u16(metadata, "split.no", 0);
  set_u16(metadata, "split.count", 2);
  EXPECT_THROW(File::parse(write_image(metadata, {}), "part"), Error);
}

TEST(split, names_are_taken_apart_only_where_they_are_whole) {
  const auto name = parse_split_name("dir/m-7b-00002-of-00003.gguf");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->stem, "m-7b");
  EXPECT_EQ(name->number, 1u);
  EXPECT_EQ(name->count, 3u);
  EXPECT_EQ(split_part_path("dir/m-7b-00002-of-00003.gguf", *name, 0),
            "dir/m-7b-00001-of-00003.gguf");
  for (const char* other :
       {"m.gguf", "-00001-of-00002.gguf", "m-00001-of-00002", "m-0001-of-0002.gguf",
        "m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-0000x-of-00002.gguf",
        "m-00001_of_00002.gguf", "m-00001-of-00002.gguf.bak", "m00001-of-00002.gguf"}) {
    EXPECT_FALSE(parse_split_name(other)) << other;
  }
}

}  // namespace
}  // namespace quern::gguf
