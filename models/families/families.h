#pragma once

#include "models/gguf/file.h"
#include "models/graph.h"

namespace quern {

// One builder a family; model.cpp holds the table from `general.architecture` to these.

ModelGraph build_llama(const gguf::File& file);
ModelGraph build_qwen2(const gguf::File& file);
ModelGraph build_qwen3(const gguf::File& file);
ModelGraph build_qwen3moe(const gguf::File& file);
ModelGraph build_olmoe(const gguf::File& file);
ModelGraph build_gemma3(const gguf::File& file);
ModelGraph build_qwen3next(const gguf::File& file);
ModelGraph build_qwen35(const gguf::File& file);
ModelGraph build_qwen35moe(const gguf::File& file);

}  // namespace quern
