// The inner loops of softmax cross-entropy: a row at a time, its exponentials piece by piece.
#include <cmath>
#include <cstring>

#include "kernel_table.hpp"
#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

// The sum, or the largest, of some numbers and a start, in the same lanes on every instruction set.
template <bool kLargest, class T> inline T combined(const T* x, i64 count, T start) {
  constexpr i64 kLanes = 8;
  using Lanes [[gnu::vector_size(kLanes * sizeof(T))]] = T;
  Lanes whole = start - Lanes{}, some;
  const auto take = [&](const Lanes& more) __attribute__((always_inline)) {
    if constexpr (kLargest) {
      whole = more > whole ? more : whole;
    } else {
      whole += more;
    }
  };
  i64 c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    std::memcpy(&some, x + c, sizeof(some));
    take(some);
  }
  if (c < count) {
    T rest[kLanes];
    for (i64 i = 0; i < kLanes; ++i) rest[i] = c + i < count ? x[c + i] : start;
    std::memcpy(&some, rest, sizeof(some));
    take(some);
  }
  take(__builtin_shufflevector(whole, whole, 4, 5, 6, 7, 4, 5, 6, 7));
  take(__builtin_shufflevector(whole, whole, 2, 3, 2, 3, 2, 3, 2, 3));
  take(__builtin_shufflevector(whole, whole, 1, 1, 1, 1, 1, 1, 1, 1));
  return whole[0];
}

// y = exp(x − largest), with `kRoom` up to a whole vector; returns their sum. A NaN stays.
template <bool kRoom, class T> inline T exponentials_of(const T* x, i64 count, T largest, T* y) {
  using Vector = std::conditional_t<std::is_same_v<T, float>, FloatVector, DoubleVector>;
  constexpr int kLanes = kVectorBytes / sizeof(T);
  i64 c = 0;
  for (; c + kLanes <= count; c += kLanes) {
#pragma GCC ivdep
    for (int i = 0; i < kLanes; ++i) y[c + i] = exp_of_negative<T>(x[c + i] - largest);
  }
  if (const int rest = static_cast<int>(count - c)) {
    T lanes[kLanes];
    store_vector(lanes, load_vector<Vector>(x + c, rest));
    for (int i = 0; i < kLanes; ++i) lanes[i] = exp_of_negative<T>(lanes[i] - largest);
    // What is stored in part does not come back at once.
    const auto made = load_vector<Vector>(lanes);
    kRoom ? store_vector(y + c, made) : store_vector(y + c, made, rest);
  }
  return combined<false>(y, count, T{0});
}

template <class T>
double cross_entropy(const CrossEntropyOperands<T>& a, const bool* mask, Span rows) {
  const i64 columns = a.columns;
  const auto row_bytes = static_cast<std::size_t>(columns) * sizeof(T);
  constexpr i64 kPiece = 256, kRows = 256;
  constexpr double kMost = 1e200;  // of a product of sums, each at most the number of columns
  T exponentials[kPiece];
  i64 counted[kRows], others[kRows];
  double loss = 0, product = 1;
  for (Span some{rows.begin, rows.begin}; some.begin < rows.end; some.begin = some.end) {
    some.end = some.begin + kRows < rows.end ? some.begin + kRows : rows.end;
    // Listed first: which rows count cannot be foreseen, and waiting for it takes as long as a row.
    i64 count = 0, rest = 0;
    for (i64 i = some.begin; i < some.end; ++i) {
      const bool counts = a.target[i] >= 0 && (!mask || mask[i]);
      counted[count] = others[rest] = i;
      count += counts;
      rest += !counts;
    }
    for (i64 k = 0; a.dx && k < rest; ++k) { std::memset(a.dx[others[k]], 0, row_bytes); }
    for (i64 k = 0; k < count; ++k) {
      const i64 i = counted[k], target = a.target[i];
      if (target >= columns) return std::nan("");
      const T* x = a.x[i];
      const T largest = combined<true>(x, columns, x[0]);
      T sum = 0;
      if (a.dx) {
        T* dx = a.dx[i];
        T* y = columns <= kPiece ? exponentials : dx;
        sum = columns <= kPiece ? exponentials_of<true>(x, columns, largest, y)
                                : exponentials_of<false>(x, columns, largest, y);
        const T scale = a.factor / sum, of_target = rounded(y[target] * scale);
#pragma GCC ivdep
        for (i64 c = 0; c < columns; ++c) dx[c] = y[c] * scale;
        dx[target] = of_target - a.factor;
      } else {
        for (i64 first = 0; first < columns; first += kPiece) {
          const i64 piece = columns - first < kPiece ? columns - first : kPiece;
          sum += exponentials_of<true>(x + first, piece, largest, exponentials);
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
  }
  return loss + std::log(product);
}

const CrossEntropyTable cross_entropy_table{cross_entropy<float>, cross_entropy<double>};

}  // namespace spgnn::SPGNN_ISA
