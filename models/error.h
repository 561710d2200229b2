#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace quern {

/// What kind of failure an error is; the value is the command's exit code (DESIGN section 7).
enum class ErrorKind : int {
  failed = 1,        ///< Something went wrong while doing what was asked.
  usage = 2,         ///< What was asked makes no sense.
  bad_model = 3,     ///< The model file is damaged, contradictory or not supported.
  does_not_fit = 4,  ///< The model, context or chunk does not fit the device.
};

/// The one exception type of the project. It names the thing, the reason and the remedy, and
/// `what()` is the single line a user reads: "THING: REASON; REMEDY". The remedy may be empty
/// where nothing can be done about it.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string_view thing, std::string_view reason,
        std::string_view remedy = {});

  ErrorKind kind() const noexcept { return kind_; }
  const std::string& thing() const noexcept { return thing_; }
  const std::string& reason() const noexcept { return reason_; }
  const std::string& remedy() const noexcept { return remedy_; }
  int exit_code() const noexcept { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
  std::string thing_;
  std::string reason_;
  std::string remedy_;
};

}  // namespace quern
