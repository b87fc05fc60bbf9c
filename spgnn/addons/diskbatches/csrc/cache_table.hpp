// Which rows a cache keeps.
#pragma once

#include "big_array.hpp"

namespace spgnn {

using Ids = std::span<const i64>;
using Uses = std::span<const i32>;

// For each row of a batch the slot that it is in, or −1: read it; and the slot that it goes to once
// it has been read, or −1. Hits leave their slots before anything is stored.
struct Change {
  explicit Change(std::size_t size) : from(size, -1), to(size, -1) {}
  std::vector<i64> from, to;
};

// Rows and the slots they are to be read into.
struct Fill {
  std::vector<i64> ids, slots;
};

class CacheTable {
 public:
  CacheTable(i64 rows, i64 slots) : slots_(slots), place_(rows) {}
  CacheTable(const CacheTable&) = delete;
  CacheTable& operator=(const CacheTable&) = delete;
  virtual ~CacheTable() = default;

  // Batches follow: of each row the first that needs it, or −1. Empty slots are filled with these.
  virtual Fill begin(Uses) { return {}; }

  // The next batch; of each row, the one of those begun that needs it next, or −1. No uses: none
  // is known.
  virtual Change plan(Ids ids, Uses) {
    Change change(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      change.from[i] = slot_of(ids[i]);
      if (change.from[i] >= 0) hit(change.from[i]);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (change.from[i] < 0) miss(ids[i]);
    }
    // Not before: what one row of the batch gained, a later one may have taken.
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (change.from[i] < 0) change.to[i] = slot_of(ids[i]);
    }
    return change;
  }

 protected:
  virtual void hit(i64) {}
  virtual void miss(i64) {}

  i64 slot_of(i64 id) const { return i64{place_[id]} - 1; }
  void set_slot(i64 id, i64 slot) { place_[id] = static_cast<i32>(slot + 1); }

  const i64 slots_;
  BigArray<i32> place_;  // of each row: its slot + 1, or what the policy makes of it
};

// Keeps what it was told to keep, once it has been read.
class FixedTable : public CacheTable {
 public:
  FixedTable(i64 rows, Ids kept) : CacheTable(rows, std::ssize(kept)) {
    for (std::size_t slot = 0; slot < kept.size(); ++slot) {
      place_[kept[slot]] = -static_cast<i32>(slot + 1);
    }
  }

 protected:
  void miss(i64 id) override { place_[id] = std::abs(place_[id]); }
};

// The row whose last use lies furthest back goes first: slots in a list, the newest at its head.
class LruTable : public CacheTable {
 public:
  using CacheTable::CacheTable;

 private:
  void hit(i64 slot) override {
    unlink(slot);
    push(slot);
  }
  void miss(i64 id) override {
    if (slots_ == 0) return;
    auto slot = std::ssize(row_in_);
    if (slot < slots_) {
      row_in_.push_back(id);
      older_.push_back(-1);
      newer_.push_back(-1);
    } else {
      slot = tail_;
      unlink(slot);
      set_slot(row_in_[slot], -1);
      row_in_[slot] = id;
    }
    push(slot);
    set_slot(id, slot);
  }
  void push(i64 slot) {
    older_[slot] = head_;
    newer_[slot] = -1;
    (head_ < 0 ? tail_ : newer_[head_]) = slot;
    head_ = slot;
  }
  void unlink(i64 slot) {
    (newer_[slot] < 0 ? head_ : older_[newer_[slot]]) = older_[slot];
    (older_[slot] < 0 ? tail_ : newer_[older_[slot]]) = newer_[slot];
  }

  i64 head_ = -1, tail_ = -1;
  std::vector<i64> row_in_, older_, newer_;
};

// Belady's rule (1966) on batches: any of the rows at hand may stay after a batch, and those with
// the nearest next uses are the best choice, as far as these are known.

class BeladyTable : public CacheTable {
 public:
  // `scores`, or none: of rows without known use the higher stay; else those that were used last.
  BeladyTable(i64 rows, i64 slots, std::vector<float> scores)
      : CacheTable(rows, slots), scores_(std::move(scores)) {}

  Fill begin(Uses first) override {
    begun_ = now_;
    for (std::size_t slot = 0; slot < kept_.size(); ++slot) {
      const i32 use = first[kept_[slot].id];
      if (use >= 0) expect(static_cast<i64>(slot), begun_ + use);
    }
    Fill fill;
    const auto missing = [&](std::size_t id) { return first[id] >= 0 && slot_of(id) < 0; };
    std::vector<i64> count;  // of the missing rows, by batch
    for (std::size_t id = 0; id < first.size(); ++id) {
      if (!missing(id)) continue;
      const auto use = static_cast<std::size_t>(first[id]);
      if (use >= count.size()) count.resize(use + 1);
      ++count[use];
    }
    i64 room = slots_ - std::ssize(kept_);
    i32 last = -1;  // all that is needed before this batch, and `room` rows of its own
    while (room > 0 && ++last < static_cast<i32>(count.size())) {
      if (count[last] >= room) break;
      room -= count[last];
    }
    for (std::size_t id = 0; last >= 0 && id < first.size(); ++id) {
      if (!missing(id) || first[id] > last || (first[id] == last && room-- <= 0)) continue;
      fill.ids.push_back(static_cast<i64>(id));
      fill.slots.push_back(std::ssize(kept_));
      keep(static_cast<i64>(id), fill.slots.back(), begun_ + first[id]);
    }
    return fill;
  }

  Change plan(Ids ids, Uses uses) override {
    if (!needed_in_.empty()) needed_in_.pop_front();
    ++now_;
    Change change(ids.size());
    const auto next = [&](std::size_t i) {
      return uses.empty() || uses[i] < 0 ? kUnknown : begun_ + uses[i];
    };
    for (std::size_t i = 0; i < ids.size(); ++i) {
      change.from[i] = slot_of(ids[i]);
      if (change.from[i] >= 0) expect(change.from[i], next(i));
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (change.from[i] < 0) offer(ids[i], next(i));
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (change.from[i] < 0) change.to[i] = slot_of(ids[i]);
    }
    if (unknown_.size() > static_cast<std::size_t>(4 * slots_ + 1024)) drop_stale();
    return change;
  }

 private:
  static constexpr i64 kUnknown = -1;

  // What a slot holds.
  struct Kept {
    i64 id = 0;
    i64 next = kUnknown;  // batch of its next use
    double rank = 0;      // among rows whose next use is not known
  };
  using Unknown = std::pair<double, i64>;

  double rank_of(i64 id) const { return scores_.empty() ? static_cast<double>(now_) : scores_[id]; }

  void keep(i64 id, i64 slot, i64 next) {
    if (slot == std::ssize(kept_)) kept_.emplace_back();
    kept_[slot].id = id;
    set_slot(id, slot);
    expect(slot, next);
  }

  // Sets the next use of what a slot holds, and puts the slot where `worst` finds it.
  void expect(i64 slot, i64 next) {
    Kept& kept = kept_[slot];
    kept.next = next;
    kept.rank = rank_of(kept.id);
    if (next == kUnknown) {
      unknown_.emplace(kept.rank, slot);
      return;
    }
    const auto ahead = static_cast<std::size_t>(next - now_);
    if (ahead >= needed_in_.size()) needed_in_.resize(ahead + 1);
    needed_in_[ahead].push_back(slot);
  }

  // Keeps a row that has been read, if it is better than one of those that are kept.
  void offer(i64 id, i64 next) {
    const auto slot = std::ssize(kept_);
    if (slot < slots_) return keep(id, slot, next);
    const i64 other = worst();
    if (other < 0) return;
    const Kept& kept = kept_[other];
    const bool better = next == kUnknown ? kept.next == kUnknown && rank_of(id) > kept.rank
                                         : kept.next == kUnknown || next < kept.next;
    if (!better) return;
    if (kept.next == kUnknown) {
      unknown_.pop();
    } else {
      needed_in_.back().pop_back();
    }
    set_slot(kept.id, -1);
    keep(id, other, next);
  }

  // The slot with the worst prospects, or −1; forgets what is out of date on the way.
  i64 worst() {
    for (; !unknown_.empty(); unknown_.pop()) {
      const auto [rank, slot] = unknown_.top();
      if (kept_[slot].next == kUnknown && kept_[slot].rank == rank) return slot;
    }
    while (!needed_in_.empty() && needed_in_.back().empty()) needed_in_.pop_back();
    return needed_in_.empty() ? -1 : needed_in_.back().back();
  }

  void drop_stale() {
    unknown_ = {};
    for (std::size_t slot = 0; slot < kept_.size(); ++slot) {
      if (kept_[slot].next != kUnknown) continue;
      unknown_.emplace(kept_[slot].rank, static_cast<i64>(slot));
    }
  }

  std::vector<float> scores_;
  std::vector<Kept> kept_;
  // Slots by the batch of their next use, from the one planned next on; in one list at most.
  std::deque<std::vector<i64>> needed_in_;
  std::priority_queue<Unknown, std::vector<Unknown>, std::greater<Unknown>> unknown_;
  i64 now_ = 0, begun_ = 0;  // number of the next batch, and of the first of those begun
};

}  // namespace spgnn
