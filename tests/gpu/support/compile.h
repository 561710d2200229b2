#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/cuda/cuda_compiler.h"

namespace quern::test {

/// Calls f(0) .. f(count - 1) from as many threads as the machine has.
void in_parallel(size_t count, const std::function<void(size_t)>& f);

/// Compiles these kernels for this GPU in parallel, so that tests that need many do not wait for
/// each in turn. Where there is no GPU it does nothing. QUERN_TEST_KERNELS=DIR keeps them there for
/// the next program.
void precompile(const std::vector<spec::AnySpec>& specs);

/// A spec compiled for this GPU, strictly (no spills), once a program.
const CompiledKernel& compiled(const spec::AnySpec& spec);

struct TextChange {
  std::string_view from, to;
};

/// The spec's kernel with the first `from` of each change replaced in an embedded header. Fails the
/// test where the header has no such text.
CompiledKernel compile_variant(const spec::AnySpec& spec, std::string_view header,
                               std::span<const TextChange> changes);

/// A deliberately wrong variant.
CompiledKernel compile_mutant(const spec::AnySpec& spec, std::string_view header,
                              std::string_view from, std::string_view to);

}  // namespace quern::test
