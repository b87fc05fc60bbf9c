// One hop: entries drawn from the rows of some targets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
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
  static constexpr std::int64_t kMoreShares = MeanFactor::kLanes;

  // What was drawn of one row that gives anything.
  struct Drawn {
    std::int64_t target, count;
    bool all;
    Arrivals arrivals;
  };
  // Rows whose columns are on their way from memory.
  struct Block {
    std::int64_t positions[kInBlock + Chooser::kMoreRoom];
    Drawn rows[Chooser::kWeighs ? kInBlock : 1];
    std::int64_t entries = 0, drawn = 0;
  };

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
    Block blocks[2];
    std::int64_t at = begins_[task], written = at;
    int turn = 0;
    const std::int64_t first = task * kTargetsPerTask, end = end_of(task);
    for (std::int64_t i = first; i < std::min(first + kRowsAhead, end); ++i) prefetch(i, chooser);
    for (std::int64_t i = first; i < end || blocks[turn ^ 1].entries > 0;) {
      Block& block = blocks[turn];
      block.entries = block.drawn = 0;
      for (; i < end && block.entries + fanout_.count <= kInBlock; ++i) {
        if (i + kRowsAhead < end) prefetch(i + kRowsAhead, chooser);
        Drawn row = choose(i, chooser, block.positions + block.entries);
        prefetch_columns(row, block.positions + block.entries, chooser);
        block.entries += row.count;
        entries_.indptr[i + 1] = at + block.entries;
        if constexpr (Chooser::kWeighs) {
          if (row.count > 0) block.rows[block.drawn++] = row;
        }
      }
      at += block.entries;
      turn ^= 1;
      write(blocks[turn], written);
      written += blocks[turn].entries;
    }
  }

  void draw_rows(std::int64_t task, Chooser& chooser) {
    std::vector<std::int64_t> positions;
    std::vector<float> shares, factors;
    std::int64_t at = begins_[task];
    for (std::int64_t i = task * kTargetsPerTask, end = end_of(task); i < end; ++i) {
      if (i + 1 < end) __builtin_prefetch(rows_.indices + starts_[i + 1]);
      positions.resize(fanout_.of(degrees_[i]) + Chooser::kMoreRoom);
      const Drawn row = choose(i, chooser, positions.data());
      if constexpr (Chooser::kWeighs) {
        shares.resize(row.count + kMoreShares);
        factors.resize(row.count + kMoreShares);
        weigh(row, positions.data(), at, shares.data(), factors.data());
        std::copy_n(factors.data(), row.count, entries_.weights.data() + at);
      } else {
        copy(positions.data(), row.count, at);
      }
      number(positions.data(), row.count, at);
      at += row.count;
      entries_.indptr[i + 1] = at;
    }
  }

  // Functions that do nothing but fetch must be inlined: GCC takes them to have no effect, and
  // drops calls of them.
  [[gnu::always_inline]] void prefetch(std::int64_t i, Chooser& chooser) const {
    if constexpr (Chooser::kWeighs) {
      if (degrees_[i] == 0 || fanout_.takes_all(degrees_[i])) return;
      chooser.prefetch(i, starts_[i], degrees_[i], fanout_.count, draws_of(i));
    }
  }
  [[gnu::always_inline]] void prefetch_columns(const Drawn& row, const std::int64_t* positions,
                                               const Chooser& chooser) const {
    if constexpr (Chooser::kWeighs) {
      if (!row.all) {
        chooser.prefetch_chosen(starts_[row.target], degrees_[row.target], row.count, positions);
        return;
      }
    }
    if (row.all) {
      constexpr std::int64_t kInLine = 64 / sizeof(Index);
      const Index* first = rows_.indices + starts_[row.target];
      for (std::int64_t j = 0; j < row.count; j += kInLine) __builtin_prefetch(first + j);
      if (row.count > 0) __builtin_prefetch(first + row.count - 1);
      return;
    }
    for (std::int64_t j = 0; j < row.count; ++j) __builtin_prefetch(rows_.indices + positions[j]);
  }

  Drawn choose(std::int64_t i, Chooser& chooser, std::int64_t* positions) {
    Drawn row{i, fanout_.of(degrees_[i]), fanout_.takes_all(degrees_[i]), {}};
    if (row.count == 0) return row;
    if (row.all) {
      std::iota(positions, positions + row.count, starts_[i]);
    } else if constexpr (Chooser::kWeighs) {
      row.arrivals = chooser(i, starts_[i], degrees_[i], row.count, draws_of(i), positions);
    } else {
      chooser(starts_[i], degrees_[i], row.count, draws_of(i), positions);
    }
    return row;
  }

  VertexDraws draws_of(std::int64_t i) const {
    return targets_.draws(draws_, rows_.id(targets_.rows[i]), i);
  }
  auto entries_of(std::int64_t i) const {
    return typename Chooser::Entry(rows_, starts_[i], degrees_[i]);
  }

  void write(Block& block, std::int64_t to) {
    if constexpr (Chooser::kWeighs) {
      float shares[kInBlock + kMoreShares], factors[kInBlock + kMoreShares];
      std::int64_t done = 0;
      for (std::int64_t r = 0; r < block.drawn; ++r) {
        weigh(block.rows[r], block.positions + done, to + done, shares, factors + done);
        done += block.rows[r].count;
      }
      std::copy_n(factors, done, entries_.weights.data() + to);
    } else {
      copy(block.positions, block.entries, to);
    }
    number(block.positions, block.entries, to);
  }

  // Columns and factors of a row, whose places in it become positions if somebody asks for them.
  void weigh(const Drawn& row, std::int64_t* positions, std::int64_t to, float* shares,
             float* factors) {
    if (row.all) {
      copy(positions, row.count, to);
      std::fill_n(factors, row.count, 1.0F);
      return;
    }
    const auto entry = entries_of(row.target);
    for (std::int64_t j = 0; j < row.count; ++j) {
      const auto offset = static_cast<std::uint32_t>(positions[j]);
      entries_.columns[to + j] = entry.column(offset);
      shares[j] = entry.share(offset);
    }
    std::fill_n(shares + row.count, kMoreShares, 1.0F);
    Chooser::weigh(row.arrivals, row.count, shares, factors);
    if (entries_.edge_ids.size() == 0) return;
    for (std::int64_t j = 0; j < row.count; ++j) positions[j] += starts_[row.target];
  }

  void copy(const std::int64_t* positions, std::int64_t count, std::int64_t to) {
    for (std::int64_t j = 0; j < count; ++j) entries_.columns[to + j] = rows_.indices[positions[j]];
  }

  // Where the entries stand in the caller's pattern.
  void number(const std::int64_t* positions, std::int64_t count, std::int64_t to) {
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
               ? run.template operator()<WeightedWithReplacement<Index, AliasDrawer<Index>>>()
               : run.template operator()<WeightedWithoutReplacement<Index, AliasDrawer<Index>>>();
  }
  return options.replace
             ? run.template operator()<WeightedWithReplacement<Index, SumDrawer<Index>>>()
             : run.template operator()<WeightedWithoutReplacement<Index, SumDrawer<Index>>>();
}

}  // namespace spgnn
