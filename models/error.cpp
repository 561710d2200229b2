#include "models/error.h"

namespace quern {
namespace {

std::string one_line(std::string_view thing, std::string_view reason, std::string_view remedy) {
  std::string line(thing);
  line.append(": ").append(reason);
  if (!remedy.empty()) line.append("; ").append(remedy);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

}  // namespace

Error::Error(ErrorKind kind, std::string_view thing, std::string_view reason,
             std::string_view remedy)
    : std::runtime_error(one_line(thing, reason, remedy)),
      kind_(kind),
      thing_(thing),
      reason_(reason),
      remedy_(remedy) {}

}  // namespace quern
