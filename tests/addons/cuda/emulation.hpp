// Runs CUDA kernels on the CPU, from the very source that the GPU runs: each thread of a block is
// a fiber, __syncthreads() hands over to the next one. Threads run in a shuffled order between
// barriers, so that a missing barrier changes results; shared memory is NaN when a block starts;
// a barrier that only some threads reach, and an access outside an array, are reported. Threads of
// a warp that exchange numbers wait for those they name, and for no others.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
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
inline unsigned __float2uint_rn(float x) { return static_cast<unsigned>(__builtin_rintf(x)); }
inline unsigned __double2uint_rn(double x) { return static_cast<unsigned>(__builtin_rint(x)); }
template <class T> T __ldg(const T* p) { return *p; }

namespace emulation {

enum Outcome { kFinished, kDivergentBarrier, kOutsideArray };

struct Launch {
  unsigned grid_x, grid_y, threads, seed;
  char *shared_begin, *shared_end;  // memory of the kernel's __shared__ variables
};

// What the thread `offset` away shows, once all of `mates` (bits of a warp) have come.
std::uint64_t exchange(unsigned mates, std::uint64_t shown, unsigned offset);

// Calls thread(arguments) once per thread of every block.
Outcome run(const Launch& launch, void (*thread)(const void*), const void* arguments);

template <auto kKernel> struct Kernel;

template <class... Parameters, void (*kKernel)(Parameters...)> struct Kernel<kKernel> {
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

template <class T> T __shfl_xor_sync(unsigned mates, T value, int offset) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  word = emulation::exchange(mates, word, static_cast<unsigned>(offset));
  std::memcpy(&value, &word, sizeof(T));
  return value;
}
inline int __any_sync(unsigned mates, int holds) {
  for (int offset = 16; offset > 0; offset /= 2) holds |= __shfl_xor_sync(mates, holds, offset);
  return holds;
}
inline void __syncwarp(unsigned mates) { emulation::exchange(mates, 0, 0); }

// The bounds of this library's zero-initialised data, where `static` variables lie.
extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];

#define EMULATE(...)                                                                        \
  extern "C" const char* signature() { return emulation::Kernel<__VA_ARGS__>::kSignature; } \
  extern "C" int launch(unsigned grid_x, unsigned grid_y, unsigned threads, unsigned seed,  \
                        const void* addresses) {                                            \
    return emulation::run({grid_x, grid_y, threads, seed, __bss_start, _end},               \
                          emulation::Kernel<__VA_ARGS__>::thread, addresses);               \
  }
