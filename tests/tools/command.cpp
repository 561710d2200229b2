#include "tests/tools/command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace quern::test {
namespace {

struct Pipe {
  std::array<int, 2> ends{-1, -1};
  Pipe() {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  }
};

std::vector<std::string> environment_of(const CommandOptions& options) {
  std::map<std::string, std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  all["QUERN_CACHE_DIR"] = QUERN_TEST_STORE;
  for (const auto& [name, value] : options.environment) all[name] = value;
  std::vector<std::string> lines;
  for (const auto& [name, value] : all) lines.push_back(name + "=" + value);
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// The child between fork and exec: only calls that are safe there.
[[noreturn]] void become(const CommandOptions& options, int out, int err, char** arguments,
                         char** environment) {
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  if (!options.standard_output.empty()) {
    out = ::open(options.standard_output.c_str(), O_WRONLY);
  }
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  if (options.as_nobody && ::geteuid() == 0) {
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(126);
  }
  ::execve(QUERN_BINARY, arguments, environment);
  ::_exit(127);
}

/// Reads both pipes until they close; sends the signal at the first output.
void collect(pid_t child, const CommandOptions& options, int out, int err, CommandResult& result) {
  std::array<pollfd, 2> sources{{{out, POLLIN, 0}, {err, POLLIN, 0}}};
  std::array<std::string*, 2> sinks{&result.out, &result.err};
  bool signalled = false;
  while (sources[0].fd >= 0 || sources[1].fd >= 0) {
    ::poll(sources.data(), sources.size(), -1);
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].fd < 0 || sources[i].revents == 0) continue;
      std::array<char, 65536> block;
      const ssize_t got = ::read(sources[i].fd, block.data(), block.size());
      if (got <= 0) {
        sources[i].fd = -1;
        continue;
      }
      sinks[i]->append(block.data(), static_cast<size_t>(got));
      if (i == 0 && options.signal_at_output != 0 && !signalled) {
        signalled = true;
        ::kill(child, options.signal_at_output);
      }
    }
  }
}

}  // namespace

size_t CommandResult::error_lines() const {
  return static_cast<size_t>(std::count(err.begin(), err.end(), '\n'));
}

CommandResult quern(const std::vector<std::string>& arguments, const CommandOptions& options) {
  std::vector<std::string> texts = {QUERN_BINARY};
  texts.insert(texts.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = environment_of(options);
  const std::vector<char*> argv = pointers(texts);
  const std::vector<char*> envp = pointers(environment);
  const Pipe out, err;
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    become(options, out.ends[1], err.ends[1], const_cast<char**>(argv.data()),
           const_cast<char**>(envp.data()));
  }
  ::close(out.ends[1]);
  ::close(err.ends[1]);
  CommandResult result;
  if (options.closed_reader) ::close(out.ends[0]);
  collect(child, options, options.closed_reader ? -1 : out.ends[0], err.ends[0], result);
  if (!options.closed_reader) ::close(out.ends[0]);
  ::close(err.ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

Npy load_npy(const std::filesystem::path& path) {
  const std::string image = read_text(path);
  if (image.size() < 10 || image.compare(0, 6, "\x93NUMPY") != 0) {
    throw std::runtime_error(path.string() + " is no NumPy file");
  }
  const size_t header = static_cast<unsigned char>(image[8]) +
                        256 * static_cast<size_t>(static_cast<unsigned char>(image[9]));
  const std::string text = image.substr(10, header);
  Npy npy;
  const size_t shape = text.find("'shape': (");
  if (text.find("'descr': '<f4'") == std::string::npos || (10 + header) % 64 != 0 ||
      shape == std::string::npos ||
      std::sscanf(text.c_str() + shape, "'shape': (%zu, %zu)", &npy.rows, &npy.columns) != 2) {
    throw std::runtime_error(path.string() + " has the header " + text);
  }
  npy.values.resize(npy.rows * npy.columns);
  if (image.size() != 10 + header + npy.values.size() * sizeof(float)) {
    throw std::runtime_error(path.string() + " has another size than its header says");
  }
  std::memcpy(npy.values.data(), image.data() + 10 + header, npy.values.size() * sizeof(float));
  return npy;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

std::optional<std::filesystem::path> real_model(const std::string& name) {
  const char* folder = std::getenv("QUERN_MODELS");
  const std::filesystem::path path =
      std::filesystem::path(folder != nullptr ? folder : QUERN_MODELS_DEFAULT) / name;
  if (std::filesystem::is_regular_file(path)) return path;
  return std::nullopt;
}

std::string missing_model(const std::string& name) {
  return name + " is not there: tools/test fetches it, or set QUERN_MODELS to its folder";
}

std::string at_file(const std::filesystem::path& path) {
  std::string text = "@";
  text.append(path.string());
  return text;
}

std::string id_list(const std::vector<int32_t>& ids) {
  std::ostringstream text;
  for (size_t i = 0; i < ids.size(); ++i) text << (i == 0 ? "" : ",") << ids[i];
  return text.str();
}

}  // namespace quern::test
