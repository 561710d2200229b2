#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "compiler/cuda/cuda_compiler.h"
#include "compiler/cuda/embedded_headers.h"
#include "compiler/spec_names.h"
#include "models/error.h"

namespace quern::cuda {
namespace {

// The C++ name of each enum that specs hold.
template <class E>
constexpr std::string_view enum_type_name() {
  if constexpr (std::is_same_v<E, spec::QuantType>) return "QuantType";
  if constexpr (std::is_same_v<E, spec::KvType>) return "KvType";
  if constexpr (std::is_same_v<E, spec::Tier>) return "Tier";
  if constexpr (std::is_same_v<E, spec::Epilogue>) return "Epilogue";
  if constexpr (std::is_same_v<E, spec::QkNorm>) return "QkNorm";
  if constexpr (std::is_same_v<E, spec::RopePairing>) return "RopePairing";
  if constexpr (std::is_same_v<E, spec::AttentionPath>) return "AttentionPath";
  if constexpr (std::is_same_v<E, spec::HeadMap>) return "HeadMap";
}

std::string float_literal(float value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

/// Prints an aggregate as named designated initialisers.
class Initialisers {
 public:
  explicit Initialisers(std::string indent) : indent_(std::move(indent)) {}

  template <class T>
  void operator()(std::string_view name, const T& value) {
    text_ += fmt::format("{}.{} = {},\n", indent_, name, print(value));
  }
  const std::string& text() const { return text_; }

 private:
  template <class T>
  std::string print(const T& value) const {
    if constexpr (std::is_array_v<T>) {
      std::string list = "{";
      for (const auto& item : value)
        list += fmt::format("{}{}", list.size() > 1 ? ", " : "", print(item));
      return list + "}";
    } else if constexpr (std::is_enum_v<T>) {
      return fmt::format("{}::{}", enum_type_name<T>(), spec_name(value));
    } else if constexpr (std::is_same_v<T, float>) {
      return float_literal(value);
    } else if constexpr (std::is_same_v<T, spec::u32>) {
      return fmt::format("{}", value);
    } else {
      Flat flat;
      T::fields(value,
                [&](std::string_view name, const auto& field) { flat.add(name, print(field)); });
      return flat.text();
    }
  }
  struct Flat {
    std::string list = "{";
    void add(std::string_view name, const std::string& value) {
      list += fmt::format("{}.{} = {}", list.size() > 1 ? ", " : "", name, value);
    }
    std::string text() const { return list + "}"; }
  };

  std::string indent_, text_;
};

template <class S>
std::string emit(const S& spec, std::string_view type) {
  Initialisers fields("    ");
  S::fields(spec, fields);
  return fmt::format(
      "#include \"templates/cuda/{0}.cuh\"\n"
      "\n"
      "namespace quern::spec {{\n"
      "constexpr {1} quern_spec = {{\n"
      "{2}"
      "}};\n"
      "}}  // namespace quern::spec\n"
      "\n"
      "using QuernKernel = quern::cuda::Kernel<quern::spec::quern_spec>;\n"
      "\n"
      "extern \"C\" __global__ void __launch_bounds__(QuernKernel::threads, "
      "QuernKernel::min_blocks)\n"
      "quern_kernel(const __grid_constant__ quern::cuda::KernelArgs args) {{\n"
      "  QuernKernel::run(args);\n"
      "}}\n",
      S::family, type, fields.text());
}

template <class S>
constexpr std::string_view spec_type_name() {
  if constexpr (std::is_same_v<S, spec::AddSpec>) return "AddSpec";
  if constexpr (std::is_same_v<S, spec::AttentionSpec>) return "AttentionSpec";
  if constexpr (std::is_same_v<S, spec::CombineSpec>) return "CombineSpec";
  if constexpr (std::is_same_v<S, spec::ConvSpec>) return "ConvSpec";
  if constexpr (std::is_same_v<S, spec::DeltaSpec>) return "DeltaSpec";
  if constexpr (std::is_same_v<S, spec::EmbedSpec>) return "EmbedSpec";
  if constexpr (std::is_same_v<S, spec::ExpertsSpec>) return "ExpertsSpec";
  if constexpr (std::is_same_v<S, spec::FinishSpec>) return "FinishSpec";
  if constexpr (std::is_same_v<S, spec::FlattenSpec>) return "FlattenSpec";
  if constexpr (std::is_same_v<S, spec::GatherSpec>) return "GatherSpec";
  if constexpr (std::is_same_v<S, spec::GemmSpec>) return "GemmSpec";
  if constexpr (std::is_same_v<S, spec::GroupSpec>) return "GroupSpec";
  if constexpr (std::is_same_v<S, spec::MatmulSpec>) return "MatmulSpec";
  if constexpr (std::is_same_v<S, spec::NormSpec>) return "NormSpec";
  if constexpr (std::is_same_v<S, spec::QkvPostSpec>) return "QkvPostSpec";
  if constexpr (std::is_same_v<S, spec::RepackSpec>) return "RepackSpec";
  if constexpr (std::is_same_v<S, spec::RouterSpec>) return "RouterSpec";
  if constexpr (std::is_same_v<S, spec::SelectSpec>) return "SelectSpec";
  if constexpr (std::is_same_v<S, spec::UnpackSpec>) return "UnpackSpec";
}

}  // namespace

std::string emit_source(const spec::AnySpec& spec) {
  if (is_library(spec)) {
    throw Error(ErrorKind::failed, fmt::format("kernel family {}", spec_family(spec)),
                "a library computes it, and it has no source");
  }
  return std::visit(
      [](const auto& s) { return emit(s, spec_type_name<std::decay_t<decltype(s)>>()); }, spec);
}

std::string_view header_text(std::string_view name) {
  for (const EmbeddedHeader& header : embedded_headers()) {
    if (header.name == name) return header.text;
  }
  throw Error(ErrorKind::failed, fmt::format("device header '{}'", name),
              "this build of Quern has none such");
}

std::vector<std::string> header_closure(std::string_view source) {
  std::vector<std::string> names;
  std::vector<std::string_view> open{source};
  while (!open.empty()) {
    std::string_view text = open.back();
    open.pop_back();
    constexpr std::string_view directive = "#include \"";
    for (size_t at = text.find(directive); at != std::string_view::npos;
         at = text.find(directive, at + 1)) {
      const size_t begin = at + directive.size(), end = text.find('"', begin);
      if (end == std::string_view::npos) break;
      std::string name(text.substr(begin, end - begin));
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      open.push_back(header_text(name));
      names.push_back(std::move(name));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace quern::cuda
