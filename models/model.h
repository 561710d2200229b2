#pragma once

#include <filesystem>
#include <optional>

#include "models/chat/chat_template.h"
#include "models/gguf/file.h"
#include "models/graph.h"
#include "models/tokenizer/tokenizer.h"

namespace quern {

/// Builds the graph of a file: finds the family by `general.architecture`, checks every key and
/// tensor that the family needs (shape and type) and that the vocabulary agrees with the tokenizer.
/// Errors
/// (`bad_model`) name the key or tensor. Unknown architecture: names it and lists those known.
ModelGraph build_graph(const gguf::File& file);

/// Names of the architectures that build_graph knows.
std::vector<std::string> known_architectures();

}  // namespace quern
