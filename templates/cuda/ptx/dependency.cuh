#pragma once

namespace quern::ptx {

// Programmatic dependent launch (PTX ISA, griddepcontrol): a launch may begin while the one before it still runs, and waits for it,
// and for what it wrote, where it says so. Every kernel waits, so that all launches before are done. Before sm_90 launches
// follow each other whole, and both do nothing.

/// The next launch may begin as soon as every block of this one has come here.
__device__ __forceinline__ void let_next_launch_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// The launch before has ended and its results can be read. Until then weights alone may be read, and nothing written.
__device__ __forceinline__ void wait_for_last_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// For launches that fill the device: the next may begin when this one does its work, so that it spreads over what this one
/// leaves free.
__device__ __forceinline__ void follow_last_launch() {
  wait_for_last_launch();
  let_next_launch_begin();
}
/// For short launches of few blocks: the next, which has weights to fetch meanwhile, may begin even before this one's turn.
__device__ __forceinline__ void step_in_between() {
  let_next_launch_begin();
  wait_for_last_launch();
}

}  // namespace quern::ptx
