// Layer-neighbour sampling: every vertex has one random number a layer, so that targets take the
// same neighbours where they can.
//
// Balin & Çatalyürek, Layer-Neighbor Sampling — Defusing Neighborhood Explosion in GNNs, NeurIPS
// 2023. A target s takes its neighbour t if r_t ≤ c_s·π_t, with c_s such that the variance is that
// of sampling k neighbours: Σ_t 1/min(1, c_s·π_t) = d_s²/k. LABOR-0 has π = 1; LABOR-i makes π
// larger where many targets would take t, i times.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "expand.hpp"
#include "hop.hpp"

namespace spgnn {

struct LaborOptions {
  int iterations = 0;
  bool same_every_hop = false;  // a vertex has one random number for all layers
  bool edge_ids = false;
};

// c of a row with importances π, k < degree. From below: entries are only ever found to be certain.
template <class Importance>
double labor_scale(std::int64_t degree, std::int64_t k, const Importance& importance) {
  const double wanted =
      static_cast<double>(degree) * static_cast<double>(degree) / static_cast<double>(k);
  double scale = 0;
  for (std::int64_t certain = -1;;) {
    std::int64_t sure = 0;
    double rest = 0;
    for (std::int64_t j = 0; j < degree; ++j) {
      const double value = importance(j);
      if (scale * value >= 1) {
        ++sure;
      } else {
        rest += 1 / value;
      }
    }
    if (sure == certain || sure == degree) return scale;
    certain = sure;
    scale = rest / (wanted - static_cast<double>(sure));
  }
}

inline void raise_to(double& slot, double value) {
  std::atomic_ref<double> shared(slot);
  double seen = shared.load(std::memory_order_relaxed);
  while (seen < value && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

template <class Index>
class LaborHop {
 public:
  LaborHop(const Rows<Index>& rows, Tables& tables, const Targets<Index>& targets, std::int64_t k,
           const HopDraws& draws, const LaborOptions& options, int threads)
      : rows_(rows), targets_(targets), k_(k), draws_(draws), options_(options), threads_(threads) {
    if (options.iterations > 0 && k >= 0) find_importances(tables);
  }

  Entries<Index> run() const {
    const std::int64_t tasks = (targets_.count + kPerTask - 1) / kPerTask;
    std::vector<Part> parts(tasks);
    Entries<Index> entries;
    entries.indptr = Buffer<std::int64_t>(targets_.count + 1);
    entries.indptr[0] = 0;
    for_each_task(tasks, threads_, [&](std::int64_t task) {
      const std::int64_t end = std::min((task + 1) * kPerTask, targets_.count);
      for (std::int64_t i = task * kPerTask; i < end; ++i) {
        take(i, parts[task]);
        entries.indptr[i + 1] = static_cast<std::int64_t>(parts[task].positions.size());
      }
    });
    std::int64_t before = 0;
    for (std::int64_t task = 0; task < tasks; ++task) {
      const std::int64_t end = std::min((task + 1) * kPerTask, targets_.count);
      for (std::int64_t i = task * kPerTask; i < end; ++i) entries.indptr[i + 1] += before;
      before = entries.indptr[end];
    }
    entries.resize(before, options_.edge_ids, true);
    for_each_task(tasks, threads_, [&](std::int64_t task) {
      copy(parts[task], entries.indptr[task * kPerTask], entries);
    });
    return entries;
  }

 private:
  static constexpr std::int64_t kPerTask = 256;
  struct Part {
    std::vector<std::int64_t> positions;
    std::vector<float> weights;
  };

  std::int64_t start(std::int64_t i) const { return rows_.indptr[targets_.rows[i]]; }
  std::int64_t degree(std::int64_t i) const {
    return rows_.indptr[targets_.rows[i] + 1] - rows_.indptr[targets_.rows[i]];
  }
  bool takes_all(std::int64_t i) const { return k_ < 0 || degree(i) <= k_; }

  // π of the j-th entry of target i.
  double importance(std::int64_t i, std::int64_t j) const {
    return importances_.size() ? importances_[numbers_[offsets_[i] + j]] : 1;
  }
  double scale(std::int64_t i) const {
    if (!importances_.size()) return static_cast<double>(k_) / static_cast<double>(degree(i));
    return labor_scale(degree(i), k_, [&](std::int64_t j) { return importance(i, j); });
  }

  void take(std::int64_t i, Part& part) const {
    const std::int64_t from = start(i), entries = degree(i);
    if (i + 1 < targets_.count) __builtin_prefetch(rows_.indices + start(i + 1));
    if (takes_all(i)) {
      for (std::int64_t j = 0; j < entries; ++j) part.positions.push_back(from + j);
      part.weights.resize(part.positions.size(), 1);
      return;
    }
    if (k_ == 0) return;
    const double c = scale(i);
    for (std::int64_t j = 0; j < entries; ++j) {
      const double chance = std::min(1.0, c * importance(i, j));
      const VertexDraws own = draws_.of(rows_.column_id(rows_.indices[from + j]));
      if (unit(own[0]) > chance) continue;
      part.positions.push_back(from + j);
      part.weights.push_back(static_cast<float>(1 / chance));
    }
  }

  void copy(const Part& part, std::int64_t to, Entries<Index>& entries) const {
    for (std::size_t j = 0; j < part.positions.size(); ++j) {
      const std::int64_t e = part.positions[j];
      entries.columns[to + j] = rows_.indices[e];
      entries.weights[to + j] = part.weights[j];
      if (options_.edge_ids) entries.edge_ids[to + j] = rows_.order ? rows_.order[e] : e;
    }
  }

  void find_importances(Tables& tables) {
    Entries<Index> all = draw_hop(rows_, targets_, -1, draws_, {}, threads_);
    offsets_ = std::move(all.indptr);
    numbers_ = Buffer<std::int32_t>(all.columns.size());
    const std::int64_t vertices = tables.with_table([&](auto& table) {
      Numbering<std::remove_reference_t<decltype(table)>, Index> numbering(table, threads_);
      numbering.add(all.columns.data(), all.columns.size(), numbers_.data(), true);
      return numbering.size();
    });
    importances_ = Buffer<double>(vertices);
    std::fill_n(importances_.data(), vertices, 1.0);
    for (int iteration = 0; iteration < options_.iterations; ++iteration) sharpen();
  }

  // π_t ← π_t · max c_s over the targets s that t is a neighbour of.
  void sharpen() {
    Buffer<double> largest(importances_.size());
    std::fill_n(largest.data(), largest.size(), 0.0);
    const std::int64_t tasks = (targets_.count + kPerTask - 1) / kPerTask;
    for_each_task(tasks, threads_, [&](std::int64_t task) {
      const std::int64_t end = std::min((task + 1) * kPerTask, targets_.count);
      for (std::int64_t i = task * kPerTask; i < end; ++i) {
        if (k_ == 0) continue;
        // A row that is taken whole needs min(1, c·π) = 1 for every entry of it.
        double c = takes_all(i) ? 0 : scale(i);
        for (std::int64_t j = 0; j < degree(i) && takes_all(i); ++j) {
          c = std::max(c, 1 / importance(i, j));
        }
        for (std::int64_t j = 0; j < degree(i); ++j) {
          raise_to(largest[numbers_[offsets_[i] + j]], c);
        }
      }
    });
    for (std::int64_t v = 0; v < largest.size(); ++v) {
      if (largest[v] > 0) importances_[v] *= largest[v];
    }
  }

  const Rows<Index>& rows_;
  const Targets<Index>& targets_;
  std::int64_t k_;
  const HopDraws& draws_;
  LaborOptions options_;
  int threads_;
  Buffer<std::int64_t> offsets_;
  Buffer<std::int32_t> numbers_;
  Buffer<double> importances_;  // empty: all are 1
};

}  // namespace spgnn
