#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "templates/spec/any_spec.h"

namespace quern {

using OrderedJson = nlohmann::ordered_json;

/// The double whose shortest decimal is also the shortest decimal of `value` where that loses
/// nothing, so that JSON shows 1e-06 and not 9.999999974752427e-07. Converts back to `value`
/// exactly.
double readable_double(float value);

/// A spec as JSON, its family first, then every field in declaration order. Throws Error (`failed`)
/// where a field holds no value of its type (a number that is not finite, an unknown enumerator).
OrderedJson spec_to_json(const spec::AnySpec& spec);

/// The reverse: every field must be there, none beside them. Throws Error (`failed`) that names the
/// field under `where` ("kernels[3].spec").
spec::AnySpec spec_from_json(const OrderedJson& json, std::string_view where);

}  // namespace quern
