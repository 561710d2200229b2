#pragma once

#include <cstddef>
#include <cstdint>

#include "templates/cuda/abi.h"

// What tests can ask of the stand-in driver library and make it do. These functions are exported by
// the library beside the driver API; fake_cuda.h wraps them.
namespace quern::fake_cuda {

/// One kernel launch, as it ran.
struct Launch {
  char kernel[64];  ///< The name in the kernel's fake cubin; empty for any other module.
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  uint32_t in_graph;  ///< 1: a node of a graph.
  uint32_t early;     ///< 1: may begin before the launch in front of it has ended.
  cuda::KernelArgs args;
  cuda::RunState state;  ///< What args.state pointed to when the launch ran; zeros for null.
};

/// How a fault shows. 0: the call itself returns the error and does nothing else.
enum FaultFlags : unsigned {
  fault_late = 1,    ///< Of launches: the call succeeds, the next synchronisation returns it.
  fault_sticky = 2,  ///< Every later call of the context returns it too.
};

/// Called for every launch as it runs; `user` is what was registered.
using OnLaunch = void (*)(const Launch& launch, void* user);

/// First bytes of a fake cubin: ELF's e_ident with a mark in its padding; the kernel's name follows
/// them, ended by a zero.
inline constexpr unsigned char cubin_ident[16] = {0x7f, 'E', 'L', 'F', 2,   1,   1,   0,
                                                  0,    'q', 'f', 'a', 'k', 'e', '1', 0};

}  // namespace quern::fake_cuda

extern "C" {

/// Forgets faults, problems, leaks, launches, call counts and the callback, and reads the FAKE_CUDA
/// variables again. What is allocated stays.
void fake_cuda_reset();
/// Device memory of every device from now on.
void fake_cuda_set_memory(uint64_t bytes);

/// Launches that ran, nodes of graphs included.
uint64_t fake_cuda_launches();
/// Launch `index` of them; 0 where there is none.
int fake_cuda_launch(uint64_t index, quern::fake_cuda::Launch* out);
/// How often a function of the driver API was called; null: all of them together.
uint64_t fake_cuda_calls(const char* function);
void fake_cuda_on_launch(quern::fake_cuda::OnLaunch callback, void* user);

/// The launch with this number (0 is the next) fails with this CUresult. FaultFlags.
void fake_cuda_fail_launch(uint64_t number, int error, unsigned flags);
/// The call of this function (null: any function that needs a context) with this number fails.
void fake_cuda_fail_call(const char* function, uint64_t number, int error, unsigned flags);
void fake_cuda_clear_faults();
/// Faults that were asked for and have not happened.
uint64_t fake_cuda_faults_left();

uint64_t fake_cuda_live_bytes();    ///< Device memory allocated, of all devices.
uint64_t fake_cuda_pinned_bytes();  ///< Host memory allocated or registered.
/// The memory behind a device address, null where [address, address + bytes) lies in no allocation.
void* fake_cuda_memory(uint64_t address, uint64_t bytes);

/// A line for each misuse so far (copies out of range, dead handles, launches with wild pointers
/// ...). Writes at most `size` bytes with the closing zero; returns the number of lines.
size_t fake_cuda_problems(char* text, size_t size);
/// The same for what lives now or was alive when its context was destroyed.
size_t fake_cuda_leaks(char* text, size_t size);
}
