// The specs' canonical text, their flat fields and the kernel key's digest.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <type_traits>

#include "compiler/kernel.h"
#include "compiler/spec_json.h"
#include "compiler/spec_names.h"
#include "models/error.h"

namespace quern {
namespace {

using spec::AnySpec;

template <size_t Index = 0, class Use>
void for_each_family(Use&& use) {
  if constexpr (Index < std::variant_size_v<AnySpec>) {
    use(std::variant_alternative_t<Index, AnySpec>{});
    for_each_family<Index + 1>(use);
  }
}

/// Changes the `target`-th scalar that a visitor meets, and counts the scalars.
struct Mutator {
  size_t target;
  size_t* met;

  void scalar(uint32_t& number) {
    if ((*met)++ == target) number += 1;
  }
  void scalar(float& number) {
    if ((*met)++ == target) number = number * 2 + 0.1f;
  }
  template <class E>
    requires std::is_enum_v<E>
  void scalar(E& enumerator) {
    if ((*met)++ != target) return;
    for (const auto& row : SpecNames<E>::table) {
      if (row.first != enumerator) {
        enumerator = row.first;
        return;
      }
    }
  }
  template <class T>
    requires std::is_class_v<T>
  void scalar(T& nested) {
    T::fields(nested, *this);
  }
  template <class T>
  void operator()(const char*, T& field) {
    if constexpr (std::is_array_v<T>) {
      for (auto& element : field) scalar(element);
    } else {
      scalar(field);
    }
  }
};

template <class Spec>
size_t mutate(Spec& spec, size_t target) {
  size_t met = 0;
  Spec::fields(spec, Mutator{target, &met});
  return met;
}

KernelKey key_of(const AnySpec& spec) {
  return {{{"family", std::string(spec_family(spec))}, {"spec", spec_to_text(spec)}}};
}

std::string refusal(std::string_view text) {
  try {
    spec_from_text(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failed);
    return error.what();
  }
  return {};
}

TEST(Spec, every_field_of_every_family_changes_text_and_digest_and_survives_the_round_trip) {
  size_t families = 0;
  for_each_family([&](auto plain) {
    using Spec = decltype(plain);
    ++families;
    const std::string plain_text = spec_to_text(plain);
    std::set<std::string> texts = {plain_text};
    std::set<std::string> digests = {key_of(plain).digest()};
    const size_t scalars = mutate(plain, std::numeric_limits<size_t>::max());
    ASSERT_GT(scalars, 0u) << Spec::family;
    EXPECT_EQ(scalars * sizeof(uint32_t), sizeof(Spec))
        << Spec::family << ": a field is missing from the visitor, or is no 32-bit value";
    for (size_t i = 0; i < scalars; ++i) {
      Spec changed{};
      mutate(changed, i);
      const std::string text = spec_to_text(changed);
      EXPECT_TRUE(texts.insert(text).second) << Spec::family << ", scalar " << i << ": " << text;
      EXPECT_TRUE(digests.insert(key_of(changed).digest()).second) << text;
      const AnySpec back = spec_from_text(text);
      EXPECT_EQ(spec_family(back), Spec::family);
      EXPECT_EQ(spec_to_text(back), text);
      const auto before = spec_fields(plain), after = spec_fields(changed);
      ASSERT_EQ(before.size(), after.size());
      size_t differing = 0;
      for (size_t f = 0; f < before.size(); ++f) {
        EXPECT_EQ(before[f].first, after[f].first);
        differing += before[f].second != after[f].second;
      }
      EXPECT_EQ(differing, 1u) << text;
    }
  });
  EXPECT_EQ(families, 19u);
}

TEST(Spec, text_is_one_line_with_the_family_first_and_enumerators_by_name) {
  spec::RouterSpec router;
  router.type = spec::QuantType::q8_0;
  router.k = 2048;
  router.n_expert = 128;
  router.n_used = 8;
  router.renormalise = 1;
  router.weights_scale = 0.1f;
  EXPECT_TRUE(spec_to_text(router).starts_with(
      R"({"family":"router","type":"q8_0","k":2048,"n_expert":128,"n_used":8,"renormalise":1,)"
      R"("weights_scale":0.1)"))
      << spec_to_text(router);
  spec::GemmSpec gemm;
  gemm.segments[1] = {spec::QuantType::q6_k, 1024};
  EXPECT_TRUE(spec_to_text(gemm).starts_with(
      R"({"family":"gemm","segments":[{"type":"f32","rows":0},{"type":"q6_k","rows":1024},)"))
      << spec_to_text(gemm);
}

TEST(Spec, floats_are_written_short_and_read_back_to_the_same_bits) {
  for (const float eps : {1e-6f, 1e-5f, 0.1f, 0.088388346f, 3.4028235e38f, 1.17549435e-38f, 1e-45f,
                          -0.0f, 16777216.0f, 0.33333334f}) {
    spec::NormSpec norm;
    norm.eps = eps;
    const auto back = std::get<spec::NormSpec>(spec_from_text(spec_to_text(norm)));
    EXPECT_EQ(std::signbit(back.eps), std::signbit(eps));
    EXPECT_EQ(back.eps, eps);
  }
  spec::NormSpec norm;
  norm.eps = 1e-6f;
  EXPECT_NE(spec_to_text(norm).find("\"eps\":1e-06,"), std::string::npos) << spec_to_text(norm);
}

TEST(Spec, fields_are_listed_by_their_path) {
  spec::GemmSpec gemm;
  gemm.segments[1] = {spec::QuantType::q6_k, 7};
  const auto fields = spec_fields(gemm);
  EXPECT_EQ(fields[0], (std::pair<std::string, std::string>("segments[0].type", "f32")));
  EXPECT_EQ(fields[2], (std::pair<std::string, std::string>("segments[1].type", "q6_k")));
  EXPECT_EQ(fields[3], (std::pair<std::string, std::string>("segments[1].rows", "7")));
}

TEST(Spec, malformed_text_is_refused_naming_the_field) {
  const std::string good = spec_to_text(spec::RouterSpec{});
  ASSERT_EQ(refusal(good), "");
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return refusal(text);
  };
  EXPECT_NE(with("\"k\":0", "\"k\":-1").find("spec.k"), std::string::npos);
  EXPECT_NE(with("\"k\":0", "\"k\":4294967296").find("spec.k"), std::string::npos);
  EXPECT_NE(with("\"k\":0", "\"k\":1.5").find("spec.k"), std::string::npos);
  EXPECT_NE(with("\"k\":0", "\"k\":\"0\"").find("spec.k"), std::string::npos);
  EXPECT_NE(with("\"k\":0,", "").find("spec.k: missing"), std::string::npos);
  EXPECT_NE(with("\"k\":0", "\"k\":0,\"stranger\":1").find("fields"), std::string::npos);
  EXPECT_NE(with("\"f32\"", "\"f33\"").find("spec.type"), std::string::npos);
  EXPECT_NE(with("\"router\"", "\"rooter\"").find("rooter"), std::string::npos);
  EXPECT_NE(with("\"family\":\"router\",", "").find("spec.family"), std::string::npos);
  EXPECT_NE(with("\"weights_scale\":1.0", "\"weights_scale\":1e39").find("weights_scale"),
            std::string::npos);
  EXPECT_NE(refusal("").find("not JSON"), std::string::npos);
  EXPECT_NE(refusal("[1]").find("not an object"), std::string::npos);
  EXPECT_NE(refusal(R"({"family":"gemm","segments":[]})").find("spec.segments"), std::string::npos);
}

TEST(Spec, values_that_have_no_text_are_refused) {
  spec::NormSpec norm;
  norm.eps = std::numeric_limits<float>::infinity();
  EXPECT_THROW(spec_to_text(norm), Error);
  spec::RouterSpec router;
  router.type = static_cast<spec::QuantType>(77);
  EXPECT_THROW(spec_to_text(router), Error);
}

TEST(KernelKey, fields_cannot_run_into_each_other) {
  const KernelKey a = {{{"ab", "c"}, {"d", ""}}};
  const KernelKey b = {{{"a", "bc"}, {"d", ""}}};
  const KernelKey c = {{{"ab", "cd"}, {"", ""}}};
  const KernelKey d = {{{"d", ""}, {"ab", "c"}}};
  EXPECT_EQ((std::set<std::string>{a.digest(), b.digest(), c.digest(), d.digest()}).size(), 4u);
  EXPECT_EQ(a.digest().size(), 64u);
  EXPECT_EQ(a.digest(), KernelKey{a}.digest());
}

}  // namespace
}  // namespace quern
