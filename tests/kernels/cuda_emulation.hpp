// Runs CUDA kernels on the CPU, from the very source that the GPU runs: each thread of a block is
// a fiber, __syncthreads() hands over to the next one. Threads run in a shuffled order between
// barriers, so that a missing barrier changes results; shared memory is NaN when a block starts;
// a barrier that only some threads reach, and an access outside an array, are reported.
#pragma once

#include <cmath>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __launch_bounds__(threads)
#define __shared__ static

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct Position {
  unsigned x, y;
};

extern Position threadIdx, blockIdx;
void __syncthreads();

inline unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
template <class T>
T __ldg(const T* p) {
  return *p;
}

namespace emulation {

enum Outcome { kFinished, kDivergentBarrier, kOutsideArray };

struct Launch {
  unsigned grid_x, grid_y, threads, seed;
  char *shared_begin, *shared_end;  // memory of the kernel's __shared__ variables
};

// Calls thread(arguments) once per thread of every block.
Outcome run(const Launch& launch, void (*thread)(const void*), const void* arguments);

template <auto kKernel>
struct Kernel;

template <class... Parameters, void (*kKernel)(Parameters...)>
struct Kernel<kKernel> {
  // p: pointer, i: long long, d: double.
  static constexpr char kSignature[] = {(std::is_pointer_v<Parameters>           ? 'p'
                                         : std::is_same_v<Parameters, long long> ? 'i'
                                         : std::is_same_v<Parameters, double>    ? 'd'
                                                                                 : '?')...,
                                        0};

  // As for cuLaunchKernel: the address of each argument.
  static void thread(const void* addresses) {
    call(addresses, std::index_sequence_for<Parameters...>());
  }

 private:
  template <std::size_t... kPlace>
  static void call(const void* addresses, std::index_sequence<kPlace...>) {
    void* const* const address = static_cast<void* const*>(addresses);
    kKernel(*static_cast<Parameters*>(address[kPlace])...);
  }
};

}  // namespace emulation

// The bounds of this library's zero-initialised data, where `static` variables lie.
extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];

#define EMULATE(...)                                                                        \
  extern "C" const char* signature() { return emulation::Kernel<__VA_ARGS__>::kSignature; } \
  extern "C" int launch(unsigned grid_x, unsigned grid_y, unsigned threads, unsigned seed,  \
                        const void* addresses) {                                            \
    return emulation::run({grid_x, grid_y, threads, seed, __bss_start, _end},               \
                          emulation::Kernel<__VA_ARGS__>::thread, addresses);               \
  }
