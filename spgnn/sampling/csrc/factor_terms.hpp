// The terms of MeanFactor, for as many shares at once as an instruction set has lanes.
#pragma once

#include <cstring>

namespace spgnn {

// Numbers are kept once for each lane of the widest vector.
struct FactorTerms {
  static constexpr int kWidest = 8, kTerms = 7;

  float most;  // shares above are heavy
  alignas(32) float times[kWidest], integral[kWidest], coefficients[kTerms][kWidest];
};

template <class Lanes>
[[gnu::always_inline]] inline Lanes lanes_at(const float* values) {
  Lanes lanes;
  std::memcpy(&lanes, values, sizeof(lanes));
  return lanes;
}

// The factors of light shares, without a branch; the same bits for every number of lanes.
template <class Lanes>
[[gnu::always_inline]] inline Lanes light_factors(const FactorTerms& terms, Lanes share) {
  const Lanes x = lanes_at<Lanes>(terms.times) * share, y = x * x, y2 = y * y;
  const Lanes c0 = lanes_at<Lanes>(terms.coefficients[0]);
  const Lanes c1 = lanes_at<Lanes>(terms.coefficients[1]);
  const Lanes c2 = lanes_at<Lanes>(terms.coefficients[2]);
  const Lanes c3 = lanes_at<Lanes>(terms.coefficients[3]);
  const Lanes c4 = lanes_at<Lanes>(terms.coefficients[4]);
  const Lanes c5 = lanes_at<Lanes>(terms.coefficients[5]);
  const Lanes c6 = lanes_at<Lanes>(terms.coefficients[6]);
  // In pairs, which do not wait for each other.
  const Lanes sum = c0 + y * c1 + y2 * (c2 + y * c3 + y2 * (c4 + y * c5 + y2 * c6));
  return lanes_at<Lanes>(terms.integral) / x + 0.5F + x * sum;
}

}  // namespace spgnn
