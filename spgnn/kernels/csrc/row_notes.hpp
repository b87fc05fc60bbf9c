// What is noted while a row is packed: what of it will not arrive.
#pragma once

#include "quantise_types.hpp"
#include "sixteen.hpp"

namespace spgnn::SPGNN_ISA {

// One row, as the inner loops want it.
template <class T>
struct QuantisedRow {
  using Vector = typename Reals<Sum<T>>::Vector;
  const T* x;
  T* residual;                 // or null
  bool counted;                // whether what is lost of it is added up
  Vector low, inverse, scale;  // of 8 bits and fewer
};

// What is sent: x, with what was lost of it before.
template <bool kNotes, class T>
SPGNN_INLINE Reals<Sum<T>> load_sent(const QuantisedRow<T>& row, std::int64_t c, int lanes) {
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

  template <class Real>
  SPGNN_INLINE void add(const Real& arrived, const Real& x, int lanes) {
    const Reals<double> a = doubled(arrived), b = doubled(x);
    for_each_vector<Reals<double>>([&](auto i) __attribute__((always_inline)) {
      DoubleVector e = a.v[i] - b.v[i];
      if (lanes < kGroup) {
        const auto within = by_lane<LongVector>([&](int lane) {
                              return static_cast<std::int64_t>(i * Reals<double>::kLanes + lane);
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
SPGNN_INLINE void take_note(const QuantisedRow<T>& row, LostLanes& sums, std::int64_t c,
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

}  // namespace spgnn::SPGNN_ISA
