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

namespace spgnn {

struct Fanout {
  std::int64_t count;  // negative: all
  bool replace;

  // How many entries a row of so many gives.
  std::int64_t of(std::int64_t degree) const {
    if (count < 0) return degree;
    return replace ? (degree > 0 ? count : 0) : std::min(degree, count);
  }
};

// Entries of a hop; `Key` says which vertex a column is.
template <class Key>
struct Entries {
  Buffer<std::int64_t> indptr;
  Buffer<Key> columns;
  Buffer<std::int64_t> edge_ids;  // where asked for
};

inline constexpr std::int64_t kTargetsPerTask = 1024;

// Draws a hop for targets [0, count), target(i) being the row of the i-th one.
template <class Index, class Target>
class HopSampler {
 public:
  HopSampler(const Rows<Index>& rows, const Target& target, std::int64_t count, int threads)
      : rows_(rows),
        target_(target),
        count_(count),
        tasks_((count + kTargetsPerTask - 1) / kTargetsPerTask),
        threads_(threads) {}

  template <class Chooser>
  void run(Fanout fanout, const HopDraws& draws, bool edge_ids, Entries<Index>& entries) {
    entries.indptr = Buffer<std::int64_t>(count_ + 1);
    starts_ = Buffer<std::int64_t>(count_);
    degrees_ = Buffer<std::int64_t>(count_);
    task_begin_ = Buffer<std::int64_t>(tasks_ + 1);
    task_begin_[0] = 0;
    for_each_task(tasks_, threads_, [&](std::int64_t task) { measure(task, fanout); });
    for (std::int64_t task = 0; task < tasks_; ++task) task_begin_[task + 1] += task_begin_[task];
    entries.indptr[0] = 0;
    entries.columns = Buffer<Index>(task_begin_[tasks_]);
    if (edge_ids) entries.edge_ids = Buffer<std::int64_t>(task_begin_[tasks_]);
    for_each_task(tasks_, threads_, [&](std::int64_t task) {
      Chooser chooser(std::max<std::int64_t>(fanout.count, 0));
      if (fanout.count >= 0 && fanout.count <= kMostInBlock) {
        draw_blocks(task, fanout, draws, chooser, entries);
      } else {
        draw_rows(task, fanout, draws, chooser, entries);
      }
    });
  }

 private:
  static constexpr std::int64_t kAhead = 16;
  static constexpr std::int64_t kInBlock = 512, kMostInBlock = 64;

  std::int64_t end_of(std::int64_t task) const {
    return std::min((task + 1) * kTargetsPerTask, count_);
  }

  void measure(std::int64_t task, Fanout fanout) {
    std::int64_t entries = 0;
    for (std::int64_t i = task * kTargetsPerTask, end = end_of(task); i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch(rows_.indptr + target_(i + kAhead));
      const std::int64_t row = target_(i);
      starts_[i] = rows_.indptr[row];
      degrees_[i] = rows_.indptr[row + 1] - rows_.indptr[row];
      entries += fanout.of(degrees_[i]);
    }
    task_begin_[task + 1] = entries;
  }

  // Positions of as many targets as fit a block; while their columns are on their way from memory,
  // the next block's are chosen.
  template <class Chooser>
  void draw_blocks(std::int64_t task, Fanout fanout, const HopDraws& draws, Chooser& chooser,
                   Entries<Index>& entries) {
    std::int64_t blocks[2][kInBlock];
    std::int64_t waiting = 0, at = task_begin_[task], written = at;
    int turn = 0;
    const std::int64_t end = end_of(task);
    for (std::int64_t i = task * kTargetsPerTask; i < end || waiting > 0;) {
      std::int64_t* positions = blocks[turn];
      std::int64_t chosen = 0;
      for (; i < end && chosen + fanout.count <= kInBlock; ++i) {
        chosen += choose(i, fanout, draws, chooser, positions + chosen);
        entries.indptr[i + 1] = at + chosen;
      }
      for (std::int64_t j = 0; j < chosen; ++j) __builtin_prefetch(rows_.indices + positions[j]);
      at += chosen;
      turn ^= 1;
      copy(blocks[turn], waiting, written, entries);
      written += waiting;
      waiting = chosen;
    }
  }

  template <class Chooser>
  void draw_rows(std::int64_t task, Fanout fanout, const HopDraws& draws, Chooser& chooser,
                 Entries<Index>& entries) {
    std::vector<std::int64_t> positions;
    std::int64_t at = task_begin_[task];
    for (std::int64_t i = task * kTargetsPerTask, end = end_of(task); i < end; ++i) {
      if (i + 1 < end) __builtin_prefetch(rows_.indices + starts_[i + 1]);
      positions.resize(fanout.of(degrees_[i]));
      const std::int64_t chosen = choose(i, fanout, draws, chooser, positions.data());
      copy(positions.data(), chosen, at, entries);
      at += chosen;
      entries.indptr[i + 1] = at;
    }
  }

  template <class Chooser>
  std::int64_t choose(std::int64_t i, Fanout fanout, const HopDraws& draws, Chooser& chooser,
                      std::int64_t* positions) {
    const std::int64_t chosen = fanout.of(degrees_[i]);
    if (chosen == 0) return 0;
    if (chosen == degrees_[i] && !(fanout.replace && fanout.count >= 0)) {
      for (std::int64_t j = 0; j < chosen; ++j) positions[j] = starts_[i] + j;
    } else {
      chooser(starts_[i], degrees_[i], chosen, draws.of(rows_.id(target_(i))), positions);
    }
    return chosen;
  }

  void copy(const std::int64_t* positions, std::int64_t count, std::int64_t to,
            Entries<Index>& entries) const {
    for (std::int64_t j = 0; j < count; ++j) entries.columns[to + j] = rows_.indices[positions[j]];
    if (entries.edge_ids.size() == 0) return;
    for (std::int64_t j = 0; j < count; ++j) {
      entries.edge_ids[to + j] = rows_.order ? rows_.order[positions[j]] : positions[j];
    }
  }

  const Rows<Index>& rows_;
  const Target& target_;
  std::int64_t count_, tasks_;
  int threads_;
  Buffer<std::int64_t> starts_, degrees_, task_begin_;
};

}  // namespace spgnn
