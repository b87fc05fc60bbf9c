// The inner loops of the largest and smallest of listed rows, and of their adjoint.
#include "kernel_table.hpp"
#include "simd.hpp"

namespace spgnn::SPGNN_ISA {

inline constexpr int kExtremesAhead = 8;  // nonzeros whose rows are fetched

using PlaceVector [[gnu::vector_size(kVectorBytes)]] = std::int32_t;

// Best so far, and where: all ones where a number is better than another, of which the first stays.
template <class T, bool kLargest>
struct Best {
  using Vector = LanesOf<Sum<T>>;
  using Places = std::conditional_t<sizeof(Sum<T>) == 4, PlaceVector, LongVector>;  // in the row
  Vector number{};
  Places place{};

  void take(const Vector& other, std::int64_t at) {
    Places better = kLargest ? other > number : other < number;
    better |= (other != other) & (number == number);
    number = better ? other : number;
    place = better ? Places{} + static_cast<decltype(Places{}[0] + 0)>(at) : place;
  }
};

template <class T, class Index>
inline std::int64_t arg_at(const ExtremeOperands<T, Index>& a, std::int64_t at) {
  return a.narrow_arg ? std::int64_t{a.narrow_arg[at]} : a.wide_arg[at];
}

template <class T, class Index>
inline void set_arg(const ExtremeOperands<T, Index>& a, std::int64_t at, std::int64_t column) {
  if (a.narrow_arg) {
    a.narrow_arg[at] = static_cast<std::int32_t>(column);
  } else {
    a.wide_arg[at] = column;
  }
}

// Some columns of a row. Lanes of a row that has begun hold −1 as their place, or 0 and its number
// where nothing was listed yet.
template <bool kLargest, int kVectors, class T, class Index>
inline void extreme_columns(const ExtremeOperands<T, Index>& a, std::int64_t row,
                            std::int64_t first, int last_lanes) {
  constexpr int kLanes = kLanesOf<Sum<T>>;
  const std::int64_t begin = a.indptr[row], end = a.indptr[row + 1];
  const auto lanes_of = [&](int k) { return k + 1 < kVectors ? kLanes : last_lanes; };
  Best<T, kLargest> best[kVectors];
  const T* x = a.x + first + static_cast<std::int64_t>(a.indices[begin]) * a.x_stride;
  for (int k = 0; k < kVectors; ++k) best[k].number = load_wide(x + k * kLanes, lanes_of(k));
  for (std::int64_t e = begin + 1; e < end; ++e) {
    const std::int64_t ahead = e + kExtremesAhead < end ? e + kExtremesAhead : end - 1;
    const T* fetched = a.x + first + static_cast<std::int64_t>(a.indices[ahead]) * a.x_stride;
    for (int k = 0; k < kVectors; ++k) __builtin_prefetch(fetched + k * kLanes);
    x = a.x + first + static_cast<std::int64_t>(a.indices[e]) * a.x_stride;
    for (int k = 0; k < kVectors; ++k) {
      best[k].take(load_wide(x + k * kLanes, lanes_of(k)), e - begin);
    }
  }
  T* out = a.out + row * a.out_stride + first;
  for (int k = 0; k < kVectors; ++k) {
    for (int lane = 0; lane < lanes_of(k); ++lane) {
      const std::int64_t c = k * kLanes + lane, at = row * a.columns + first + c;
      const Sum<T> number = best[k].number[lane];
      if (a.begun && arg_at(a, at) >= 0) {
        const Sum<T> before = widen(out[c]);
        const bool better = (kLargest ? number > before : number < before) ||
                            (number != number && before == before);
        if (!better) continue;
      }
      out[c] = narrow<T>(number);
      set_arg(a, at, a.first_column + a.indices[begin + best[k].place[lane]]);
    }
  }
}

template <bool kLargest, class T, class Index>
inline void extreme_of(const ExtremeOperands<T, Index>& a, Span rows) {
  constexpr int kLanes = kLanesOf<Sum<T>>, kVectors = 4;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    if (a.indptr[row] == a.indptr[row + 1]) {
      if (a.begun) continue;
      for (std::int64_t c = 0; c < a.columns; ++c) {
        a.out[row * a.out_stride + c] = T{};
        set_arg(a, row * a.columns + c, -1);
      }
      continue;
    }
    std::int64_t c = 0;
    for (; c + kVectors * kLanes <= a.columns; c += kVectors * kLanes) {
      extreme_columns<kLargest, kVectors>(a, row, c, kLanes);
    }
    for (; c < a.columns; c += kLanes) {
      const std::int64_t rest = a.columns - c < kLanes ? a.columns - c : kLanes;
      extreme_columns<kLargest, 1>(a, row, c, static_cast<int>(rest));
    }
  }
}

template <class T, class Index>
void extreme_rows(const ExtremeOperands<T, Index>& a, Span rows) {
  a.largest ? extreme_of<true>(a, rows) : extreme_of<false>(a, rows);
}

template <class T, class Arg>
inline void add_at(const ExtremeAdjoint<T>& a, const Arg* arg, Span columns) {
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t c = columns.begin; c < columns.end; ++c) {
      const std::int64_t to = arg[row * a.columns + c];
      if (to < 0) continue;
      T& sum = a.dx[to * a.columns + c];
      sum = narrow<T>(widen(sum) + widen(a.g[row * a.g_stride + c]));
    }
  }
}

template <class T>
void extreme_adjoint(const ExtremeAdjoint<T>& a, Span columns) {
  a.narrow_arg ? add_at(a, a.narrow_arg, columns) : add_at(a, a.wide_arg, columns);
}

template <class T, class Index>
inline constexpr ExtremeKernels<T, Index> kExtremes{extreme_rows<T, Index>, extreme_adjoint<T>};

extern const ExtremeTable extreme_table;
const ExtremeTable extreme_table{
    kExtremes<float, std::int32_t>,    kExtremes<float, std::int64_t>,
    kExtremes<double, std::int32_t>,   kExtremes<double, std::int64_t>,
    kExtremes<Bfloat16, std::int32_t>, kExtremes<Bfloat16, std::int64_t>};

}  // namespace spgnn::SPGNN_ISA
