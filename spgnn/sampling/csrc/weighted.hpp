// Which of a row's entries are sampled, in proportion to weights.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "big_array.hpp"
#include "choose.hpp"
#include "hash.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace spgnn {

// Streams of hashes of one vertex, which must not overlap.
inline constexpr std::uint64_t kWaits = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kKeys = std::uint64_t{2} << 40;

// 1 − exp(−x) for x ≥ 0, to seven digits also where it is small; without a branch, so that loops of
// it become vectors.
inline float one_minus_exp(float x) {
  const float y = std::min(x, 80.0F);
  const float small = y * (1 - y / 2 * (1 - y / 3 * (1 - y / 4 * (1 - y / 5))));
  // exp(−y) = 2^−(n + f): a polynomial for the fraction, the exponent's bits for the rest.
  const float halvings = y * 1.44269504F;
  const auto whole = static_cast<std::int32_t>(halvings);
  const float f = (halvings - static_cast<float>(whole)) * 0.693147181F;
  const float power =
      1 - f * (1 - f / 2 * (1 - f / 3 * (1 - f / 4 * (1 - f / 5 * (1 - f / 6 * (1 - f / 7))))));
  const float large = 1 - power * std::bit_cast<float>((127 - whole) << 23);
  return y < 0.25F ? small : large;
}

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

// The mean of 1 / (1 − exp(−share·t)) where t is the sum of n ≥ 2 exponential numbers: it is
// Σ_j (1 + j·share)^−n, here by Euler and Maclaurin, to five digits where n·share ≤ 2.
inline float mean_factor(float share, float n) {
  const float p2 = share * share;
  const float first = share * n, third = first * (n + 1) * (n + 2) * p2;
  const float fifth = third * (n + 3) * (n + 4) * p2, seventh = fifth * (n + 5) * (n + 6) * p2;
  const float ninth = seventh * (n + 7) * (n + 8) * p2;
  return 1 / (share * (n - 1)) + 0.5F + first / 12 - third / 720 + fifth / 30240 -
         seventh / 1209600 + ninth / 47900160;
}

// The same for any share: the first terms apart, until the rest is that of a small one.
inline float mean_factor_of_heavy(float share, float n) {
  float sum = 0, term = 1;
  while (share * n > 2 && term > 1e-7F) {
    sum += term;
    term *= std::pow(1 + share, -n);
    share /= 1 + share;
  }
  return term > 1e-7F ? sum + term * mean_factor(share, n) : sum;
}

// An entry of a row, and its share of the weights.
struct Drawn {
  std::uint32_t offset;
  float share;
};

// An entry in proportion to its weight: one look-up, in a table made once.
class AliasDrawer {
 public:
  template <class Index>
  AliasDrawer(const Rows<Index>& rows, std::int64_t start, std::int64_t degree)
      : row_(rows.aliases + start), degree_(degree) {}

  [[gnu::always_inline]] void prefetch(std::uint64_t random) const {
    __builtin_prefetch(row_ + below(random, degree_));
  }
  Drawn draw(std::uint64_t random) const {
    const auto product = static_cast<unsigned __int128>(random) * degree_;
    const auto slot = static_cast<std::uint32_t>(product >> 64);
    const auto fraction = static_cast<std::uint32_t>(static_cast<std::uint64_t>(product) >> 32);
    // All of it is loaded, for which half is taken is nothing to predict.
    const Alias entry = row_[slot];
    const std::uint32_t swap = 0U - static_cast<std::uint32_t>(fraction >= entry.keep);
    const auto own = std::bit_cast<std::uint32_t>(entry.share);
    const auto other = std::bit_cast<std::uint32_t>(entry.other_share);
    return {slot ^ ((slot ^ entry.other) & swap),
            std::bit_cast<float>(own ^ ((own ^ other) & swap))};
  }
  [[gnu::always_inline]] void prefetch_all() const {
    const char* row = reinterpret_cast<const char*>(row_);
    for (std::uint64_t byte = 0; byte < degree_ * sizeof(Alias); byte += 64) {
      __builtin_prefetch(row + byte);
    }
  }
  float share(std::uint32_t offset) const { return row_[offset].share; }

 private:
  const Alias* row_;
  std::uint64_t degree_;
};

// The same for the first entries of a row, which no table was made for: a search.
class SumDrawer {
 public:
  template <class Index>
  SumDrawer(const Rows<Index>& rows, std::int64_t start, std::int64_t degree)
      : row_(rows.sums + start), degree_(degree) {}

  [[gnu::always_inline]] void prefetch(std::uint64_t) const {}
  [[gnu::always_inline]] void prefetch_all() const {}
  Drawn draw(std::uint64_t random) const {
    const double at = unit(random) * row_[degree_ - 1];
    const std::int64_t place = std::upper_bound(row_, row_ + degree_, at) - row_;
    const auto offset = static_cast<std::uint32_t>(std::min(place, degree_ - 1));
    return {offset, share(offset)};
  }
  float share(std::uint32_t offset) const {
    const double before = offset > 0 ? row_[offset - 1] : 0;
    return static_cast<float>((row_[offset] - before) / row_[degree_ - 1]);
  }

 private:
  const double* row_;
  std::int64_t degree_;
};

// Drawn one by one, each in proportion to its weight among those that are left.
//
// Entries that were drawn before are passed over, which is the same. If entries arrive as a Poisson
// process of rate 1, entry i arrives first after an exponential time of rate share(i), by itself.
// So with t the arrival of the first entry that is *not* taken, an entry was taken with probability
// 1 − exp(−share·t) given the others, and one over that makes sums unbiased (bottom-k sketches:
// Cohen & Kaplan, PODC 2007; Duffield, Lund & Thorup, J. ACM 2007). Where only the number of
// arrivals is known, the mean of that over t does as well.
template <class Index, class Drawer>
class WeightedWithoutReplacement {
 public:
  static constexpr bool kWeighs = true;
  explicit WeightedWithoutReplacement(const Rows<Index>& rows) : rows_(rows) {}

  [[gnu::always_inline]] void prefetch(std::int64_t start, std::int64_t degree, std::int64_t k,
                                       VertexDraws draws) const {
    const Drawer drawer(rows_, start, degree);
    if (is_short(degree, k)) {
      drawer.prefetch_all();
    } else {
      for (std::int64_t j = 0; j <= k; ++j) drawer.prefetch(draws[j]);
    }
  }

  void operator()(std::int64_t start, std::int64_t degree, std::int64_t k, VertexDraws draws,
                  std::int64_t* positions, float* factors) {
    const Drawer drawer(rows_, start, degree);
    if (is_short(degree, k)) {
      draw_all(drawer, degree, k, draws, positions, factors);
    } else {
      with_set(k, memory_, [&](auto&& chosen) {
        draw_some(chosen, drawer, degree, k, draws, positions, factors);
      });
    }
    for (std::int64_t j = 0; j < k; ++j) positions[j] += start;
  }

 private:
  static constexpr std::int64_t kShort = 64;

  // Most of the row is wanted: drawing one by one would mostly meet what was drawn before.
  static bool is_short(std::int64_t degree, std::int64_t k) {
    return degree <= kShort && 4 * degree <= 5 * (k + 1);
  }

  // When does each entry arrive? Ranks by counting, without a branch.
  static void draw_all(const Drawer& drawer, std::int64_t degree, std::int64_t k, VertexDraws draws,
                       std::int64_t* offsets, float* factors) {
    float arrivals[kShort], shares[kShort];
    for (std::int64_t j = 0; j < degree; ++j) {
      shares[j] = std::max(drawer.share(static_cast<std::uint32_t>(j)), kLeastShare);
    }
    for (std::int64_t j = 0; j < degree; ++j) {
      arrivals[j] = quick_exponential(draws[kKeys + j]) / shares[j];
    }
    std::int32_t order[kShort];
    for (std::int64_t j = 0; j < degree; ++j) {
      std::int32_t rank = 0;
      for (std::int64_t i = 0; i < j; ++i) rank += arrivals[i] <= arrivals[j];
      for (std::int64_t i = j + 1; i < degree; ++i) rank += arrivals[i] < arrivals[j];
      order[rank] = static_cast<std::int32_t>(j);
    }
    const float time = arrivals[order[k]];
    for (std::int64_t j = 0; j < k; ++j) {
      offsets[j] = order[j];
      factors[j] = 1 / one_minus_exp(shares[order[j]] * time);
    }
  }

  // Entry by entry, until the one after the last.
  template <class Set>
  void draw_some(Set& chosen, const Drawer& drawer, std::int64_t degree, std::int64_t k,
                 VertexDraws draws, std::int64_t* offsets, float* factors) {
    const std::int64_t patience = 8 * k + 32;
    std::int64_t taken = 0, drawn = 0;
    for (; drawn < patience; ++drawn) {
      const Drawn entry = drawer.draw(draws[drawn]);
      if (chosen.has(entry.offset)) continue;
      if (taken == k) break;
      chosen.add(entry.offset);
      offsets[taken] = entry.offset;
      factors[taken++] = entry.share;
    }
    if (drawn == patience) {
      draw_rest(chosen, drawer, degree, k, taken, draws, offsets, factors);
      return;
    }
    const auto arrivals = static_cast<float>(drawn + 1);
    float heaviest = 0;
    for (std::int64_t j = 0; j < k; ++j) heaviest = std::max(heaviest, factors[j]);
    if (heaviest * arrivals <= 2) {
      for (std::int64_t j = 0; j < k; ++j) factors[j] = mean_factor(factors[j], arrivals);
    } else {
      for (std::int64_t j = 0; j < k; ++j) factors[j] = mean_factor_of_heavy(factors[j], arrivals);
    }
  }

  // Few heavy entries were drawn again and again: the rest by their times of arrival, which are
  // exponential from any moment on.
  template <class Set>
  void draw_rest(const Set& chosen, const Drawer& drawer, std::int64_t degree, std::int64_t k,
                 std::int64_t taken, VertexDraws draws, std::int64_t* offsets, float* factors) {
    double time = 0;
    for (std::int64_t j = 0; j < 8 * k + 32; ++j) time += exponential(draws[kWaits + j]);
    arrivals_.clear();
    for (std::uint32_t offset = 0; offset < degree; ++offset) {
      if (chosen.has(offset)) continue;
      const double wait = exponential(draws[kKeys + offset]);
      arrivals_.emplace_back(wait / std::max(drawer.share(offset), kLeastShare), offset);
    }
    const auto last = arrivals_.begin() + (k - taken);
    std::nth_element(arrivals_.begin(), last, arrivals_.end());
    std::sort(arrivals_.begin(), last);
    for (auto arrival = arrivals_.begin(); arrival != last; ++arrival) {
      offsets[taken++] = arrival->second;
    }
    time += last->first;
    for (std::int64_t j = 0; j < k; ++j) {
      const float share = drawer.share(static_cast<std::uint32_t>(offsets[j]));
      factors[j] = 1 / one_minus_exp(std::max(share, kLeastShare) * static_cast<float>(time));
    }
  }

  static constexpr float kLeastShare = std::numeric_limits<float>::min();

  const Rows<Index>& rows_;
  std::vector<std::uint32_t> memory_;
  std::vector<std::pair<double, std::uint32_t>> arrivals_;
};

// Drawn one by one, each in proportion to its weight; one over the expected number of times makes
// sums unbiased (Hansen & Hurwitz, Annals of Mathematical Statistics, 1943).
template <class Index, class Drawer>
class WeightedWithReplacement {
 public:
  static constexpr bool kWeighs = true;
  explicit WeightedWithReplacement(const Rows<Index>& rows) : rows_(rows) {}

  [[gnu::always_inline]] void prefetch(std::int64_t start, std::int64_t degree, std::int64_t k,
                                       VertexDraws draws) const {
    const Drawer drawer(rows_, start, degree);
    for (std::int64_t j = 0; j < k; ++j) drawer.prefetch(draws[j]);
  }

  void operator()(std::int64_t start, std::int64_t degree, std::int64_t k, VertexDraws draws,
                  std::int64_t* positions, float* factors) const {
    const Drawer drawer(rows_, start, degree);
    for (std::int64_t j = 0; j < k; ++j) {
      const Drawn entry = drawer.draw(draws[j]);
      positions[j] = start + entry.offset;
      factors[j] = 1 / (static_cast<float>(k) * entry.share);
    }
  }

 private:
  const Rows<Index>& rows_;
};

inline constexpr std::int64_t kRowsPerTask = 4096;

// Calls row(start, degree) for all rows, on all threads.
template <class Row>
void for_each_row(const std::int64_t* indptr, std::int64_t rows, int threads, const Row& row) {
  for_each_task((rows + kRowsPerTask - 1) / kRowsPerTask, threads, [&](std::int64_t task) {
    const std::int64_t end = std::min((task + 1) * kRowsPerTask, rows);
    for (std::int64_t i = task * kRowsPerTask; i < end; ++i) {
      row(indptr[i], indptr[i + 1] - indptr[i]);
    }
  });
}

// Sums of the weights of each row up to and with each entry.
inline Buffer<double> row_sums(const std::int64_t* indptr, std::int64_t rows, const double* weights,
                               int threads) {
  Buffer<double> sums(indptr[rows]);
  for_each_row(indptr, rows, threads, [&](std::int64_t start, std::int64_t degree) {
    double sum = 0;
    for (std::int64_t e = start; e < start + degree; ++e) sums[e] = sum += weights[e];
  });
  return sums;
}

// The alias tables of all rows (Vose, IEEE Transactions on Software Engineering, 1991).
inline BigArray<Alias> alias_tables(const std::int64_t* indptr, std::int64_t rows,
                                    const double* weights, int threads) {
  BigArray<Alias> tables(indptr[rows]);
  for_each_row(indptr, rows, threads, [&](std::int64_t start, std::int64_t degree) {
    Alias* row = tables.data() + start;
    double sum = 0;
    for (std::int64_t j = 0; j < degree; ++j) sum += weights[start + j];
    std::vector<double> chances(degree);  // in units of 1 / degree
    std::vector<std::uint32_t> small, large;
    for (std::int64_t j = 0; j < degree; ++j) {
      const double share = weights[start + j] / sum;
      const auto offset = static_cast<std::uint32_t>(j);
      row[j] = {~std::uint32_t{0}, offset, static_cast<float>(share), static_cast<float>(share)};
      chances[j] = share * static_cast<double>(degree);
      (chances[j] < 1 ? small : large).push_back(offset);
    }
    while (!small.empty() && !large.empty()) {
      const std::uint32_t little = small.back(), much = large.back();
      small.pop_back();
      row[little].keep = static_cast<std::uint32_t>(chances[little] * 0x1p32);
      row[little].other = much;
      row[little].other_share = row[much].share;
      chances[much] -= 1 - chances[little];
      if (chances[much] >= 1) continue;
      large.pop_back();
      small.push_back(much);
    }
  });
  return tables;
}

}  // namespace spgnn
