#pragma once

// Host only: every kernel family in one variant.

#include <variant>

#include "templates/spec/attention.h"
#include "templates/spec/embed.h"
#include "templates/spec/gdn.h"
#include "templates/spec/gemm.h"
#include "templates/spec/library_gemm.h"
#include "templates/spec/moe.h"
#include "templates/spec/norm.h"
#include "templates/spec/qkv_post.h"
#include "templates/spec/repack.h"
#include "templates/spec/select.h"

namespace quern::spec {

using AnySpec =
    std::variant<AddSpec, AttentionSpec, CombineSpec, ConvSpec, DeltaSpec, EmbedSpec, ExpertsSpec,
                 FinishSpec, FlattenSpec, GatherSpec, GemmSpec, GroupSpec, MatmulSpec, NormSpec,
                 QkvPostSpec, RepackSpec, RouterSpec, SelectSpec, UnpackSpec>;

}  // namespace quern::spec
