// Which of a row's entries are sampled.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "hash.hpp"

namespace spgnn {

// k of degree > k positions, each set equally likely: R. W. Floyd's algorithm (Bentley & Floyd,
// CACM 1987). Position j is drawn from [0, degree − k + j] and replaced by the last of these if it
// was chosen before.
class WithoutReplacement {
 public:
  // Room for fan-outs of at most `most`.
  explicit WithoutReplacement(std::int64_t most) {
    if (most > kScanned) seen_.resize(std::bit_ceil(static_cast<std::uint64_t>(2 * most)));
  }

  void operator()(std::int64_t start, std::int64_t degree, std::int64_t k, VertexDraws draws,
                  std::int64_t* positions) {
    if (degree <= 64) {
      by_mask(start, degree, k, draws, positions);
    } else if (k <= 8) {
      by_scan<8>(start, degree, k, draws, positions);
    } else if (k <= 16) {
      by_scan<16>(start, degree, k, draws, positions);
    } else if (k <= kScanned) {
      by_scan<kScanned>(start, degree, k, draws, positions);
    } else {
      by_table(start, degree, k, draws, positions);
    }
  }

 private:
  static constexpr int kScanned = 32;

  static void by_mask(std::int64_t start, std::int64_t degree, std::int64_t k, VertexDraws draws,
                      std::int64_t* positions) {
    std::uint64_t chosen = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      const std::uint64_t last = degree - k + j, drawn = below(draws[j], last + 1);
      const std::uint64_t taken = chosen >> drawn & 1 ? last : drawn;
      chosen |= std::uint64_t{1} << taken;
      positions[j] = start + static_cast<std::int64_t>(taken);
    }
  }

  template <int kRoom>
  static void by_scan(std::int64_t start, std::int64_t degree, std::int64_t k, VertexDraws draws,
                      std::int64_t* positions) {
    std::uint32_t chosen[kRoom];
    std::fill(chosen, chosen + kRoom, ~std::uint32_t{0});
    for (std::int64_t j = 0; j < k; ++j) {
      const auto last = static_cast<std::uint32_t>(degree - k + j);
      const auto drawn = static_cast<std::uint32_t>(below(draws[j], std::uint64_t{last} + 1));
      std::uint32_t seen = 0;
      for (int i = 0; i < kRoom; ++i) seen |= chosen[i] == drawn;
      chosen[j] = seen ? last : drawn;
      positions[j] = start + chosen[j];
    }
  }

  void by_table(std::int64_t start, std::int64_t degree, std::int64_t k, VertexDraws draws,
                std::int64_t* positions) {
    const std::uint64_t slots = std::bit_ceil(static_cast<std::uint64_t>(2 * k));
    const int shift = 64 - std::countr_zero(slots);
    std::fill_n(seen_.begin(), slots, -1);
    const auto place = [&](std::int64_t value) {
      std::uint64_t i = (static_cast<std::uint64_t>(value) * kGolden) >> shift;
      while (seen_[i] >= 0 && seen_[i] != value) i = (i + 1) & (slots - 1);
      return i;
    };
    for (std::int64_t j = 0; j < k; ++j) {
      const std::int64_t last = degree - k + j;
      auto taken = static_cast<std::int64_t>(below(draws[j], last + 1));
      if (seen_[place(taken)] == taken) taken = last;
      seen_[place(taken)] = taken;
      positions[j] = start + taken;
    }
  }

  std::vector<std::int64_t> seen_;
};

// k positions, drawn one by one.
class WithReplacement {
 public:
  explicit WithReplacement(std::int64_t) {}
  void operator()(std::int64_t start, std::int64_t degree, std::int64_t k, VertexDraws draws,
                  std::int64_t* positions) const {
    for (std::int64_t j = 0; j < k; ++j) {
      positions[j] = start + static_cast<std::int64_t>(below(draws[j], degree));
    }
  }
};

}  // namespace spgnn
