// Layer-wise sampling: so many vertices for all targets together.
//
// LADIES (Zou et al., NeurIPS 2019) draws a vertex t among the targets' neighbours in proportion to
// Σ_s A_st² over the targets s; FastGCN (Chen, Ma & Xiao, ICLR 2018) among all vertices, with s
// over all rows. The former, for the targets of many batches, are the rows of a product Q·(A∘A),
// where row b of Q marks the targets of batch b (Tripathy, Yelick & Buluç, Distributed Matrix-Based
// Sampling for Graph Neural Network Training, MLSys 2024). Vertices are drawn without replacement,
// by their times of arrival, as in weighted.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "expand.hpp"
#include "hop.hpp"

namespace spgnn {

// A_st² by the number of the entry in the caller's pattern.
using Squares = const double*;

// Factors of the chosen ones among candidates of some shares; 0: not chosen.
template <class Id>
std::vector<float> chosen_candidates(const std::vector<double>& masses, std::int64_t count,
                                     const HopDraws& draws, const Id& id) {
  const auto candidates = static_cast<std::int64_t>(masses.size());
  if (count < 0 || candidates <= count) return std::vector<float>(candidates, 1);
  std::vector<float> factors(candidates, 0);
  if (count == 0) return factors;
  double sum = 0;
  for (const double mass : masses) sum += mass;
  std::vector<std::pair<double, std::int64_t>> arrivals(candidates);
  for (std::int64_t i = 0; i < candidates; ++i) {
    const double wait = -std::log(unit(draws.of(id(i))[0]));
    arrivals[i] = {wait / std::max(masses[i] / sum, 1e-300), i};
  }
  std::nth_element(arrivals.begin(), arrivals.begin() + count, arrivals.end());
  const double time = arrivals[count].first;
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int64_t i = arrivals[j].second;
    factors[i] = 1 / one_minus_exp(static_cast<float>(masses[i] / sum * time));
  }
  return factors;
}

// The entries whose factor(e) is not 0.
template <class Index, class Factor>
Entries<Index> kept(Entries<Index>&& all, bool edge_ids, const Factor& factor) {
  Entries<Index> entries;
  const std::int64_t targets = all.indptr.size() - 1;
  entries.indptr = Buffer<std::int64_t>(targets + 1);
  entries.resize(all.columns.size(), edge_ids, true);
  std::int64_t at = 0;
  entries.indptr[0] = 0;
  for (std::int64_t i = 0; i < targets; ++i) {
    for (std::int64_t e = all.indptr[i]; e < all.indptr[i + 1]; ++e) {
      const float weight = factor(e);
      if (weight == 0) continue;
      entries.columns[at] = all.columns[e];
      entries.weights[at] = weight;
      if (edge_ids) entries.edge_ids[at] = all.edge_ids[e];
      ++at;
    }
    entries.indptr[i + 1] = at;
  }
  entries.columns.resize(at);
  entries.weights.resize(at);
  if (edge_ids) entries.edge_ids.resize(at);
  return entries;
}

template <class Index>
Entries<Index> ladies_hop(const Rows<Index>& rows, Tables& tables, const Targets<Index>& targets,
                          Squares squares, std::int64_t count, const HopDraws& draws, bool edge_ids,
                          int threads) {
  HopOptions whole;
  whole.edge_ids = true;
  Entries<Index> all = draw_hop(rows, targets, -1, draws, whole, threads);
  const std::int64_t entries = all.columns.size();
  Buffer<std::int32_t> numbers(entries);
  return tables.with_table([&](auto& table) {
    Numbering<std::remove_reference_t<decltype(table)>, Index> numbering(table, threads);
    numbering.add(all.columns.data(), entries, numbers.data(), true);
    std::vector<double> masses(numbering.size(), 0.0);
    for (std::int64_t e = 0; e < entries; ++e) masses[numbers[e]] += squares[all.edge_ids[e]];
    const std::vector<float> factors = chosen_candidates(
        masses, count, draws, [&](std::int64_t i) { return rows.column_id(numbering.keys()[i]); });
    return kept(std::move(all), edge_ids, [&](std::int64_t e) { return factors[numbers[e]]; });
  });
}

// The vertices that one hop of FastGCN draws, with their factors; `vertices` is one row of all of
// them, with alias tables.
template <class Index>
Entries<Index> fastgcn_hop(const Rows<Index>& rows, const Rows<Index>& vertices, Tables& tables,
                           const Targets<Index>& targets, std::int64_t count, const HopDraws& draws,
                           bool edge_ids, int threads) {
  HopOptions whole, weighted;
  whole.edge_ids = edge_ids;
  weighted.strategy = Strategy::weighted;
  Entries<Index> all = draw_hop(rows, targets, -1, draws, whole, threads);
  const Index first = 0;
  const Targets<Index> one{&first, 1};
  const Entries<Index> drawn = draw_hop(vertices, one, count, draws, weighted, 1);
  return tables.with_table([&](auto& table) {
    Numbering<std::remove_reference_t<decltype(table)>, Index> numbering(table, 1);
    Buffer<std::int32_t> numbers(drawn.columns.size());
    numbering.add(drawn.columns.data(), drawn.columns.size(), numbers.data(), false);
    return kept(std::move(all), edge_ids, [&](std::int64_t e) {
      const std::int64_t number = numbering.find(all.columns[e]);
      return number < 0 ? 0.0F : drawn.weights[number];
    });
  });
}

}  // namespace spgnn
