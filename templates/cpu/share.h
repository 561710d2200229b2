#pragma once

// Fixed shares, and one counter used as two where workers must know what is finished.

#include "templates/cpu/abi.h"
#include "templates/cpu/math.h"
#include "templates/cpu/work.h"

namespace quern::cpu {

template <class T>
QUERN_INLINE T* buffer(const KernelArgs* args, u32 i) {
  return static_cast<T*>(args->buffers[i]);
}

/// Values below which elementwise work stays with worker 0: waking another costs more.
inline constexpr u64 values_worth_sharing = 16384;

/// The worker's contiguous part of n units, of `values` numbers in all.
QUERN_INLINE Range fixed_share(const KernelArgs* args, u32 n, u64 values) {
  if (values <= values_worth_sharing) return {0, args->worker == 0 ? n : 0};
  const u64 w = args->worker, workers = args->n_workers;
  return {static_cast<u32>(n * w / workers), static_cast<u32>(n * (w + 1) / workers)};
}

/// The next unit that no worker has taken.
QUERN_INLINE u32 claim(const KernelArgs* args) {
  return __atomic_fetch_add(args->next_tile, 1u, __ATOMIC_RELAXED);
}

/// `next_tile` as two counters: units claimed in the low half, units finished in the high half.
/// Good for max_counted_units units.
inline constexpr u32 max_counted_units = 60000;

QUERN_INLINE u32 claim_counted(const KernelArgs* args) {
  return __atomic_fetch_add(args->next_tile, 1u, __ATOMIC_RELAXED) & 0xffffu;
}

/// Marks a unit finished, which publishes its writes; returns how many were finished before.
QUERN_INLINE u32 finish_counted(const KernelArgs* args) {
  return __atomic_fetch_add(args->next_tile, 1u << 16, __ATOMIC_ACQ_REL) >> 16;
}

/// Waits until n units are finished. Units are claimed in ascending order, so whoever holds an
/// unfinished one is running.
QUERN_INLINE void wait_finished(const KernelArgs* args, u32 n) {
  while ((__atomic_load_n(args->next_tile, __ATOMIC_ACQUIRE) >> 16) < n) __builtin_ia32_pause();
}

}  // namespace quern::cpu
