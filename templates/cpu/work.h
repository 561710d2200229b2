#pragma once

// How workers of one launch share its work.

#include "templates/cpu/abi.h"
#include "templates/cpu/vec.h"

namespace quern::cpu {

/// Some consecutive units of a launch.
struct Range {
  u32 begin, end;
  QUERN_INLINE bool empty() const { return begin >= end; }
};

/// The next units to do, of `total`: up to `most` while there are enough for every worker, fewer
/// towards the end, so that workers finish together. Empty when all are taken.
QUERN_INLINE Range take(const KernelArgs* args, u32 total, u32 most) {
  u32 begin = __atomic_load_n(args->next_tile, __ATOMIC_RELAXED);
  while (begin < total) {
    const u32 left = total - begin;
    const u32 share = (left + args->n_workers - 1) / args->n_workers;
    const u32 count = share < most ? share : most;
    if (__atomic_compare_exchange_n(args->next_tile, &begin, begin + count, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
      return {begin, begin + count};
    }
  }
  return {total, total};
}

}  // namespace quern::cpu
