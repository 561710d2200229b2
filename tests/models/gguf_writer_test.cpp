#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "models/error.h"
#include "models/gguf/file.h"
#include "models/gguf/writer.h"
#include "tests/support/fixtures.h"
#include "tests/support/temporary_folder.h"

namespace quern::gguf {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

uint64_t below(Random& random, uint64_t bound) {
  return random() % bound;
}

/// A tensor whose bytes are `data`, handed over in two pieces.
TensorToWrite tensor_of(std::string name, std::vector<uint64_t> shape, QuantType type, Bytes data) {
  return {.name = std::move(name),
          .shape = std::move(shape),
          .type = type,
          .fill = [data = std::move(data)](const TensorToWrite::Sink& sink) {
            const std::span<const std::byte> all(data);
            sink(all.first(data.size() / 3));
            sink(all.subspan(data.size() / 3));
          }};
}

std::string random_text(Random& random, size_t longest) {
  std::string text(below(random, longest + 1), '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

/// A random value of this type, within the range of its width.
template <typename FileType, typename Held>
Held random_number(Random& random) {
  if constexpr (std::is_floating_point_v<FileType>) {
    return static_cast<FileType>(std::ldexp(static_cast<double>(random()), -60));
  } else {
    return static_cast<FileType>(random());
  }
}

template <typename FileType, typename Held>
Value random_of(Random& random, ValueType type, bool array) {
  if (!array) return {type, ValueType::u32, random_number<FileType, Held>(random)};
  std::vector<Held> values(below(random, 20));
  for (Held& value : values) value = random_number<FileType, Held>(random);
  return {ValueType::array, type, std::move(values)};
}

Value random_value(Random& random) {
  const bool array = below(random, 2) == 0;
  switch (static_cast<ValueType>(below(random, 13))) {
    case ValueType::u8:
      return random_of<uint8_t, uint64_t>(random, ValueType::u8, array);
    case ValueType::i8:
      return random_of<int8_t, int64_t>(random, ValueType::i8, array);
    case ValueType::u16:
      return random_of<uint16_t, uint64_t>(random, ValueType::u16, array);
    case ValueType::i16:
      return random_of<int16_t, int64_t>(random, ValueType::i16, array);
    case ValueType::u32:
      return random_of<uint32_t, uint64_t>(random, ValueType::u32, array);
    case ValueType::i32:
      return random_of<int32_t, int64_t>(random, ValueType::i32, array);
    case ValueType::u64:
      return random_of<uint64_t, uint64_t>(random, ValueType::u64, array);
    case ValueType::i64:
      return random_of<int64_t, int64_t>(random, ValueType::i64, array);
    case ValueType::f32:
      return random_of<float, double>(random, ValueType::f32, array);
    case ValueType::f64:
      return random_of<double, double>(random, ValueType::f64, array);
    case ValueType::boolean: {
      if (!array) return {ValueType::boolean, ValueType::u32, below(random, 2) == 1};
      std::vector<uint8_t> values(below(random, 20));
      for (uint8_t& value : values) value = static_cast<uint8_t>(below(random, 2));
      return {ValueType::array, ValueType::boolean, std::move(values)};
    }
    default: {
      if (!array) return {ValueType::string, ValueType::u32, random_text(random, 40)};
      std::vector<std::string> values(below(random, 20));
      for (std::string& value : values) value = random_text(random, 10);
      return {ValueType::array, ValueType::string, std::move(values)};
    }
  }
}

struct RandomModel {
  Metadata metadata;
  std::vector<TensorToWrite> tensors;
  std::vector<Bytes> data;
};

RandomModel random_model(uint64_t seed) {
  Random random(seed);
  RandomModel model;
  const uint64_t keys = below(random, 12);
  for (uint64_t i = 0; i < keys; ++i) {
    model.metadata.set(fmt::format("key.{}", i), random_value(random));
  }
  if (below(random, 2) == 0) {
    model.metadata.set_u32("general.alignment", uint32_t{1} << below(random, 9));
  }
  const uint64_t count = below(random, 8);
  for (uint64_t i = 0; i < count; ++i) {
    const QuantTraits& traits = quant_table()[below(random, quant_table().size())];
    std::vector<uint64_t> shape;
    for (uint64_t d = below(random, 5); d > 0; --d) shape.push_back(below(random, 4));
    if (shape.empty() && traits.block_values > 1) shape.push_back(1);
    if (!shape.empty()) shape[0] *= traits.block_values;
    uint64_t blocks = 1;
    for (const uint64_t extent : shape) blocks *= extent;
    if (!shape.empty()) blocks /= traits.block_values;
    Bytes data(blocks * traits.block_bytes);
    for (std::byte& byte : data) byte = static_cast<std::byte>(random());
    model.data.push_back(data);
    model.tensors.push_back(tensor_of(fmt::format("t.{}", i), shape, traits.type, data));
  }
  return model;
}

void expect_same(const File& file, const RandomModel& model) {
  ASSERT_EQ(file.metadata().keys(), model.metadata.keys());
  for (const std::string& key : model.metadata.keys()) {
    const Value& read = *file.metadata().find(key);
    const Value& written = *model.metadata.find(key);
    EXPECT_EQ(read.type, written.type) << key;
    if (written.type == ValueType::array) {
      EXPECT_EQ(read.element, written.element) << key;
    }
    EXPECT_EQ(read.data, written.data) << key;
  }
  ASSERT_EQ(file.tensors().size(), model.tensors.size());
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const Tensor& tensor = file.tensors()[i];
    EXPECT_EQ(tensor.name, model.tensors[i].name);
    EXPECT_EQ(tensor.shape, model.tensors[i].shape);
    EXPECT_EQ(tensor.type, model.tensors[i].type);
    EXPECT_TRUE(std::equal(tensor.data.begin(), tensor.data.end(), model.data[i].begin(),
                           model.data[i].end()))
        << tensor.name;
  }
}

TEST(writer, random_models_survive_the_round_trip_through_memory_and_file) {
  const TemporaryFolder folder;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const RandomModel model = random_model(seed);
    const Bytes image = write_image(model.metadata, model.tensors);
    expect_same(File::parse(image, "memory"), model);
    if (seed > 20) continue;
    const auto path = folder / fmt::format("{}.gguf", seed);
    write_file(path, model.metadata, model.tensors);
    ASSERT_EQ(std::filesystem::file_size(path), image.size());
    expect_same(File::open(path), model);
  }
}

TEST(writer, shapes_that_hold_nothing_survive_beside_the_largest_extents) {
  constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();
  const std::vector<std::vector<uint64_t>> shapes = {
      {0}, {0, kLargest}, {kLargest, 0}, {0, 0, kLargest, 0}, {uint64_t{1} << 40, 0, 1 << 20}};
  for (const auto& shape : shapes) {
    const Bytes image = write_image({}, {tensor_of("t", shape, QuantType::f32, {})});
    const File file = File::parse(image, "empty shapes");
    EXPECT_EQ(file.find("t")->shape, shape);
    EXPECT_EQ(file.find("t")->elements(), 0u);
  }
}

TEST(writer, a_fixture_is_written_back_byte_for_byte) {
  for (const char* name : {"fixtures/llama.gguf", "fixtures/quant/llama-q4_k_m.gguf"}) {
    const auto path = test::data_file(name);
    const File file = File::open(path);
    std::vector<TensorToWrite> tensors;
    for (const Tensor& tensor : file.tensors()) {
      tensors.push_back(tensor_of(tensor.name, tensor.shape, tensor.type,
                                  {tensor.data.begin(), tensor.data.end()}));
    }
    const TemporaryFolder folder;
    write_file(folder / "copy.gguf", file.metadata(), tensors);
    const auto read = [](const std::filesystem::path& p) {
      std::ifstream in(p, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(in), {});
    };
    EXPECT_TRUE(read(path) == read(folder / "copy.gguf")) << name;
  }
}

TEST(writer, the_finished_file_alone_is_left_with_the_permissions_of_the_umask) {
  const TemporaryFolder folder;
  test::write_bytes(folder / "m.gguf", {});
  write_file(folder / "m.gguf", Metadata(), {tensor_of("t", {1}, QuantType::f32, Bytes(4))});
  EXPECT_EQ(folder.entries(), 1u);
  EXPECT_EQ(File::open(folder / "m.gguf").tensors().size(), 1u);
  const mode_t mask = ::umask(022);
  write_file(folder / "n.gguf", Metadata(), {});
  ::umask(mask);
  struct stat info{};
  ASSERT_EQ(::stat((folder / "n.gguf").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0644u);
}

/// What `write_file` says when it fails; the old file must be as it was and nothing be beside it.
Error failed_write(const TemporaryFolder& folder, const Metadata& metadata,
                   const std::vector<TensorToWrite>& tensors) {
  const auto path = folder / "m.gguf";
  write_file(path, Metadata(), {});
  const auto size = std::filesystem::file_size(path);
  Error result(ErrorKind::failed, "", "");
  try {
    write_file(path, metadata, tensors);
    ADD_FAILURE() << "was written";
  } catch (const Error& error) {
    result = error;
  }
  EXPECT_EQ(folder.entries(), 1u);
  EXPECT_EQ(std::filesystem::file_size(path), size);
  return result;
}

TEST(writer, bytes_that_do_not_match_the_shape_are_refused_and_leave_nothing) {
  const TemporaryFolder folder;
  for (const size_t bytes : {0u, 12u, 17u, 100000u}) {
    const Error error =
        failed_write(folder, {}, {tensor_of("t", {4}, QuantType::f32, Bytes(bytes))});
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_EQ(error.thing(), "tensor t");
  }
}

TEST(writer, a_fill_that_throws_leaves_nothing) {
  const TemporaryFolder folder;
  const Error error = failed_write(
      folder, {}, {{.name = "t", .shape = {1}, .type = QuantType::f32, .fill = [](const auto&) {
                      throw Error(ErrorKind::failed, "source", "went away");
                    }}});
  EXPECT_EQ(error.thing(), "source");
}

TEST(writer, what_the_reader_would_refuse_is_not_written) {
  const TemporaryFolder folder;
  const auto usage = [&](const Metadata& metadata, const std::vector<TensorToWrite>& tensors) {
    EXPECT_EQ(failed_write(folder, metadata, tensors).kind(), ErrorKind::usage);
  };
  const auto tensor = [](std::string name, std::vector<uint64_t> shape, QuantType type) {
    return std::vector{tensor_of(std::move(name), std::move(shape), type, {})};
  };
  usage({}, tensor("", {1}, QuantType::f32));
  usage({}, tensor(std::string(64, 'n'), {1}, QuantType::f32));
  usage({}, tensor("t", {1, 1, 1, 1, 1}, QuantType::f32));
  usage({}, tensor("t", {33}, QuantType::q8_0));
  usage({}, tensor("t", {}, QuantType::q8_0));
  usage({}, tensor("t", {uint64_t{1} << 62}, QuantType::f32));
  usage({}, tensor("t", {uint64_t{1} << 40, uint64_t{1} << 40}, QuantType::f32));
  usage({}, tensor("t", {1}, static_cast<QuantType>(77)));
  usage({}, {tensor_of("t", {1}, QuantType::f32, Bytes(4)),
             tensor_of("t", {1}, QuantType::f32, Bytes(4))});
  const auto with = [](std::string key, Value value) {
    Metadata metadata;
    metadata.set(std::move(key), std::move(value));
    return metadata;
  };
  usage(with("", {ValueType::u32, ValueType::u32, uint64_t{1}}), {});
  usage(with(std::string(65536, 'k'), {ValueType::u32, ValueType::u32, uint64_t{1}}), {});
  usage(with("k", {ValueType::u8, ValueType::u32, uint64_t{256}}), {});
  usage(with("k", {ValueType::i8, ValueType::u32, int64_t{-129}}), {});
  usage(with("k", {ValueType::string, ValueType::u32, uint64_t{1}}), {});
  usage(with("k", {ValueType::u32, ValueType::u32, std::string("text")}), {});
  usage(with("k", {ValueType::array, ValueType::u8, std::vector<uint64_t>{1, 256}}), {});
  usage(with("k", {ValueType::array, ValueType::f32, std::vector<uint64_t>{1}}), {});
  usage(with("k", {ValueType::u32, ValueType::u32, std::vector<uint64_t>{1}}), {});
  usage(with("general.alignment", {ValueType::u32, ValueType::u32, uint64_t{13}}), {});
  usage(with("general.alignment", {ValueType::i32, ValueType::u32, int64_t{32}}), {});
}

TEST(writer, a_folder_that_cannot_be_written_fails_with_the_path) {
  const TemporaryFolder folder;
  try {
    write_file(folder / "absent/m.gguf", Metadata(), {});
    FAIL() << "was written";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failed);
    EXPECT_EQ(error.thing(), (folder / "absent/m.gguf").string());
    EXPECT_THAT(error.reason(), HasSubstr("No such file"));
  }
  // A destination that is a folder: the rename fails after everything was written.
  std::filesystem::create_directory(folder / "m.gguf");
  EXPECT_THROW(write_file(folder / "m.gguf", Metadata(), {}), Error);
  EXPECT_EQ(folder.entries(), 1u);
}

/// Runs `body` in a child process and returns its exit status (99 where a signal ended it).
template <typename Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

/// Exit status of a child that writes 3 MB to folder/m.gguf: 0 written, 10 `failed` with an empty
/// folder, 11 something else.
int write_3_megabytes(const TemporaryFolder& folder) {
  try {
    write_file(folder / "m.gguf", Metadata(),
               {tensor_of("t", {3 << 20}, QuantType::q8_0, Bytes((3 << 20) / 32 * 34))});
    return 0;
  } catch (const Error& error) {
    const bool as_promised = error.kind() == ErrorKind::failed && folder.entries() == 0 &&
                             error.thing() == (folder / "m.gguf").string();
    return as_promised ? 10 : 11;
  }
}

TEST(writer, a_file_size_limit_fails_and_leaves_nothing) {
  const TemporaryFolder folder;
  EXPECT_EQ(in_child([&] {
              std::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit = {2 << 20, 2 << 20};
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 12;
              return write_3_megabytes(folder);
            }),
            10);
}

TEST(writer, a_full_disk_fails_and_leaves_nothing) {
  const TemporaryFolder folder;
  const int status = in_child([&] {
    // A disk of 1 MB in a mount namespace of this child alone.
    if (::unshare(CLONE_NEWNS) != 0) return 12;
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 12;
    if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0) return 12;
    return write_3_megabytes(folder);
  });
  if (status == 12) GTEST_SKIP() << "mounting a small disk needs root";
  EXPECT_EQ(status, 10);
}

TEST(writer, a_read_only_folder_fails_and_leaves_nothing) {
  const TemporaryFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  const int status = in_child([&] {
    // Permissions bind ordinary users alone.
    if (::getuid() == 0 && ::setuid(65534) != 0) return 12;
    return write_3_megabytes(folder);
  });
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  EXPECT_EQ(status, 10);
}

}  // namespace
}  // namespace quern::gguf
