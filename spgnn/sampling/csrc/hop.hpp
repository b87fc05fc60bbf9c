// One hop: entries drawn from the rows of some targets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "buffer.hpp"
#include "choose.hpp"
#include "hash.hpp"
#include "parallel.hpp"
#include "rows.hpp"
#include "weighted.hpp"

namespace spgnn {

struct Fanout {
  std::int64_t count;  // negative: all
  bool replace;

  // How many entries a row of so many gives.
  std::int64_t of(std::int64_t degree) const {
    if (count < 0) return degree;
    return replace ? (degree > 0 ? count : 0) : std::min(degree, count);
  }
  bool takes_all(std::int64_t degree) const { return count < 0 || (!replace && degree <= count); }
};

inline constexpr std::int64_t kTargetsPerTask = 1024;

template <class Index, class Chooser>
class HopSampler {
 public:
  HopSampler(const Rows<Index>& rows, const Targets<Index>& targets, Fanout fanout,
             const HopDraws& draws, int threads)
      : rows_(rows), targets_(targets), fanout_(fanout), draws_(draws), threads_(threads) {}

  Entries<Index> run(bool edge_ids) {
    const std::int64_t tasks = (targets_.count + kTargetsPerTask - 1) / kTargetsPerTask;
    entries_.indptr = Buffer<std::int64_t>(targets_.count + 1);
    entries_.indptr[0] = 0;
    starts_ = Buffer<std::int64_t>(targets_.count);
    degrees_ = Buffer<std::int64_t>(targets_.count);
    begins_ = Buffer<std::int64_t>(tasks + 1);
    begins_[0] = 0;
    for_each_task(tasks, threads_, [&](std::int64_t task) { measure(task); });
    for (std::int64_t task = 0; task < tasks; ++task) begins_[task + 1] += begins_[task];
    entries_.resize(begins_[tasks], edge_ids, Chooser::kWeighs);
    for_each_task(tasks, threads_, [&](std::int64_t task) {
      Chooser chooser(rows_);
      if (fanout_.count >= 0 && fanout_.count <= kMostInBlock) {
        draw_blocks(task, chooser);
      } else {
        draw_rows(task, chooser);
      }
    });
    return std::move(entries_);
  }

 private:
  static constexpr std::int64_t kAhead = 16;
  static constexpr std::int64_t kRowsAhead = 8;
  static constexpr std::int64_t kInBlock = 512, kMostInBlock = 64;

  std::int64_t end_of(std::int64_t task) const {
    return std::min((task + 1) * kTargetsPerTask, targets_.count);
  }

  void measure(std::int64_t task) {
    std::int64_t entries = 0;
    for (std::int64_t i = task * kTargetsPerTask, end = end_of(task); i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch(rows_.indptr + targets_.rows[i + kAhead]);
      const std::int64_t row = targets_.rows[i], start = rows_.indptr[row];
      starts_[i] = start;
      degrees_[i] = rows_.indptr[row + 1] - start;
      if (targets_.limits) {
        const std::int64_t* times = rows_.times + start;
        degrees_[i] = std::upper_bound(times, times + degrees_[i], targets_.limits[i]) - times;
      }
      entries += fanout_.of(degrees_[i]);
    }
    begins_[task + 1] = entries;
  }

  // Positions of as many targets as fit a block; while their columns are on their way from memory,
  // the next block's are chosen.
  void draw_blocks(std::int64_t task, Chooser& chooser) {
    std::int64_t blocks[2][kInBlock];
    std::int64_t waiting = 0, at = begins_[task], written = at;
    int turn = 0;
    const std::int64_t end = end_of(task);
    for (std::int64_t i = task * kTargetsPerTask; i < end || waiting > 0;) {
      std::int64_t* positions = blocks[turn];
      std::int64_t chosen = 0;
      for (; i < end && chosen + fanout_.count <= kInBlock; ++i) {
        if (i + kRowsAhead < end) prefetch(i + kRowsAhead, chooser);
        chosen += choose(i, chooser, positions + chosen, at + chosen);
        entries_.indptr[i + 1] = at + chosen;
      }
      for (std::int64_t j = 0; j < chosen; ++j) __builtin_prefetch(rows_.indices + positions[j]);
      at += chosen;
      turn ^= 1;
      copy(blocks[turn], waiting, written);
      written += waiting;
      waiting = chosen;
    }
  }

  void draw_rows(std::int64_t task, Chooser& chooser) {
    std::vector<std::int64_t> positions;
    std::int64_t at = begins_[task];
    for (std::int64_t i = task * kTargetsPerTask, end = end_of(task); i < end; ++i) {
      if (i + 1 < end) __builtin_prefetch(rows_.indices + starts_[i + 1]);
      positions.resize(fanout_.of(degrees_[i]));
      const std::int64_t chosen = choose(i, chooser, positions.data(), at);
      copy(positions.data(), chosen, at);
      at += chosen;
      entries_.indptr[i + 1] = at;
    }
  }

  // Functions that do nothing but fetch must be inlined: GCC takes them to have no effect, and
  // drops calls of them.
  [[gnu::always_inline]] void prefetch(std::int64_t i, const Chooser& chooser) const {
    if constexpr (Chooser::kWeighs) {
      if (degrees_[i] == 0 || fanout_.takes_all(degrees_[i])) return;
      chooser.prefetch(starts_[i], degrees_[i], fanout_.count, draws_of(i));
    }
  }

  std::int64_t choose(std::int64_t i, Chooser& chooser, std::int64_t* positions, std::int64_t to) {
    const std::int64_t chosen = fanout_.of(degrees_[i]);
    if (chosen == 0) return 0;
    float* factors = Chooser::kWeighs ? entries_.weights.data() + to : nullptr;
    if (!fanout_.takes_all(degrees_[i])) {
      chooser(starts_[i], degrees_[i], chosen, draws_of(i), positions, factors);
      return chosen;
    }
    for (std::int64_t j = 0; j < chosen; ++j) positions[j] = starts_[i] + j;
    if (factors) std::fill_n(factors, chosen, 1.0F);
    return chosen;
  }

  VertexDraws draws_of(std::int64_t i) const {
    return targets_.draws(draws_, rows_.id(targets_.rows[i]), i);
  }

  void copy(const std::int64_t* positions, std::int64_t count, std::int64_t to) {
    for (std::int64_t j = 0; j < count; ++j) entries_.columns[to + j] = rows_.indices[positions[j]];
    if (entries_.edge_ids.size() == 0) return;
    for (std::int64_t j = 0; j < count; ++j) {
      entries_.edge_ids[to + j] = rows_.order ? rows_.order[positions[j]] : positions[j];
    }
  }

  const Rows<Index>& rows_;
  const Targets<Index>& targets_;
  Fanout fanout_;
  const HopDraws& draws_;
  int threads_;
  Entries<Index> entries_;
  Buffer<std::int64_t> starts_, degrees_, begins_;
};

enum class Strategy { uniform, weighted, latest };

struct HopOptions {
  Strategy strategy = Strategy::uniform;
  bool replace = false;
  bool disjoint = false;
  bool directed = true;
  bool resample = true;
  bool edge_ids = false;
};

// So many entries of each target's row.
template <class Index>
Entries<Index> draw_hop(const Rows<Index>& rows, const Targets<Index>& targets, std::int64_t count,
                        const HopDraws& draws, const HopOptions& options, int threads) {
  const auto run = [&]<class Chooser>() {
    HopSampler<Index, Chooser> sampler(rows, targets, {count, options.replace}, draws, threads);
    return sampler.run(options.edge_ids);
  };
  if (options.strategy == Strategy::latest) return run.template operator()<Latest<Index>>();
  if (options.strategy == Strategy::uniform) {
    return options.replace ? run.template operator()<UniformWithReplacement<Index>>()
                           : run.template operator()<UniformWithoutReplacement<Index>>();
  }
  if (rows.aliases) {
    return options.replace
               ? run.template operator()<WeightedWithReplacement<Index, AliasDrawer>>()
               : run.template operator()<WeightedWithoutReplacement<Index, AliasDrawer>>();
  }
  return options.replace ? run.template operator()<WeightedWithReplacement<Index, SumDrawer>>()
                         : run.template operator()<WeightedWithoutReplacement<Index, SumDrawer>>();
}

}  // namespace spgnn
