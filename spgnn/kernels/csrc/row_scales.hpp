// What is known of a row that is packed: minimum and scale, and what of it will not arrive.
#pragma once

#include <type_traits>

#include "rows_kernel.hpp"
#include "sixteen.hpp"
#include "types.hpp"

namespace spgnn::SPGNN_ISA {

// What is noted while a row is packed: what of it will not arrive.

// One row, as the inner loops want it.
template <class T> struct QuantisedRow {
  using Vector = typename Reals<Sum<T>>::Vector;
  const T* x;
  T* residual;                 // or null
  bool counted;                // whether what is lost of it is added up
  Vector low, inverse, scale;  // of 8 bits and fewer
};

// What is sent: x, with what was lost of it before.
template <bool kNotes, class T>
SPGNN_INLINE Reals<Sum<T>> load_sent(const QuantisedRow<T>& row, i64 c, int lanes) {
  auto sent = load_group(row.x + c, lanes);
  if (kNotes && row.residual) {
    const auto before = load_group(row.residual + c, lanes);
    for_each_vector<Reals<Sum<T>>>(
        [&](auto i) __attribute__((always_inline)) { sent.v[i] += before.v[i]; });
  }
  return sent;
}

// Sums of squares in sixteen lanes, over rows and columns.
struct LostLanes {
  Reals<double> error{}, size{};

  template <class Real> SPGNN_INLINE void add(const Real& arrived, const Real& x, int lanes) {
    const Reals<double> a = doubled(arrived), b = doubled(x);
    for_each_vector<Reals<double>>([&](auto i) __attribute__((always_inline)) {
      DoubleVector e = a.v[i] - b.v[i];
      if (lanes < kGroup) {
        const auto within = by_lane<LongVector>([&](int lane) {
                              return static_cast<i64>(i * Reals<double>::kLanes + lane);
                            }) < lanes;
        e = within ? e : DoubleVector{};
      }
      error.v[i] += rounded(e * e);
      size.v[i] += rounded(b.v[i] * b.v[i]);
    });
  }

  SPGNN_INLINE static double total(const Reals<double>& group) {
    double lanes[kGroup];
    std::memcpy(lanes, &group, sizeof(group));
    for (int half = kGroup / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }
  Lost total() const { return {total(error), total(size)}; }
};

// Takes note of what arrives in place of x.
template <class T>
SPGNN_INLINE void take_note(const QuantisedRow<T>& row, LostLanes& sums, i64 c,
                            const Reals<Sum<T>>& sent, Reals<Sum<T>> arrived, int lanes) {
  using Real = Reals<Sum<T>>;
  using Vector = typename Real::Vector;
  if constexpr (sizeof(T) == 2) {
    for_each_vector<Real>([&](auto i) __attribute__((always_inline)) {
      arrived.v[i] = reinterpret_cast<FloatVector>(round_to_bfloat16(arrived.v[i]) & 0xffff0000u);
    });
  }
  if (row.counted) sums.add(arrived, load_group(row.x + c, lanes), lanes);
  if (row.residual) {
    Real left;
    for_each_vector<Real>([&](auto i) __attribute__((always_inline)) {
      // Of what is not finite nothing can be sent later: ∞ − ∞ is not zero, nor is NaN − NaN.
      const Vector zero = arrived.v[i] - arrived.v[i];
      left.v[i] = zero == zero ? sent.v[i] - arrived.v[i] : Vector{};
    });
    store_group(row.residual + c, left, lanes);
  }
}

inline constexpr int kBatch = 64;  // rows whose scales are made before any of them is packed
inline constexpr u32 kInfinity = 0x7f800000u;
inline constexpr u32 kLeastScale = 0x08800000u;  // 2⁻¹¹⁰
inline constexpr u32 kNanHeader = 0x7fc07fc0u;

// Of as many rows as a vector has lanes, the smallest and the largest number of every lane.
template <class S> struct RowExtremes {
  static constexpr int kLanes = Reals<S>::kLanes;
  using Vector = typename Reals<S>::Vector;
  Vector low[kLanes], high[kLanes];
};

// A row with a NaN or an infinity in it gets an infinity as its largest number.
template <class T, bool kNotes>
SPGNN_INLINE void find_extremes(const QuantisedRow<T>& row, i64 columns, RowExtremes<Sum<T>>& found,
                                int place) {
  using S = Sum<T>;
  using Real = Reals<S>;
  using Vector = typename Real::Vector;
  const Vector beyond = Vector{} + static_cast<S>(__builtin_inf());
  Real low, high, odd{};
  i64 c = 0;
  if (columns >= kGroup) {  // one step less, which is all that narrow rows have
    low = high = load_sent<kNotes>(row, 0, kGroup);
    for_each_vector<Real>([&](auto i) __attribute__((always_inline)) {
      if constexpr (!kUnordered<S>) odd.v[i] = low.v[i] * S{0};
    });
    if constexpr (kUnordered<S>) odd.v[0] = unordered(odd.v[0], low);
    c = kGroup;
  } else {
    for_each_vector<Real>(
        [&](auto i) __attribute__((always_inline)) { low.v[i] = beyond, high.v[i] = -beyond; });
  }
  const auto see = [&](const Real& x, int lanes) __attribute__((always_inline)) {
    for_each_vector<Real>([&](auto i) __attribute__((always_inline)) {
      Vector smallest = x.v[i], largest = x.v[i];
      if (lanes < kGroup) {
        const auto within = by_lane<Vector>([&](int lane) {
                              return static_cast<S>(i * Real::kLanes + lane);
                            }) < static_cast<S>(lanes);
        smallest = within ? smallest : low.v[i];
        largest = within ? largest : high.v[i];
      }
      low.v[i] = smaller(low.v[i], smallest);
      high.v[i] = larger(high.v[i], largest);
      if constexpr (!kUnordered<S>) odd.v[i] += x.v[i] * S{0};
    });
    if constexpr (kUnordered<S>) odd.v[0] = unordered(odd.v[0], x);
  };
#pragma GCC unroll 2
  for (; c + kGroup <= columns; c += kGroup) see(load_sent<kNotes>(row, c, kGroup), kGroup);
  if (c < columns && c > 0) {
    see(load_sent<kNotes>(row, columns - kGroup, kGroup), kGroup);
  } else if (c < columns) {
    const int lanes = static_cast<int>(columns);
    see(load_sent<kNotes>(row, 0, lanes), lanes);
  }
  for_each_vector<Real>([&](auto i) __attribute__((always_inline)) {
    if (i == 0) return;
    if constexpr (!kUnordered<S>) odd.v[0] += odd.v[i];
    low.v[0] = smaller(low.v[0], low.v[i]);
    high.v[0] = larger(high.v[0], high.v[i]);
  });
  found.low[place] = columns ? low.v[0] : Vector{};
  found.high[place] = !columns ? Vector{} : odd.v[0] == odd.v[0] ? high.v[0] : beyond;
}

// Of each 2 kUnit lanes, the lower half combines lanes kUnit apart of a, the upper half those of b.
template <int kUnit, class Vector, class Combine>
SPGNN_INLINE Vector halved(Vector a, Vector b, Combine combine) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (std::is_same_v<Vector, FloatVector>) {  // GCC takes twice as many instructions
    const auto x = reinterpret_cast<__m256>(a), y = reinterpret_cast<__m256>(b);
    __m256 same, other;
    if constexpr (kUnit == 4) {
      same = _mm256_blend_ps(x, y, 0xf0);
      other = _mm256_permute2f128_ps(x, y, 0x21);
    } else if constexpr (kUnit == 2) {
      same = _mm256_blend_ps(x, y, 0xcc);
      other = _mm256_shuffle_ps(x, y, 0x4e);
    } else {
      same = _mm256_blend_ps(x, y, 0xaa);
      other = _mm256_permute_ps(_mm256_blend_ps(x, y, 0x55), 0xb1);
    }
    return combine(reinterpret_cast<FloatVector>(same), reinterpret_cast<FloatVector>(other));
  }
#endif
  using Mask = decltype(a < b);
  using Lane = std::remove_cvref_t<decltype(Mask{}[0])>;
  constexpr int kLanes = sizeof(Vector) / sizeof(a[0]);
  const auto lower = [](int lane) { return lane % (2 * kUnit) < kUnit; };
  const auto same =
      by_lane<Mask>([&](int l) { return static_cast<Lane>(lower(l) ? l : kLanes + l); });
  const auto other = by_lane<Mask>(
      [&](int l) { return static_cast<Lane>(lower(l) ? l + kUnit : kLanes + l - kUnit); });
  return combine(__builtin_shuffle(a, b, same), __builtin_shuffle(a, b, other));
}

// Lane i of the result combines all lanes of vector i. There are 2 kUnit vectors.
template <int kUnit, class Vector, class Combine>
SPGNN_INLINE Vector across(Vector* vectors, Combine combine) {
#pragma GCC unroll 8
  for (int i = 0; i < kUnit; ++i) {
    vectors[i] = halved<kUnit>(vectors[i], vectors[i + kUnit], combine);
  }
  if constexpr (kUnit > 1) {
    return across<kUnit / 2>(vectors, combine);
  } else {
    return vectors[0];
  }
}

// Scales and random numbers of some rows.
template <class S> struct RowScales {
  S levels[kBatch];  // 2^bits − 1
  S low[kBatch], inverse[kBatch], scale[kBatch];
  u32 header[kBatch], start[kBatch], factor[kBatch];
};

// bfloat16 in the upper halves: not above x, not below x ≥ 0.
SPGNN_INLINE WordVector rounded_down(FloatVector x) {
  const auto bits = reinterpret_cast<WordVector>(x + 0.0f);  // one zero for both
  const auto negative = reinterpret_cast<WordVector>(reinterpret_cast<IntVector>(bits) >> 31);
  return (bits + (negative & 0xffffu)) & 0xffff0000u;
}
SPGNN_INLINE WordVector rounded_up(FloatVector x) {
  return (reinterpret_cast<WordVector>(x) + 0xffffu) & 0xffff0000u;
}

SPGNN_INLINE void make_scales(const FloatVector& smallest, const FloatVector& largest, int at,
                              RowScales<float>& found) {
  const auto levels = load_vector<FloatVector>(found.levels + at);
  const WordVector low_bits = rounded_down(smallest);
  const auto low = reinterpret_cast<FloatVector>(low_bits);
  const FloatVector span = (largest - low) + 0.0f, back = span - largest;  // no −0
  const FloatVector beyond = (largest - (span - back)) - (low + back);     // Knuth's two-sum
  WordVector scale_bits = rounded_up(span / levels);
  const FloatVector reach = reinterpret_cast<FloatVector>(scale_bits) * levels;
  const auto short_of = (reach < span) | ((reach == span) & (beyond > 0.0f));
  scale_bits += reinterpret_cast<WordVector>(short_of) & 0x10000u;
  const WordVector least = WordVector{} + kLeastScale;
  const auto is_zero = reinterpret_cast<WordVector>(scale_bits == 0u);
  const auto is_small = reinterpret_cast<WordVector>(scale_bits < least);
  scale_bits = ~is_zero & ((is_small & least) | (~is_small & scale_bits));
  const auto scale = reinterpret_cast<FloatVector>(scale_bits);
  const auto most_bits = reinterpret_cast<WordVector>(scale * levels);
  const auto fits =
      reinterpret_cast<WordVector>((most_bits < kInfinity) & ((low_bits & kInfinity) < kInfinity));
  const auto inverse = reinterpret_cast<WordVector>(65536.0f / scale);
  store_vector(found.low + at, low);
  store_vector(found.scale + at, scale);
  store_vector(found.inverse + at, fits & ~is_zero & inverse);
  store_vector(found.header + at, (fits & ((low_bits >> 16) | scale_bits)) | (~fits & kNanHeader));
}

// The same, row by row: bfloat16 is looked for between the two floats around a double.
inline void make_scales(const DoubleVector& smallest, const DoubleVector& largest, int at,
                        RowScales<double>& found) {
  for (int i = 0; i < Reals<double>::kLanes; ++i) {
    const auto as_float = [](u32 bits) { return __builtin_bit_cast(float, bits); };
    const auto as_bits = [](float x) { return __builtin_bit_cast(u32, x); };
    const double wanted = smallest[i];
    auto nearest = static_cast<float>(wanted);
    if (nearest > wanted) nearest = __builtin_nextafterf(nearest, -__builtin_inff());
    u32 low_bits = as_bits(nearest + 0.0f);
    low_bits = (low_bits + (low_bits >> 31) * 0xffffu) & 0xffff0000u;
    const double low = as_float(low_bits), levels = found.levels[at + i];
    const double span = (largest[i] - low) + 0.0, back = span - largest[i];
    const double beyond = (largest[i] - (span - back)) - (low + back);
    nearest = static_cast<float>(span / levels);
    if (nearest < span / levels) nearest = __builtin_nextafterf(nearest, __builtin_inff());
    u32 scale_bits = (as_bits(nearest) + 0xffffu) & 0xffff0000u;
    const double reach = as_float(scale_bits) * levels;
    if (reach < span || (reach == span && beyond > 0)) scale_bits += 0x10000u;
    if (scale_bits != 0 && scale_bits < kLeastScale) scale_bits = kLeastScale;
    const float most = as_float(scale_bits) * static_cast<float>(levels);
    const bool fits = as_bits(most) < kInfinity && (low_bits & kInfinity) < kInfinity;
    const double scale = as_float(scale_bits);
    found.low[at + i] = low;
    found.scale[at + i] = scale;
    found.inverse[at + i] = fits && scale_bits != 0 ? 65536 / scale : 0;
    found.header[at + i] = fits ? low_bits >> 16 | scale_bits : kNanHeader;
  }
}

// Of the rows from `at` on.
template <class S>
SPGNN_INLINE void make_scales(RowExtremes<S>& extremes, int at, RowScales<S>& found) {
  using Vector = typename RowExtremes<S>::Vector;
  constexpr int kUnit = RowExtremes<S>::kLanes / 2;
  const Vector low = across<kUnit>(extremes.low, [](auto a, auto b) { return smaller(a, b); });
  const Vector high = across<kUnit>(extremes.high, [](auto a, auto b) { return larger(a, b); });
  make_scales(low, high, at, found);
}

}  // namespace spgnn::SPGNN_ISA
