// Kernels over rows: gather, dropout, and bias, activation and dropout in one pass.
#pragma once

#include "types.cuh"

namespace spgnn {

constexpr int kRowsInFlight = 4;  // independent loads of one thread

// Y[i] = scale[i] X[rows[i]]. A group of kLanes threads moves kRowsInFlight rows at a time.
template <class T, class Index, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    gather_rows(const T* x, i64 x_stride, const Index* rows, const Sum<T>* scale, T* y,
                i64 y_stride, i64 count, i64 columns) {
  constexpr int kGroups = kThreads / kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  const i64 first = static_cast<i64>(blockIdx.x) * (kGroups * kRowsInFlight) + thread / kLanes;
  const T* source[kRowsInFlight];
  Sum<T> factor[kRowsInFlight];
#pragma unroll
  for (int k = 0; k < kRowsInFlight; ++k) {
    // Beyond the end the last row is read again, and not written.
    const i64 i = first + k * kGroups < count ? first + k * kGroups : count - 1;
    source[k] = x + static_cast<i64>(rows[i]) * x_stride;
    factor[k] = scale ? scale[i] : Sum<T>(1);
  }
  for (i64 c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Pack<T, kVector> pack[kRowsInFlight];
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      pack[k] = load_shared_by_many<T, kVector>(source[k] + c);
    }
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      const i64 i = first + k * kGroups;
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
__device__ inline u64 mix64(u64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
constexpr u64 kGolden = 0x9e3779b97f4a7c15ull;

// The same features are dropped on any device; one 64-bit hash decides two columns.
__device__ inline u64 stream_of(i64 key, i64 vertex_id) {
  const u64 seed = mix64(static_cast<u64>(key));
  return mix64(seed + kGolden * (static_cast<u64>(vertex_id) + 1));
}
__device__ inline u64 draws_of(u64 stream, i64 column) {
  return mix64(stream + kGolden * static_cast<u64>(column / 2 + 1));
}
__device__ inline bool is_dropped(u64 draws, i64 column, i64 threshold) {
  const u64 half = column % 2 ? draws >> 32 : draws & 0xffffffffu;
  return half < static_cast<u64>(threshold);
}

// Y[i] = X[i] · factor where kept, 0 elsewhere.
template <class T, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    dropout_rows(const T* x, i64 x_stride, const i64* vertex_ids, T* y, i64 y_stride, i64 count,
                 i64 columns, i64 key, i64 threshold, double factor) {
  constexpr int kGroups = kThreads / kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  const i64 i = static_cast<i64>(blockIdx.x) * kGroups + thread / kLanes;
  if (i >= count) return;
  const u64 stream = stream_of(key, vertex_ids[i]);
  for (i64 c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Pack<T, kVector> pack = load<T, kVector>(x + i * x_stride + c);
    u64 draws = 0;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (v % 2 == 0) draws = draws_of(stream, c + v);
      const Sum<T> kept = static_cast<Sum<T>>(factor) * widen(pack.lane[v]);
      narrow(is_dropped(draws, c + v, threshold) ? Sum<T>(0) : kept, pack.lane[v]);
    }
    store(y + i * y_stride + c, pack);
  }
}

// As update.py numbers them.
constexpr int kRelu = 1, kLeakyRelu = 2, kElu = 3;

template <class S> __device__ inline S activated(S x, i64 act, S alpha) {
  if (!(x < 0)) return x;  // a NaN stays one
  return act == kRelu ? S(0) : act == kLeakyRelu ? x * alpha : act == kElu ? alpha * expm1(x) : x;
}

// y = dropout(act(x + bias)), each step rounded to T; y may be x.
template <class T, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    update_rows(const T* x, i64 x_stride, const Sum<T>* bias, i64 act, double alpha,
                const i64* vertex_ids, T* y, i64 y_stride, i64 count, i64 columns, i64 key,
                i64 threshold, double factor) {
  constexpr int kGroups = kThreads / kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  const i64 i = static_cast<i64>(blockIdx.x) * kGroups + thread / kLanes;
  if (i >= count) return;
  const u64 stream = vertex_ids ? stream_of(key, vertex_ids[i]) : 0;
  for (i64 c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
    Pack<T, kVector> pack = load<T, kVector>(x + i * x_stride + c);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      T& number = pack.lane[v];
      if (bias) {
        T rounded;
        narrow(bias[c + v], rounded);
        narrow(widen(number) + widen(rounded), number);
      }
      narrow(activated(widen(number), act, static_cast<Sum<T>>(alpha)), number);
      if (vertex_ids) {
        const bool dropped = is_dropped(draws_of(stream, c + v), c + v, threshold);
        narrow(dropped ? Sum<T>(0) : static_cast<Sum<T>>(factor) * widen(number), number);
      }
    }
    store(y + i * y_stride + c, pack);
  }
}

// dx = g · factor · act′ where kept; a ReLU's y says what was. A block sums columns of `rows` rows.
template <class T, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    update_rows_backward(const T* g, i64 g_stride, const T* y, i64 y_stride, i64 act, double alpha,
                         const i64* vertex_ids, T* dx, i64 dx_stride, Sum<T>* sums, i64 count,
                         i64 columns, i64 rows, i64 key, i64 threshold, double factor) {
  constexpr int kGroups = kThreads / kLanes;
  __shared__ Sum<T> shared[kThreads * kVector];
  const int thread = static_cast<int>(threadIdx.x), group = thread / kLanes;
  const i64 first = static_cast<i64>(blockIdx.x) * rows;
  const i64 last = first + rows < count ? first + rows : count;
  for (i64 begin = 0; begin < columns; begin += kLanes * kVector) {
    const i64 c = begin + thread % kLanes * kVector;
    Sum<T> sum[kVector] = {};
    for (i64 i = first + group; i < last && c < columns; i += kGroups) {
      Pack<T, kVector> pack = load<T, kVector>(g + i * g_stride + c), result{};
      if (y) result = load<T, kVector>(y + i * y_stride + c);
      const u64 stream = vertex_ids ? stream_of(key, vertex_ids[i]) : 0;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        bool stopped = false;
        if (act == kRelu) {
          stopped = widen(result.lane[v]) <= Sum<T>(0);
        } else if (vertex_ids) {
          stopped = is_dropped(draws_of(stream, c + v), c + v, threshold);
        }
        const Sum<T> passed = static_cast<Sum<T>>(factor) * widen(pack.lane[v]);
        narrow(stopped ? Sum<T>(0) : passed, pack.lane[v]);
        const bool positive =
            act == kElu ? !(widen(result.lane[v]) <= Sum<T>(0)) : widen(result.lane[v]) > Sum<T>(0);
        if (act > kRelu && !positive) {
          // There, y = alpha · x, or y + alpha = alpha · exp(x), times the factor of dropout.
          Sum<T> slope = static_cast<Sum<T>>(alpha);
          if (act == kElu) {
            slope += widen(result.lane[v]) * static_cast<Sum<T>>(vertex_ids ? 1 / factor : 1);
          }
          narrow(widen(pack.lane[v]) * slope, pack.lane[v]);
        }
        sum[v] += widen(pack.lane[v]);
      }
      store(dx + i * dx_stride + c, pack);
    }
    if (!sums) continue;
#pragma unroll
    for (int v = 0; v < kVector; ++v) shared[thread * kVector + v] = sum[v];
    __syncthreads();
    if (group == 0 && c < columns) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        Sum<T> total = 0;
        for (int other = 0; other < kGroups; ++other) {
          total += shared[(other * kLanes + thread) * kVector + v];
        }
        sums[static_cast<i64>(blockIdx.x) * columns + c + v] = total;
      }
    }
    __syncthreads();
  }
}

}  // namespace spgnn
