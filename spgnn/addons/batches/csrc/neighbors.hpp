// Samplers of several hops: neighbours, LABOR, layer by layer.
#pragma once

#include "expand.hpp"
#include "hop.hpp"

namespace spgnn {

// A sample of each seed's own (disjoint) or of all; `limits`: the latest time of each seed. Of each
// type a table and seeds, of each relation a strategy, of each hop and relation a fan-out.
template <class Index>
Sampled sample_neighbors(std::span<const Relation<Index>> relations,
                         std::span<const Strategy> strategies, std::span<Tables* const> types,
                         std::span<const std::span<const i64>> seeds, std::span<const i64> limits,
                         std::span<const i64> fanouts, const Draw& draw, HopOptions options,
                         int threads) {
  const auto count = std::ssize(relations);
  const auto hop = [&](i64 k, i64 r, const Targets<Index>& targets, Sink<Index>* sink) {
    const HopDraws draws(draw, (options.resample ? k : 0) * count + r);
    HopOptions own = options;
    own.strategy = strategies[r];
    return draw_hop(*relations[r].rows, targets, fanouts[k * count + r], draws, own, threads, sink);
  };
  const auto grow = [&]<class Table, bool kDisjoint>() {
    std::vector<Table*> taken;
    return with_each(types, taken, [&](const std::vector<Table*>& tables) {
      Growth<Index, Table, kDisjoint> growth(relations, tables, types, seeds, limits, threads);
      const i64 hops = count > 0 ? std::ssize(fanouts) / count : 0;
      return growth.grow(hops, options.directed, options.edge_ids, hop);
    });
  };
  const auto is_large = [](const Tables* tables) { return tables->keys() > kMostInArray; };
  if (options.disjoint) return grow.template operator()<HashTable, true>();
  return std::ranges::any_of(types, is_large) ? grow.template operator()<HashTable, false>()
                                              : grow.template operator()<ArrayTable, false>();
}

// One hop alone; columns are those of the pattern. `roots` and `limits` may be empty.
template <class Index>
Entries<Index> sample_hop(const Rows<Index>& rows, std::span<const i64> targets,
                          std::span<const i64> roots, std::span<const i64> limits, i64 fanout,
                          u64 hop, const Draw& draw, const HopOptions& options, int threads) {
  const auto count = std::ssize(targets);
  Buffer<Index> vertices(count);
  Buffer<i32> trees(std::ssize(roots));
  for (i64 i = 0; i < count; ++i) {
    check_vertex(targets[i], rows.rows, "target");
    vertices[i] = static_cast<Index>(targets[i]);
    if (!roots.empty()) trees[i] = static_cast<i32>(roots[i]);
  }
  const Targets<Index> those{vertices.data(), count, roots.empty() ? nullptr : trees.data(),
                             limits.empty() ? nullptr : limits.data()};
  return draw_hop(rows, those, fanout, HopDraws(draw, hop), options, threads);
}

// Layer-neighbour sampling (Balin & Çatalyürek, NeurIPS 2023): a vertex has one random number a
// layer. Target s takes neighbour t if r_t ≤ c_s·π_t, with c_s such that the variance is that of
// sampling k neighbours: Σ_t 1/min(1, c_s·π_t) = d_s²/k. LABOR-0 has π = 1; LABOR-i makes π larger
// where many targets would take t, i times.

struct LaborOptions {
  int iterations = 0;
  bool same_every_hop = false;  // a vertex has one random number for all layers
  bool edge_ids = false;
};

// c of a row with importances π, k < degree. From below: entries are only ever found to be certain.
template <class Importance> double labor_scale(i64 degree, i64 k, const Importance& importance) {
  const double wanted =
      static_cast<double>(degree) * static_cast<double>(degree) / static_cast<double>(k);
  double scale = 0;
  for (i64 certain = -1;;) {
    i64 sure = 0;
    double rest = 0;
    for (i64 j = 0; j < degree; ++j) {
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
  while (seen < value && !shared.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {}
}

template <class Index> class LaborHop {
 public:
  LaborHop(const Rows<Index>& rows, Tables& tables, const Targets<Index>& targets, i64 k,
           const HopDraws& draws, const LaborOptions& options, int threads)
      : rows_(rows), targets_(targets), k_(k), draws_(draws), options_(options), threads_(threads) {
    if (options.iterations > 0 && k >= 0) find_importances(tables);
  }

  Entries<Index> run() const {
    const i64 tasks = (targets_.count + kPerTask - 1) / kPerTask;
    std::vector<Part> parts(tasks);
    Entries<Index> entries;
    entries.indptr = Buffer<i64>(targets_.count + 1);
    entries.indptr[0] = 0;
    for_each_task(tasks, threads_, [&](i64 task) {
      const i64 end = std::min((task + 1) * kPerTask, targets_.count);
      for (i64 i = task * kPerTask; i < end; ++i) {
        take(i, parts[task]);
        entries.indptr[i + 1] = std::ssize(parts[task].positions);
      }
    });
    i64 before = 0;
    for (i64 task = 0; task < tasks; ++task) {
      const i64 end = std::min((task + 1) * kPerTask, targets_.count);
      for (i64 i = task * kPerTask; i < end; ++i) entries.indptr[i + 1] += before;
      before = entries.indptr[end];
    }
    entries.resize(before, options_.edge_ids, true);
    for_each_task(tasks, threads_,
                  [&](i64 task) { copy(parts[task], entries.indptr[task * kPerTask], entries); });
    return entries;
  }

 private:
  static constexpr i64 kPerTask = 256;
  struct Part {
    std::vector<i64> positions;
    std::vector<float> weights;
  };

  i64 start(i64 i) const { return rows_.indptr[targets_.rows[i]]; }
  i64 degree(i64 i) const {
    return rows_.indptr[targets_.rows[i] + 1] - rows_.indptr[targets_.rows[i]];
  }
  bool takes_all(i64 i) const { return k_ < 0 || degree(i) <= k_; }

  // π of the j-th entry of target i.
  double importance(i64 i, i64 j) const {
    return importances_.size() ? importances_[numbers_[offsets_[i] + j]] : 1;
  }
  double scale(i64 i) const {
    if (!importances_.size()) return static_cast<double>(k_) / static_cast<double>(degree(i));
    return labor_scale(degree(i), k_, [&](i64 j) { return importance(i, j); });
  }

  void take(i64 i, Part& part) const {
    const i64 from = start(i), entries = degree(i);
    if (i + 1 < targets_.count) __builtin_prefetch(rows_.indices + start(i + 1));
    if (takes_all(i)) {
      for (i64 j = 0; j < entries; ++j) part.positions.push_back(from + j);
      part.weights.resize(part.positions.size(), 1);
      return;
    }
    if (k_ == 0) return;
    const double c = scale(i);
    for (i64 j = 0; j < entries; ++j) {
      const double chance = std::min(1.0, c * importance(i, j));
      const VertexDraws own = draws_.of(rows_.column_id(rows_.indices[from + j]));
      if (unit(own[0]) > chance) continue;
      part.positions.push_back(from + j);
      part.weights.push_back(static_cast<float>(1 / chance));
    }
  }

  void copy(const Part& part, i64 to, Entries<Index>& entries) const {
    for (std::size_t j = 0; j < part.positions.size(); ++j) {
      const i64 e = part.positions[j];
      entries.columns[to + j] = rows_.indices[e];
      entries.weights[to + j] = part.weights[j];
      if (options_.edge_ids) entries.edge_ids[to + j] = rows_.order ? rows_.order[e] : e;
    }
  }

  void find_importances(Tables& tables) {
    Entries<Index> all = draw_hop(rows_, targets_, -1, draws_, {}, threads_);
    offsets_ = std::move(all.indptr);
    numbers_ = Buffer<i32>(all.columns.size());
    const i64 vertices = tables.with_table([&](auto& table) {
      Numbering<std::remove_reference_t<decltype(table)>, Index> numbering(table);
      numbering.add(all.columns.data(), all.columns.size(), numbers_.data());
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
    const i64 tasks = (targets_.count + kPerTask - 1) / kPerTask;
    for_each_task(tasks, threads_, [&](i64 task) {
      const i64 end = std::min((task + 1) * kPerTask, targets_.count);
      for (i64 i = task * kPerTask; i < end; ++i) {
        if (k_ == 0) continue;
        // A row that is taken whole needs min(1, c·π) = 1 for every entry of it.
        double c = takes_all(i) ? 0 : scale(i);
        for (i64 j = 0; j < degree(i) && takes_all(i); ++j) {
          c = std::max(c, 1 / importance(i, j));
        }
        for (i64 j = 0; j < degree(i); ++j) { raise_to(largest[numbers_[offsets_[i] + j]], c); }
      }
    });
    for (i64 v = 0; v < largest.size(); ++v) {
      if (largest[v] > 0) importances_[v] *= largest[v];
    }
  }

  const Rows<Index>& rows_;
  const Targets<Index>& targets_;
  i64 k_;
  const HopDraws& draws_;
  LaborOptions options_;
  int threads_;
  Buffer<i64> offsets_;
  Buffer<i32> numbers_;
  Buffer<double> importances_;  // empty: all are 1
};

// Layer-wise sampling: so many vertices for all targets together. LADIES (Zou et al., NeurIPS 2019)
// draws a vertex t among the targets' neighbours by Σ_s A_st² over the targets s; FastGCN (Chen, Ma
// & Xiao, ICLR 2018) among all vertices, with s over all rows; by times of arrival, as in
// weighted.hpp.

// A_st² by the number of the entry in the caller's pattern.
using Squares = const double*;

// Factors of the chosen ones among candidates of some shares; 0: not chosen.
template <class Id>
std::vector<float> chosen_candidates(const std::vector<double>& masses, i64 count,
                                     const HopDraws& draws, const Id& id) {
  const auto candidates = std::ssize(masses);
  if (count < 0 || candidates <= count) return std::vector<float>(candidates, 1);
  std::vector<float> factors(candidates, 0);
  if (count == 0) return factors;
  double sum = 0;
  for (const double mass : masses) sum += mass;
  std::vector<std::pair<double, i64>> arrivals(candidates);
  for (i64 i = 0; i < candidates; ++i) {
    const double wait = -std::log(unit(draws.of(id(i))[0]));
    arrivals[i] = {wait / std::max(masses[i] / sum, 1e-300), i};
  }
  std::nth_element(arrivals.begin(), arrivals.begin() + count, arrivals.end());
  const double time = arrivals[count].first;
  for (i64 j = 0; j < count; ++j) {
    const i64 i = arrivals[j].second;
    factors[i] = 1 / one_minus_exp(static_cast<float>(masses[i] / sum * time));
  }
  return factors;
}

// The entries whose factor(e) is not 0.
template <class Index, class Factor>
Entries<Index> kept(Entries<Index>&& all, bool edge_ids, const Factor& factor) {
  Entries<Index> entries;
  const i64 targets = all.indptr.size() - 1;
  entries.indptr = Buffer<i64>(targets + 1);
  entries.resize(all.columns.size(), edge_ids, true);
  i64 at = 0;
  entries.indptr[0] = 0;
  for (i64 i = 0; i < targets; ++i) {
    for (i64 e = all.indptr[i]; e < all.indptr[i + 1]; ++e) {
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
                          Squares squares, i64 count, const HopDraws& draws, bool edge_ids,
                          int threads) {
  HopOptions whole;
  whole.edge_ids = true;
  Entries<Index> all = draw_hop(rows, targets, -1, draws, whole, threads);
  const i64 entries = all.columns.size();
  Buffer<i32> numbers(entries);
  return tables.with_table([&](auto& table) {
    Numbering<std::remove_reference_t<decltype(table)>, Index> numbering(table);
    numbering.add(all.columns.data(), entries, numbers.data());
    std::vector<double> masses(numbering.size(), 0.0);
    for (i64 e = 0; e < entries; ++e) masses[numbers[e]] += squares[all.edge_ids[e]];
    const std::vector<float> factors = chosen_candidates(
        masses, count, draws, [&](i64 i) { return rows.column_id(numbering.keys()[i]); });
    return kept(std::move(all), edge_ids, [&](i64 e) { return factors[numbers[e]]; });
  });
}

// One hop of FastGCN; `vertices` is one row of all of them, with alias tables.
template <class Index>
Entries<Index> fastgcn_hop(const Rows<Index>& rows, const Rows<Index>& vertices, Tables& tables,
                           const Targets<Index>& targets, i64 count, const HopDraws& draws,
                           bool edge_ids, int threads) {
  HopOptions whole, weighted;
  whole.edge_ids = edge_ids;
  weighted.strategy = Strategy::weighted;
  Entries<Index> all = draw_hop(rows, targets, -1, draws, whole, threads);
  const Index first = 0;
  const Targets<Index> one{&first, 1};
  const Entries<Index> drawn = draw_hop(vertices, one, count, draws, weighted, 1);
  return tables.with_table([&](auto& table) {
    Numbering<std::remove_reference_t<decltype(table)>, Index> numbering(table);
    Buffer<i32> numbers(drawn.columns.size());
    numbering.add(drawn.columns.data(), drawn.columns.size(), numbers.data());
    return kept(std::move(all), edge_ids, [&](i64 e) {
      const i64 number = numbering.find(all.columns[e]);
      return number < 0 ? 0.0F : drawn.weights[number];
    });
  });
}

}  // namespace spgnn
