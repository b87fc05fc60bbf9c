// One hop: entries drawn from the rows of some targets.
#pragma once

#include "buffer.hpp"
#include "choose.hpp"
#include "lanes.hpp"
#include "numbering.hpp"
#include "parallel.hpp"
#include "rows.hpp"
#include "weighted.hpp"

namespace spgnn {

struct Fanout {
  i64 count;  // negative: all
  bool replace;

  // How many entries a row of so many gives.
  i64 of(i64 degree) const {
    if (count < 0) return degree;
    return replace ? (degree > 0 ? count : 0) : std::min(degree, count);
  }
  bool takes_all(i64 degree) const { return count < 0 || (!replace && degree <= count); }
};

inline constexpr i64 kTargetsPerTask = 512;

template <class Index, class Chooser> class HopSampler {
 public:
  HopSampler(const Rows<Index>& rows, const Targets<Index>& targets, Fanout fanout,
             const HopDraws& draws, int threads)
      : rows_(rows), targets_(targets), fanout_(fanout), draws_(draws), threads_(threads) {}

  // `sink` may be null.
  Entries<Index> run(bool edge_ids, Sink<Index>* sink) {
    const i64 tasks = (targets_.count + kTargetsPerTask - 1) / kTargetsPerTask;
    entries_.indptr = Buffer<i64>(targets_.count + 1);
    entries_.indptr[0] = 0;
    starts_ = Buffer<i64>(targets_.count);
    degrees_ = Buffer<i64>(targets_.count);
    begins_ = Buffer<i64>(tasks + 1);
    begins_[0] = 0;
    for_each_task(tasks, threads_, [&](i64 task) { measure(task); });
    for (i64 task = 0; task < tasks; ++task) begins_[task + 1] += begins_[task];
    if (begins_[tasks] >= kMostNumbers) {
      throw std::length_error("a sample has at most 2^31 vertices and edges");
    }
    entries_.resize(begins_[tasks], edge_ids, Chooser::kWeighs);
    const auto draw = [&](i64 task) { this->draw(task); };
    if (sink) {
      sink->begin(entries_);
      for_each_in_turn(tasks, threads_, draw, [&](i64 task) {
        sink->take(entries_, task * kTargetsPerTask, end_of(task));
      });
    } else {
      for_each_task(tasks, threads_, draw);
    }
    return std::move(entries_);
  }

 private:
  static constexpr i64 kAhead = 16;
  static constexpr i64 kInBlock = 512, kMostInBlock = 64;

  // Positions whose columns are on their way from memory.
  struct Block {
    i64 positions[kInBlock];
    i64 entries = 0;
  };

  i64 end_of(i64 task) const { return std::min((task + 1) * kTargetsPerTask, targets_.count); }

  void measure(i64 task) {
    i64 entries = 0;
    for (i64 i = task * kTargetsPerTask, end = end_of(task); i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch(rows_.indptr + targets_.rows[i + kAhead]);
      const i64 row = targets_.rows[i], start = rows_.indptr[row];
      starts_[i] = start;
      degrees_[i] = rows_.indptr[row + 1] - start;
      if (targets_.limits) {
        const i64* times = rows_.times + start;
        degrees_[i] = std::upper_bound(times, times + degrees_[i], targets_.limits[i]) - times;
      }
      entries += fanout_.of(degrees_[i]);
    }
    begins_[task + 1] = entries;
  }

  void draw(i64 task) {
    Chooser chooser(rows_);
    if constexpr (Chooser::kWeighs) {
      draw_weighted(task, chooser);
    } else if (fanout_.count >= 0 && fanout_.count <= kMostInBlock) {
      draw_blocks(task, chooser);
    } else {
      draw_rows(task, chooser);
    }
  }

  // Positions of as many targets as fit a block are chosen while the last block's columns are
  // fetched.
  void draw_blocks(i64 task, Chooser& chooser) {
    Block blocks[2];
    i64 at = begins_[task], written = at;
    int turn = 0;
    for (i64 i = task * kTargetsPerTask, end = end_of(task);
         i < end || blocks[turn ^ 1].entries > 0;) {
      Block& block = blocks[turn];
      block.entries = 0;
      for (; i < end && block.entries + fanout_.count <= kInBlock; ++i) {
        i64* positions = block.positions + block.entries;
        const i64 count = choose(i, chooser, positions);
        prefetch_columns(i, positions, count);
        block.entries += count;
        entries_.indptr[i + 1] = at + block.entries;
      }
      at += block.entries;
      turn ^= 1;
      write(blocks[turn].positions, blocks[turn].entries, written);
      written += blocks[turn].entries;
    }
  }

  void draw_rows(i64 task, Chooser& chooser) {
    std::vector<i64> positions;
    i64 at = begins_[task];
    for (i64 i = task * kTargetsPerTask, end = end_of(task); i < end; ++i) {
      if (i + 1 < end) __builtin_prefetch(rows_.indices + starts_[i + 1]);
      positions.resize(fanout_.of(degrees_[i]));
      const i64 count = choose(i, chooser, positions.data());
      write(positions.data(), count, at);
      at += count;
      entries_.indptr[i + 1] = at;
    }
  }

  // Row by row, and what rows further on need is on its way from memory meanwhile.
  void draw_weighted(i64 task, Chooser& chooser) {
    constexpr i64 kFar = Chooser::kFar, kNear = Chooser::kNear;
    const i64 first = task * kTargetsPerTask, end = end_of(task);
    const i64 most = most_drawn(task) + kMoreRoom;
    Buffer<u32> offsets(most);
    Buffer<Index> last_columns(most);
    Buffer<float> shares(begins_[task + 1] - begins_[task] + kMoreRoom);
    std::vector<Arrivals> arrivals(end - first);
    i64 at = begins_[task];
    for (i64 i = first - kFar; i < end; ++i) {
      if (i + kFar < end) fetch(i + kFar, chooser);
      if (i + kNear >= first && i + kNear < end) settle(i + kNear, chooser);
      if (i < first) continue;
      const i64 count = fanout_.of(degrees_[i]), start = starts_[i];
      Index* columns = entries_.columns.data() + at;
      if (count == 0 || fanout_.takes_all(degrees_[i])) {
        std::copy_n(rows_.indices + start, count, columns);
        number(count, at, [&](i64 j) { return start + j; });
      } else {
        // What is written beyond the last ones is another task's.
        const bool roomy = at + count + kMoreRoom <= begins_[task + 1];
        const Picks<Index> picks{roomy ? columns : last_columns.data(), offsets.data(),
                                 shares.data() + (at - begins_[task])};
        arrivals[i - first] = chooser(i, degrees_[i], count, picks);
        if (!roomy) std::copy_n(last_columns.data(), count, columns);
        number(count, at, [&](i64 j) { return start + offsets[j]; });
      }
      at += count;
      entries_.indptr[i + 1] = at;
    }
    weigh(task, chooser, arrivals, shares.data());
  }

  // Apart from the draws, for what was just written in pieces is slow to read in others.
  void weigh(i64 task, const Chooser& chooser, const std::vector<Arrivals>& arrivals,
             const float* shares) {
    const i64 first = task * kTargetsPerTask, end = end_of(task);
    Buffer<float> last(most_drawn(task) + kMoreRoom);
    i64 at = begins_[task];
    for (i64 i = first; i < end; ++i) {
      const i64 count = fanout_.of(degrees_[i]);
      float* factors = entries_.weights.data() + at;
      if (count == 0 || fanout_.takes_all(degrees_[i])) {
        std::fill_n(factors, count, 1.0F);
      } else {
        const bool roomy = at + count + kMoreRoom <= begins_[task + 1];
        float* found = roomy ? factors : last.data();
        chooser.weigh(arrivals[i - first], count, shares + (at - begins_[task]), found);
        if (!roomy) std::copy_n(found, count, factors);
      }
      at += count;
    }
  }

  // The most entries that are drawn of any row.
  i64 most_drawn(i64 task) const {
    for (i64 i = task * kTargetsPerTask; i < end_of(task); ++i) {
      if (!fanout_.takes_all(degrees_[i])) return fanout_.count;
    }
    return 0;
  }

  // Inlined, for GCC drops calls of functions that do nothing but fetch.
  [[gnu::always_inline]] void fetch(i64 i, Chooser& chooser) const {
    if (fanout_.takes_all(degrees_[i])) {
      prefetch_row(i);
    } else if (degrees_[i] > 0) {
      chooser.fetch(i, row_of(i), fanout_.count, draws_of(i));
    }
  }
  [[gnu::always_inline]] void settle(i64 i, Chooser& chooser) const {
    if (degrees_[i] == 0 || fanout_.takes_all(degrees_[i])) return;
    chooser.settle(i, fanout_.count);
  }
  [[gnu::always_inline]] void prefetch_columns(i64 i, const i64* positions, i64 count) const {
    if (fanout_.takes_all(degrees_[i])) {
      prefetch_row(i);
    } else {
      for (i64 j = 0; j < count; ++j) prefetch_soon(rows_.indices + positions[j]);
    }
  }
  [[gnu::always_inline]] void prefetch_row(i64 i) const {
    constexpr i64 kInLine = 64 / sizeof(Index);
    const Index* first = rows_.indices + starts_[i];
    for (i64 j = 0; j < degrees_[i]; j += kInLine) prefetch_soon(first + j);
    if (degrees_[i] > 0) prefetch_soon(first + degrees_[i] - 1);
  }

  i64 choose(i64 i, Chooser& chooser, i64* positions) {
    const i64 count = fanout_.of(degrees_[i]);
    if (fanout_.takes_all(degrees_[i])) {
      std::iota(positions, positions + count, starts_[i]);
    } else if (count > 0) {
      chooser(starts_[i], degrees_[i], count, draws_of(i), positions);
    }
    return count;
  }

  VertexDraws draws_of(i64 i) const {
    return targets_.draws(draws_, rows_.id(targets_.rows[i]), i);
  }
  DrawnRow row_of(i64 i) const { return {targets_.rows[i], starts_[i], degrees_[i]}; }

  void write(const i64* positions, i64 count, i64 to) {
    for (i64 j = 0; j < count; ++j) entries_.columns[to + j] = rows_.indices[positions[j]];
    number(count, to, [&](i64 j) { return positions[j]; });
  }

  // Where the entries stand in the caller's pattern.
  template <class PositionOf> void number(i64 count, i64 to, const PositionOf& position) {
    if (entries_.edge_ids.size() == 0) return;
    for (i64 j = 0; j < count; ++j) {
      entries_.edge_ids[to + j] = rows_.order ? rows_.order[position(j)] : position(j);
    }
  }

  const Rows<Index>& rows_;
  const Targets<Index>& targets_;
  Fanout fanout_;
  const HopDraws& draws_;
  int threads_;
  Entries<Index> entries_;
  Buffer<i64> starts_, degrees_, begins_;
};

enum class Strategy { uniform, weighted, latest };

struct HopOptions {
  Strategy strategy = Strategy::uniform;
  bool replace = false;
  bool disjoint = false;
  bool directed = true;
  bool resample = true;  // a vertex draws anew for each hop, rather than beginnings of one order
  bool edge_ids = false;
};

// So many entries of each target's row; `sink`, if there is one, takes them meanwhile.
template <class Index>
Entries<Index> draw_hop(const Rows<Index>& rows, const Targets<Index>& targets, i64 count,
                        const HopDraws& draws, const HopOptions& options, int threads,
                        Sink<Index>* sink = nullptr) {
  const auto run = [&]<class Chooser>() {
    // The latest entries are a set: none of them comes twice.
    const bool replace = options.replace && options.strategy != Strategy::latest;
    HopSampler<Index, Chooser> sampler(rows, targets, {count, replace}, draws, threads);
    return sampler.run(options.edge_ids, sink);
  };
  if (options.strategy == Strategy::latest) return run.template operator()<Latest<Index>>();
  if (options.strategy == Strategy::uniform) {
    return options.replace ? run.template operator()<UniformWithReplacement<Index>>()
                           : run.template operator()<UniformWithoutReplacement<Index>>();
  }
  if constexpr (std::is_same_v<Index, i32>) {
    if (rows.buckets && !options.replace && LanesWithoutReplacement::can(count)) {
      return run.template operator()<LanesWithoutReplacement>();
    }
  }
  if (rows.buckets) {
    return options.replace
               ? run.template operator()<WeightedWithReplacement<Index, AliasDrawer<Index>>>()
               : run.template operator()<WeightedWithoutReplacement<Index, AliasDrawer<Index>>>();
  }
  return options.replace
             ? run.template operator()<WeightedWithReplacement<Index, SumDrawer<Index>>>()
             : run.template operator()<WeightedWithoutReplacement<Index, SumDrawer<Index>>>();
}

}  // namespace spgnn
