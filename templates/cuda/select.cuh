#pragma once

#include "templates/cuda/abi.h"
#include "templates/cuda/ptx/dependency.cuh"
#include "templates/spec/select.h"

namespace quern::cuda {

/// Each block sorts a slice of the row and keeps the best; of each group of blocks the last to finish merges the group's
/// lists, level by level until one is left. What is merged is the same whichever block does it.
/// A candidate is a key of 64 bits: the logit's bits in an order that integers have, then the complement of the id, so that no
/// two are equal and the larger comes first. 0 stands for none.
template <spec::SelectSpec s>
struct Kernel {
  using Key = unsigned long long;
  static constexpr u32 threads = spec::select_threads, min_blocks = 1;
  static constexpr u32 slice = spec::select_slice, room = spec::select_room, blocks = spec::select_blocks(s.vocabulary);
  static_assert(s.count >= 1 && s.count <= spec::select_most_count, "a list must fit a slice");

  static __device__ __forceinline__ void run(const KernelArgs& args) {
    __shared__ Key keys[room];
    __shared__ u32 seen[slice / 32];
    __shared__ u32 not_finite, first_not_finite, ticket;
    ptx::follow_last_launch();
    const spec::SelectWish wish = *static_cast<const spec::SelectWish*>(args.buffers[1]);
    const u32 wanted = min(max(wish.wanted, 1u), min(s.count, s.vocabulary));
    const u32 shift = wanted > 1 ? 32 - __clz(wanted - 1) : 0;  // lists of 1 << shift keys
    if (threadIdx.x == 0) not_finite = 0, first_not_finite = ~0u;
    mark_seen(args, wish.n_seen, seen);
    load_slice(args, wish.penalty, seen, keys, not_finite, first_not_finite);
    __syncthreads();
    sort_lists(keys, shift);
    merge(keys, slice >> shift, shift);

    Key* notes = static_cast<Key*>(args.buffers[3]);
    Key* lists = notes + blocks;
    u32* counters = static_cast<u32*>(args.buffers[4]);
    const u32 fan = room >> shift;
    // A group's list takes the place of its first member's, which only this group reads.
    for (u32 left = blocks, node = blockIdx.x, stride = 1; left > 1;) {
      store(keys, notes, lists, node * stride, shift, not_finite, first_not_finite);
      const u32 groups = (left + fan - 1) / fan, group = node / fan, size = min(fan, left - group * fan);
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) ticket = atomicAdd(counters + group, 1u);
      __syncthreads();
      if (ticket != size - 1) return;
      __threadfence();
      if (threadIdx.x == 0) counters[group] = 0, not_finite = 0, first_not_finite = ~0u;
      __syncthreads();
      load_lists(keys, notes, lists, group * fan, size, stride, shift, not_finite, first_not_finite);
      __syncthreads();
      merge(keys, size, shift);
      counters += groups, left = groups, node = group, stride *= fan;
    }
    answer(args, keys, wanted, not_finite, first_not_finite);
  }

  /// A bit for each id of the block's slice.
  static __device__ __forceinline__ void mark_seen(const KernelArgs& args, u32 n_seen, u32* seen) {
    if (threadIdx.x < slice / 32) seen[threadIdx.x] = 0;
    __syncthreads();
    const u32* ids = reinterpret_cast<const u32*>(static_cast<const spec::SelectWish*>(args.buffers[1]) + 1);
    for (u32 i = threadIdx.x; i < n_seen; i += threads) {
      const u32 at = ids[i] - blockIdx.x * slice;  // wraps to far outside for ids before the slice
      if (at < slice) atomicOr(seen + at / 32, 1u << at % 32);
    }
    __syncthreads();
  }

  static __device__ __forceinline__ void load_slice(const KernelArgs& args, float penalty, const u32* seen, Key* keys,
                                                    u32& not_finite, u32& first_not_finite) {
    const float* row = static_cast<const float*>(args.buffers[0]) + static_cast<size_t>(args.state->n_outputs - 1) * s.vocabulary;
#pragma unroll
    for (u32 at = threadIdx.x; at < slice; at += threads) {
      const u32 id = blockIdx.x * slice + at;
      Key key = 0;
      if (id < s.vocabulary) {
        float logit = row[id];
        if ((__float_as_uint(logit) & 0x7f800000u) == 0x7f800000u) {
          atomicAdd(&not_finite, 1u);
          atomicMin(&first_not_finite, id);
        }
        if ((seen[at / 32] >> at % 32 & 1u) != 0) {
          logit = logit > 0 ? __fdiv_rn(logit, penalty) : __fmul_rn(logit, penalty);
        }
        key = key_of(logit, id);
      }
      keys[at] = key;
    }
  }

  static __device__ __forceinline__ Key key_of(float logit, u32 id) {
    const u32 bits = logit == 0 ? 0u : __float_as_uint(logit);  // -0 equals 0
    const u32 ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    return static_cast<Key>(ordered) << 32 | static_cast<u32>(~id);
  }

  /// The larger first.
  static __device__ __forceinline__ void order(Key* keys, u32 first, u32 second, bool descending) {
    const Key a = keys[first], b = keys[second];
    if ((a < b) == descending) keys[first] = b, keys[second] = a;
  }

  /// Sorts each 1 << shift keys of the slice, the best first: bitonic sorts side by side.
  static __device__ __forceinline__ void sort_lists(Key* keys, u32 shift) {
    for (u32 size = 1; size <= shift; ++size) {
      for (u32 step = size; step-- > 0;) {
        for (u32 i = threadIdx.x; i < slice / 2; i += threads) {
          const u32 first = (i >> step << (step + 1)) + (i & ((1u << step) - 1));
          order(keys, first, first + (1u << step), size == shift || (first >> size & 1u) == 0);
        }
        __syncthreads();
      }
    }
  }

  /// Leaves the best of `count` ordered lists, ordered, in the first: the front half of the lists takes the best of itself and of
  /// the back half, until one is left. The larger of a list's i-th and another's i-th from its end are the best of both,
  /// rising and falling once; so is a list that has no partner.
  static __device__ __forceinline__ void merge(Key* keys, u32 count, u32 shift) {
    const u32 width = 1u << shift;
    while (count > 1) {
      const u32 half = (count + 1) / 2;
      for (u32 i = threadIdx.x; i < (count - half) << shift; i += threads) {
        const Key other = keys[((half + (i >> shift)) << shift) + (width - 1 - (i & (width - 1)))];
        if (keys[i] < other) keys[i] = other;
      }
      __syncthreads();
      for (u32 step = shift; step-- > 0;) {
        for (u32 i = threadIdx.x; i < half << shift >> 1; i += threads) {
          const u32 first = (i >> step << (step + 1)) + (i & ((1u << step) - 1));
          order(keys, first, first + (1u << step), true);
        }
        __syncthreads();
      }
      count = half;
    }
  }

  static __device__ __forceinline__ void store(const Key* keys, Key* notes, Key* lists, u32 place, u32 shift, u32 not_finite,
                                               u32 first_not_finite) {
    for (u32 i = threadIdx.x; i < 1u << shift; i += threads) lists[(place << shift) + i] = keys[i];
    if (threadIdx.x == 0) notes[place] = static_cast<Key>(not_finite) << 32 | first_not_finite;
  }

  static __device__ __forceinline__ void load_lists(Key* keys, const Key* notes, const Key* lists, u32 first, u32 size,
                                                    u32 stride, u32 shift, u32& not_finite, u32& first_not_finite) {
    for (u32 i = threadIdx.x; i < size << shift; i += threads) {
      keys[i] = __ldcg(lists + ((((first + (i >> shift)) * stride) << shift) + (i & ((1u << shift) - 1))));
    }
    for (u32 i = threadIdx.x; i < size; i += threads) {
      const Key note = __ldcg(notes + (first + i) * stride);
      if (note >> 32 == 0) continue;
      atomicAdd(&not_finite, static_cast<u32>(note >> 32));
      atomicMin(&first_not_finite, static_cast<u32>(note));
    }
  }

  static __device__ __forceinline__ void answer(const KernelArgs& args, const Key* keys, u32 wanted, u32 not_finite,
                                                u32 first_not_finite) {
    spec::SelectAnswer* head = static_cast<spec::SelectAnswer*>(args.buffers[2]);
    spec::SelectCandidate* candidates = reinterpret_cast<spec::SelectCandidate*>(head + 1);
    if (threadIdx.x == 0) *head = {not_finite, first_not_finite, {0, 0}};
    for (u32 i = threadIdx.x; i < wanted; i += threads) {
      const u32 ordered = static_cast<u32>(keys[i] >> 32);
      const u32 bits = (ordered >> 31) != 0 ? ordered ^ 0x80000000u : ~ordered;
      candidates[i] = {__uint_as_float(bits), ~static_cast<u32>(keys[i])};
    }
  }
};

}  // namespace quern::cuda
