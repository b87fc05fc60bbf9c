// Bias, activation and dropout of rows in one pass, and its gradient.
#pragma once

#include "rows.cuh"

namespace spgnn {

// As `dropout_rows` draws.
__device__ inline bool is_dropped(unsigned long long stream, long long column,
                                  long long threshold) {
  const unsigned long long bits =
      mix64(stream + kGolden * static_cast<unsigned long long>(column / 2 + 1));
  const unsigned long long half = column % 2 ? bits >> 32 : bits & 0xffffffffu;
  return half < static_cast<unsigned long long>(threshold);
}

__device__ inline unsigned long long stream_of(long long key, long long vertex_id) {
  const unsigned long long seed = mix64(static_cast<unsigned long long>(key));
  return mix64(seed + kGolden * (static_cast<unsigned long long>(vertex_id) + 1));
}

// As update_types.hpp numbers them.
constexpr int kRelu = 1, kLeakyRelu = 2, kElu = 3;

template <class S>
__device__ inline S activated(S x, long long act, S alpha) {
  if (!(x < 0)) return x;  // a NaN stays one
  return act == kRelu ? S(0) : act == kLeakyRelu ? x * alpha : act == kElu ? alpha * expm1(x) : x;
}

// y = dropout(act(x + bias)), each step rounded to T; y may be x.
template <class T, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    update_rows(const T* x, long long x_stride, const Sum<T>* bias, long long act, double alpha,
                const long long* vertex_ids, T* y, long long y_stride, long long count,
                long long columns, long long key, long long threshold, double factor) {
  constexpr int kGroups = kThreads / kLanes;
  const int thread = static_cast<int>(threadIdx.x);
  const long long i = static_cast<long long>(blockIdx.x) * kGroups + thread / kLanes;
  if (i >= count) return;
  const unsigned long long stream = vertex_ids ? stream_of(key, vertex_ids[i]) : 0;
  for (long long c = thread % kLanes * kVector; c < columns; c += kLanes * kVector) {
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
        const bool dropped = is_dropped(stream, c + v, threshold);
        narrow(dropped ? Sum<T>(0) : static_cast<Sum<T>>(factor) * widen(number), number);
      }
    }
    store(y + i * y_stride + c, pack);
  }
}

// dx = g · factor · act′ where it was kept, 0 elsewhere; a ReLU's y says what was. A block has
// `rows` rows, and sums each column of theirs in a fixed order.
template <class T, int kVector, int kLanes>
__global__ void __launch_bounds__(kThreads)
    update_rows_backward(const T* g, long long g_stride, const T* y, long long y_stride,
                         long long act, double alpha, const long long* vertex_ids, T* dx,
                         long long dx_stride, Sum<T>* sums, long long count, long long columns,
                         long long rows, long long key, long long threshold, double factor) {
  constexpr int kGroups = kThreads / kLanes;
  __shared__ Sum<T> shared[kThreads * kVector];
  const int thread = static_cast<int>(threadIdx.x), group = thread / kLanes;
  const long long first = static_cast<long long>(blockIdx.x) * rows;
  const long long last = first + rows < count ? first + rows : count;
  for (long long begin = 0; begin < columns; begin += kLanes * kVector) {
    const long long c = begin + thread % kLanes * kVector;
    Sum<T> sum[kVector] = {};
    for (long long i = first + group; i < last && c < columns; i += kGroups) {
      Pack<T, kVector> pack = load<T, kVector>(g + i * g_stride + c), result{};
      if (y) result = load<T, kVector>(y + i * y_stride + c);
      const unsigned long long stream = vertex_ids ? stream_of(key, vertex_ids[i]) : 0;
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        bool stopped = false;
        if (act == kRelu) {
          stopped = widen(result.lane[v]) <= Sum<T>(0);
        } else if (vertex_ids) {
          stopped = is_dropped(stream, c + v, threshold);
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
        sums[static_cast<long long>(blockIdx.x) * columns + c + v] = total;
      }
    }
    __syncthreads();
  }
}

}  // namespace spgnn
