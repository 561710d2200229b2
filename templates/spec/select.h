#pragma once

#include "templates/spec/types.h"

namespace quern::spec {

/// The best logits of the last requested row, ordered by (logit descending, id ascending), after
/// the repeat penalty; and how many logits were no finite numbers before it. GPU alone; one launch
/// for a row, whatever the rows. Buffers: 0 logits f32 [outputs][vocabulary]; 1 SelectWish, then
/// its ids; 2 SelectAnswer, then its candidates; 3 scratch; 4 counters, zero between launches.
struct SelectSpec {
  static constexpr const char* family = "select";
  static constexpr bool gpu_only = true;

  u32 vocabulary = 0;
  u32 count = 0;  ///< Candidates that a launch may be asked for, at most select_most_count.

  template <class S, class V>
  static constexpr void fields(S& s, V&& v) {
    v("vocabulary", s.vocabulary);
    v("count", s.count);
  }
};

/// What a launch is asked for; `n_seen` ids (u32, each once) of tokens that the penalty lowers
/// follow.
struct SelectWish {
  u32 wanted;     ///< 1 to the smaller of the spec's count and vocabulary.
  u32 n_seen;     ///< At most select_most_seen.
  float penalty;  ///< Divides the positive logits of seen tokens and multiplies the others.
  u32 reserved;
};
/// What it answers; `wanted` candidates follow.
struct SelectAnswer {
  u32 not_finite;        ///< Logits that are no finite numbers.
  u32 first_not_finite;  ///< The lowest id of one.
  u32 reserved[2];
};
struct SelectCandidate {
  float logit;  ///< After the penalty; 0 for -0.
  u32 id;
};

inline constexpr u32 select_most_count = 1024, select_most_seen = 1024;

/// A block of so many threads sorts so many logits; it holds so many keys of 8 bytes.
inline constexpr u32 select_threads = 256, select_slice = 1024, select_room = 4096;

constexpr u32 select_blocks(u32 vocabulary) {
  return (vocabulary - 1) / select_slice + 1;
}
/// Candidates that a block hands on: `wanted` up to a power of two.
constexpr u32 select_width(u32 wanted) {
  u32 width = 1;
  while (width < wanted && width < select_most_count) width *= 2;
  return width;
}
/// A note and a list of each block.
constexpr unsigned long long select_scratch_bytes(const SelectSpec& s) {
  return static_cast<unsigned long long>(select_blocks(s.vocabulary)) *
         (1 + select_width(s.count)) * 8;
}
/// Groups of blocks that merge their lists, of all levels: fewer where fewer candidates are wanted.
constexpr u32 select_counters(const SelectSpec& s) {
  const u32 fan = select_room / select_width(s.count);
  u32 groups = 0;
  for (u32 lists = select_blocks(s.vocabulary); lists > 1;) {
    lists = (lists + fan - 1) / fan;
    groups += lists;
  }
  return groups == 0 ? 1 : groups;
}
constexpr u32 select_wish_bytes() {
  return sizeof(SelectWish) + select_most_seen * 4;
}
constexpr u32 select_answer_bytes(const SelectSpec& s) {
  return sizeof(SelectAnswer) + s.count * static_cast<u32>(sizeof(SelectCandidate));
}

}  // namespace quern::spec
