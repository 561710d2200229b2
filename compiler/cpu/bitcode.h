#pragma once

#include <string_view>

#include "templates/cpu/bitcode.h"

namespace quern::cpu {

/// The template of a family. Throws Error (`failed`) for a family without one.
const BitcodeRow& find_bitcode(std::string_view family);

}  // namespace quern::cpu
