// The inner loops of softmax cross-entropy: a row at a time, its exponentials piece by piece.
#include <cmath>
#include <cstring>

#include "dense.hpp"
#include "exponential.hpp"

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
double cross_entropy(const CrossEntropyGradient<T>& a, const bool* mask, Span rows) {
  const std::int64_t columns = a.of.columns;
  constexpr std::int64_t kPiece = 256;
  constexpr double kMost = 1e200;  // of a product of sums, each at most the number of columns
  T exponentials[kPiece];
  double loss = 0, product = 1;
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    T* dx = a.dx ? a.dx + i * a.dx_stride : nullptr;
    const std::int64_t target = a.of.target[i];
    if (target < 0 || (mask && !mask[i])) {
      if (dx) std::memset(dx, 0, static_cast<std::size_t>(columns) * sizeof(T));
      continue;
    }
    if (target >= columns) return std::nan("");
    const T* x = a.of.x + i * a.of.x_stride;
    const T largest = largest_of(x, columns);
    T sum = 0;
    if (dx) {
      sum = exponentials_of(x, columns, largest, dx);
      const T scale = a.factor / sum;
#pragma GCC ivdep
      for (std::int64_t c = 0; c < columns; ++c) dx[c] *= scale;
      dx[target] -= a.factor;
    } else {
      for (std::int64_t first = 0; first < columns; first += kPiece) {
        const std::int64_t count = columns - first < kPiece ? columns - first : kPiece;
        sum += exponentials_of(x + first, count, largest, exponentials);
      }
    }
    loss += largest - x[target];
    // One logarithm for many rows.
    product *= sum;
    if (product > kMost) {
      loss += std::log(product);
      product = 1;
    }
  }
  return loss + std::log(product);
}

extern const CrossEntropyTable cross_entropy_table;
const CrossEntropyTable cross_entropy_table{cross_entropy<float>, cross_entropy<double>};

}  // namespace spgnn::SPGNN_ISA
