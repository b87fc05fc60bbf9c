// The inner loops of softmax cross-entropy: a row at a time, its exponentials piece by piece.
#include <cmath>
#include <cstring>

#include "exponential.hpp"
#include "kernel_table.hpp"

namespace spgnn::SPGNN_ISA {

// Combines numbers in lanes that are the same for every instruction set.
template <class T, class Combine>
inline T combined(const T* x, std::int64_t count, T start, Combine combine) {
  constexpr std::int64_t kLanes = 8;
  T lanes[kLanes] = {start, start, start, start, start, start, start, start};
  std::int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] = combine(lanes[i], x[c + i]);
  }
  for (; c < count; ++c) lanes[c % kLanes] = combine(lanes[c % kLanes], x[c]);
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) lanes[i] = combine(lanes[i], lanes[i + half]);
  }
  return lanes[0];
}

template <class T>
inline T largest_of(const T* x, std::int64_t count) {
  return combined(x, count, x[0], [](T a, T b) { return b > a ? b : a; });
}

// y = exp(x − largest); returns their sum. A NaN is among the numbers, if not the largest.
template <class T>
inline T exponentials_of(const T* x, std::int64_t count, T largest, T* y) {
#pragma GCC ivdep
  for (std::int64_t c = 0; c < count; ++c) y[c] = exp_of_negative<T>(x[c] - largest);
  return combined(y, count, T{0}, [](T a, T b) { return a + b; });
}

template <class T>
double cross_entropy(const CrossEntropyOperands<T>& a, Span rows) {
  constexpr std::int64_t kPiece = 256;
  T exponentials[kPiece];
  double loss = 0;
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    if (a.target[i] < 0) continue;
    const T* x = a.x + i * a.x_stride;
    const T largest = largest_of(x, a.columns);
    T sum = 0;
    for (std::int64_t first = 0; first < a.columns; first += kPiece) {
      const std::int64_t count = a.columns - first < kPiece ? a.columns - first : kPiece;
      sum += exponentials_of(x + first, count, largest, exponentials);
    }
    loss += std::log(sum) + (largest - x[a.target[i]]);
  }
  return loss;
}

template <class T>
void cross_entropy_gradient(const CrossEntropyGradient<T>& a, Span rows) {
  const std::int64_t columns = a.of.columns;
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    T* dx = a.dx + i * a.dx_stride;
    const std::int64_t target = a.of.target[i];
    if (target < 0) {
      std::memset(dx, 0, static_cast<std::size_t>(columns) * sizeof(T));
      continue;
    }
    const T* x = a.of.x + i * a.of.x_stride;
    const T scale = a.factor / exponentials_of(x, columns, largest_of(x, columns), dx);
#pragma GCC ivdep
    for (std::int64_t c = 0; c < columns; ++c) dx[c] *= scale;
    dx[target] -= a.factor;
  }
}

template <class T>
inline constexpr CrossEntropyKernels<T> kCrossEntropy{cross_entropy<T>, cross_entropy_gradient<T>};

extern const CrossEntropyTable cross_entropy_table;
const CrossEntropyTable cross_entropy_table{kCrossEntropy<float>, kCrossEntropy<double>};

}  // namespace spgnn::SPGNN_ISA
