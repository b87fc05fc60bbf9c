// The largest or smallest of listed rows, column by column.
#pragma once

#include "types.cuh"

namespace spgnn {

// out[i, c] = max or min of x[j, c] over the nonzeros (i, j), arg[i, c] = first_column + the first
// j that has it. What is no number comes before all that are; rows without nonzeros have 0 and −1,
// unless out and arg are those of blocks before this one.
template <class T, class Index, class Arg, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    extreme(const long long* indptr, const Index* indices, const T* x, long long x_stride,
            long long rows, long long columns, long long largest, long long begun,
            long long first_column, T* out, long long out_stride, Arg* arg) {
  constexpr int kGroups = kThreads / kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  const long long i = static_cast<long long>(blockIdx.x) * kGroups + thread / kLanes;
  if (i >= rows) return;
  for (long long c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Pack<T, kVector> best{};
    Arg place[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) place[v] = begun ? arg[i * columns + c + v] : Arg(-1);
    if (begun) best = load<T, kVector>(out + i * out_stride + c);
    for (long long e = indptr[i]; e < indptr[i + 1]; ++e) {
      const long long j = static_cast<long long>(indices[e]);
      const Pack<T, kVector> pack = load_shared_by_many<T, kVector>(x + j * x_stride + c);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const Sum<T> number = widen(pack.lane[v]), before = widen(best.lane[v]);
        const bool better =
            (largest ? number > before : number < before) || (number != number && before == before);
        if (place[v] >= Arg(0) && !better) continue;
        best.lane[v] = pack.lane[v];
        place[v] = static_cast<Arg>(first_column + j);
      }
    }
    store(out + i * out_stride + c, best);
#pragma unroll
    for (int v = 0; v < kVector; ++v) arg[i * columns + c + v] = place[v];
  }
}

}  // namespace spgnn
