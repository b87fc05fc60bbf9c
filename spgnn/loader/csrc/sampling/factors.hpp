// Factors that make sums over weighted draws unbiased, from shares of a row's weights.
//
// If entries arrive as a Poisson process of rate 1, entry i arrives first after an exponential time
// of rate share(i), by itself. So with t the arrival of the first entry that is *not* taken, an
// entry was taken with probability 1 − exp(−share·t) given the others, and one over that makes sums
// unbiased (bottom-k sketches: Cohen & Kaplan, PODC 2007; Duffield, Lund & Thorup, J. ACM 2007).
// Where only the number of arrivals is known, the mean of that over t does as well.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "factor_terms.hpp"
#include "hash.hpp"

namespace spgnn {

// An exponential number from 64 random bits.
inline double exponential(std::uint64_t random) { return -std::log(unit(random)); }

// The same to seven digits, without a branch: log x = n·log 2 + 2·artanh((m − 1) / (m + 1)).
inline float quick_exponential(std::uint64_t random) {
  const auto bits = static_cast<std::int32_t>(random >> 33) | 1;
  const auto x = std::bit_cast<std::int32_t>(static_cast<float>(bits));
  const std::int32_t shifted = x - 0x3F3504F3;  // so that m is in [√½, √2)
  const float m = std::bit_cast<float>((shifted & 0x007FFFFF) + 0x3F3504F3);
  const auto n = static_cast<float>((shifted >> 23) - 31);
  const float s = (m - 1) / (m + 1), t = s * s;
  return -(n * 0.693147181F +
           2 * s * (1 + t * (1.0F / 3 + t * (1.0F / 5 + t * (1.0F / 7 + t / 9)))));
}

using FourLanes = Vectors<16>::Floats;

// The mean of 1 / (1 − exp(−share·t)) where t is the sum of n ≥ 2 exponential numbers: it is
// Σ_j (1 + j·share)^−n, for a light share by Euler and Maclaurin, to five digits.
class MeanFactor {
 public:
  constexpr explicit MeanFactor(std::int64_t arrivals) : terms_() {
    terms_.arrivals = arrivals;
    const auto n = static_cast<float>(arrivals);
    terms_.most = 3.1F / (n + 6);
    // Terms are written in x = n·share, which keeps their coefficients small.
    const float step = 1 / n;
    float c = 1.0F / 12;
    spread(terms_.times, n);
    spread(terms_.integral, n / (n - 1));
    spread(terms_.coefficients[0], c);
    for (int i = 1; i < FactorTerms::kTerms; ++i) {
      const auto odd = static_cast<float>(2 * i - 1);
      c *= (1 + odd * step) * (1 + (odd + 1) * step) * kRatios[i - 1];
      spread(terms_.coefficients[i], c);
    }
  }

  // Of some shares; whole vectors are read and written.
  void of(std::int64_t count, const float* shares, float* factors) const {
    each_lanes<FourLanes>(count, shares, factors,
                          [&](FourLanes four) { return mean_factors(terms_, four); });
  }
  const FactorTerms& terms() const { return terms_; }

 private:
  static constexpr void spread(float* lanes, float value) {
    for (int lane = 0; lane < FactorTerms::kWidest; ++lane) lanes[lane] = value;
  }

  // B_2p / (2p)! over the one before.
  static constexpr float kRatios[FactorTerms::kTerms - 1] = {-12.0F / 720,
                                                             -720.0F / 30240,
                                                             -30240.0F / 1209600,
                                                             -1209600.0F / 47900160,
                                                             -5.28419014e-10F * 47900160,
                                                             1.33825365e-11F / -5.28419014e-10F};

  FactorTerms terms_;
};

// Of usual numbers of arrivals, made once; by number.
inline constexpr auto kMeanFactors = []<std::size_t... kNumbers>(std::index_sequence<kNumbers...>) {
  return std::array{MeanFactor(std::max<std::int64_t>(kNumbers, 2))...};
}(std::make_index_sequence<129>());

}  // namespace spgnn
