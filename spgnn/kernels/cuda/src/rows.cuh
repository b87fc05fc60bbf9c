// Kernels over listed rows: gather, dropout.
#pragma once

#include "types.cuh"

namespace spgnn {

constexpr int kRowsInFlight = 4;  // independent loads of one thread

// Y[i] = scale[i] X[rows[i]]. A group of kLanes threads moves kRowsInFlight rows at a time;
// neighbouring groups write neighbouring rows.
template <class T, class Index, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    gather_rows(const T* x, long long x_stride, const Index* rows, const Sum<T>* scale, T* y,
                long long y_stride, long long count, long long columns) {
  constexpr int kGroups = kThreads / kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  const long long first =
      static_cast<long long>(blockIdx.x) * (kGroups * kRowsInFlight) + thread / kLanes;
  const T* source[kRowsInFlight];
  Sum<T> factor[kRowsInFlight];
#pragma unroll
  for (int k = 0; k < kRowsInFlight; ++k) {
    // Beyond the end the last row is read again, and not written.
    const long long i = first + k * kGroups < count ? first + k * kGroups : count - 1;
    source[k] = x + static_cast<long long>(rows[i]) * x_stride;
    factor[k] = scale ? scale[i] : Sum<T>(1);
  }
  for (long long c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Pack<T, kVector> pack[kRowsInFlight];
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      pack[k] = load_shared_by_many<T, kVector>(source[k] + c);
    }
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      const long long i = first + k * kGroups;
      if (i >= count) break;
      if (scale) {
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          narrow(factor[k] * widen(pack[k].lane[v]), pack[k].lane[v]);
        }
      }
      store(y + i * y_stride + c, pack[k]);
    }
  }
}

// The finalizer of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
__device__ inline unsigned long long mix64(unsigned long long z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
constexpr unsigned long long kGolden = 0x9e3779b97f4a7c15ull;

// Y[i] = X[i] · factor where kept, 0 elsewhere; one 64-bit hash decides two columns. The bits are
// those of the CPU kernel (csrc/rows_kernel.hpp): a vertex drops the same features on any device.
template <class T, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    dropout_rows(const T* x, long long x_stride, const long long* vertex_ids, T* y,
                 long long y_stride, long long count, long long columns, long long key,
                 long long threshold, double factor) {
  constexpr int kGroups = kThreads / kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  const long long i = static_cast<long long>(blockIdx.x) * kGroups + thread / kLanes;
  if (i >= count) return;
  const unsigned long long seed = mix64(static_cast<unsigned long long>(key));
  const unsigned long long id = static_cast<unsigned long long>(vertex_ids[i]);
  const unsigned long long stream = mix64(seed + kGolden * (id + 1));
  for (long long c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Pack<T, kVector> pack = load<T, kVector>(x + i * x_stride + c);
    unsigned long long bits = 0;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (v % 2 == 0) {
        bits = mix64(stream + kGolden * static_cast<unsigned long long>((c + v) / 2 + 1));
      }
      const unsigned long long half = (c + v) % 2 ? bits >> 32 : bits & 0xffffffffu;
      const bool dropped = half < static_cast<unsigned long long>(threshold);
      const Sum<T> kept = static_cast<Sum<T>>(factor) * widen(pack.lane[v]);
      narrow(dropped ? Sum<T>(0) : kept, pack.lane[v]);
    }
    store(y + i * y_stride + c, pack);
  }
}

}  // namespace spgnn
