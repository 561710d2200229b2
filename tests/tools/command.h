#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace quern::test {

/// How a command ended and what it wrote.
struct CommandResult {
  int exit_code = -1;  ///< 128 + signal where a signal ended it.
  std::string out, err;

  /// Lines on stderr.
  size_t error_lines() const;
};

struct CommandOptions {
  /// Added to the environment; QUERN_CACHE_DIR is the tests' own store unless named here.
  std::map<std::string, std::string> environment;
  std::string standard_output;  ///< Path to write standard output to instead ("/dev/full").
  bool closed_reader = false;   ///< Standard output is a pipe that nobody reads.
  bool as_nobody = false;       ///< As root: runs as a user without rights.
  int signal_at_output = 0;     ///< Sent as soon as the command has written something.
};

/// Runs the quern of this build with these arguments, standard input empty.
CommandResult quern(const std::vector<std::string>& arguments, const CommandOptions& options = {});

/// A NumPy file of f32 with two dimensions.
struct Npy {
  size_t rows = 0, columns = 0;
  std::vector<float> values;
};
Npy load_npy(const std::filesystem::path& path);

std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

/// A real model that tools/test fetched: in $QUERN_MODELS or build/models. Nothing where it is
/// absent.
std::optional<std::filesystem::path> real_model(const std::string& name);
std::string missing_model(const std::string& name);

/// "@PATH", as token lists are read from files.
std::string at_file(const std::filesystem::path& path);

/// "1,2,3".
std::string id_list(const std::vector<int32_t>& ids);

}  // namespace quern::test
