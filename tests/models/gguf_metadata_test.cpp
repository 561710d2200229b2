#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "models/error.h"
#include "models/gguf/metadata.h"

namespace quern::gguf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// The error of a look-up, which must name the key.
template <typename Call>
std::string reason_of(std::string_view key, Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_model);
    EXPECT_THAT(error.what(), HasSubstr(std::string(key)));
    return error.reason();
  }
  ADD_FAILURE() << "look-up of " << key << " did not fail";
  return "";
}

Metadata sample() {
  Metadata metadata;
  metadata.set_u32("count", 7);
  metadata.set_f32("eps", 1e-5f);
  metadata.set_bool("flag", true);
  metadata.set_string("name", "x");
  metadata.set_i32_array("ints", {-1, 2});
  metadata.set_f32_array("floats", {0.5});
  metadata.set_string_array("strings", {"a"});
  metadata.set("bools", {ValueType::array, ValueType::boolean, std::vector<uint8_t>{1, 0}});
  metadata.set("negative", {ValueType::i32, ValueType::u32, int64_t{-3}});
  metadata.set("signed", {ValueType::i64, ValueType::u32, int64_t{3}});
  metadata.set("huge", {ValueType::array, ValueType::u64,
                        std::vector<uint64_t>{std::numeric_limits<uint64_t>::max()}});
  return metadata;
}

TEST(metadata, required_look_ups_give_the_value) {
  const Metadata metadata = sample();
  EXPECT_EQ(metadata.get_uint("count"), 7u);
  EXPECT_EQ(metadata.get_uint("signed"), 3u);
  EXPECT_EQ(metadata.get_float("eps"), double{1e-5f});
  EXPECT_TRUE(metadata.get_bool("flag"));
  EXPECT_EQ(metadata.get_string("name"), "x");
  EXPECT_THAT(metadata.get_ints("ints"), ElementsAre(-1, 2));
  EXPECT_THAT(metadata.get_floats("floats"), ElementsAre(0.5));
  EXPECT_THAT(metadata.get_strings("strings"), ElementsAre("a"));
  EXPECT_THAT(metadata.get_bools("bools"), ElementsAre(true, false));
}

TEST(metadata, a_missing_key_is_named) {
  const Metadata metadata = sample();
  const auto missing = [&](auto get) {
    EXPECT_THAT(reason_of("gone", [&] { (metadata.*get)("gone"); }), HasSubstr("missing"));
  };
  missing(&Metadata::get_uint);
  missing(&Metadata::get_float);
  missing(&Metadata::get_bool);
  missing(&Metadata::get_string);
  missing(&Metadata::get_ints);
  missing(&Metadata::get_floats);
  missing(&Metadata::get_strings);
  missing(&Metadata::get_bools);
}

TEST(metadata, a_value_of_another_type_is_refused_with_both_types) {
  const Metadata metadata = sample();
  EXPECT_THAT(reason_of("eps", [&] { metadata.get_uint("eps"); }), HasSubstr("f32"));
  EXPECT_THAT(reason_of("count", [&] { metadata.get_float("count"); }), HasSubstr("float"));
  EXPECT_THAT(reason_of("count", [&] { metadata.get_bool("count"); }), HasSubstr("bool"));
  EXPECT_THAT(reason_of("ints", [&] { metadata.get_string("ints"); }), HasSubstr("array of i32"));
  EXPECT_THAT(reason_of("count", [&] { metadata.get_ints("count"); }), HasSubstr("array"));
  EXPECT_THAT(reason_of("ints", [&] { metadata.get_floats("ints"); }), HasSubstr("floats"));
  EXPECT_THAT(reason_of("floats", [&] { metadata.get_strings("floats"); }), HasSubstr("strings"));
  EXPECT_THAT(reason_of("ints", [&] { metadata.get_bools("ints"); }), HasSubstr("bools"));
  EXPECT_THAT(reason_of("ints", [&] { metadata.get_uint("ints"); }), HasSubstr("array of i32"));
}

TEST(metadata, integers_out_of_range_are_refused) {
  const Metadata metadata = sample();
  EXPECT_THAT(reason_of("negative", [&] { metadata.get_uint("negative"); }), HasSubstr("-3"));
  EXPECT_THAT(reason_of("huge", [&] { metadata.get_ints("huge"); }), HasSubstr("out of range"));
}

TEST(metadata, optional_look_ups_fall_back_only_where_the_key_is_absent) {
  const Metadata metadata = sample();
  EXPECT_EQ(metadata.get_uint_or("gone", 5), 5u);
  EXPECT_EQ(metadata.get_uint_or("count", 5), 7u);
  EXPECT_EQ(metadata.get_float_or("gone", 0.5), 0.5);
  EXPECT_EQ(metadata.get_float_or("eps", 0.5), double{1e-5f});
  EXPECT_FALSE(metadata.get_bool_or("gone", false));
  EXPECT_TRUE(metadata.get_bool_or("flag", false));
  EXPECT_EQ(metadata.get_string_or("gone", "y"), "y");
  EXPECT_EQ(metadata.get_string_or("name", "y"), "x");
  reason_of("name", [&] { metadata.get_uint_or("name", 5); });
  reason_of("name", [&] { metadata.get_float_or("name", 5); });
  reason_of("name", [&] { metadata.get_bool_or("name", true); });
  reason_of("flag", [&] { metadata.get_string_or("flag", ""); });
}

TEST(metadata, replacing_a_value_keeps_its_place) {
  Metadata metadata;
  metadata.set_u32("a", 1);
  metadata.set_u32("b", 2);
  metadata.set_string("a", "new");
  EXPECT_THAT(metadata.keys(), ElementsAre("a", "b"));
  EXPECT_EQ(metadata.get_string("a"), "new");
  EXPECT_EQ(metadata.size(), 2u);
}

}  // namespace
}  // namespace quern::gguf
