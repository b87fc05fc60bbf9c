// Which rows a cache keeps: bookkeeping alone, no rows.
//
// Batches of distinct rows come one after another. Those of a batch that are kept when it begins
// are hits, the others are read; all of them are served at once, from a memory of the batch's own.
// After it the cache keeps any of what it kept and of what the batch brought: a row may be read and
// not kept.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <limits>
#include <span>
#include <vector>

#include "big_array.hpp"

namespace spgnn {

using Ids = std::span<const std::int64_t>;

// For each row of a batch the slot that it is in, or −1: read it; and the slot that it goes to once
// it has been read, or −1. Hits leave their slots before anything is stored.
struct Change {
  explicit Change(std::size_t size) : from(size, -1), to(size, -1) {}
  std::vector<std::int64_t> from, to;
};

class CacheTable {
 public:
  CacheTable(std::int64_t rows, std::int64_t slots) : slots_(slots), place_(rows) {}
  CacheTable(const CacheTable&) = delete;
  CacheTable& operator=(const CacheTable&) = delete;
  virtual ~CacheTable() = default;

  // Batches become known in the order in which they are planned, some or all of them early.
  virtual void announce(Ids ids) { announced_.emplace_back(ids.begin(), ids.end()); }
  virtual std::int64_t announced() const { return static_cast<std::int64_t>(announced_.size()); }
  // What has been announced and not been planned never comes.
  virtual void forget() { announced_.clear(); }

  // The next batch that has been announced.
  virtual Change plan() {
    const std::vector<std::int64_t> ids = std::move(announced_.front());
    announced_.pop_front();
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
  virtual void hit(std::int64_t) {}
  virtual void miss(std::int64_t) {}

  std::int64_t slot_of(std::int64_t id) const { return std::int64_t{place_[id]} - 1; }
  void set_slot(std::int64_t id, std::int64_t slot) {
    place_[id] = static_cast<std::int32_t>(slot + 1);
  }

  const std::int64_t slots_;
  BigArray<std::int32_t> place_;  // of each row: its slot + 1, or what the policy makes of it

 private:
  std::deque<std::vector<std::int64_t>> announced_;
};

// Keeps what it was told to keep, once it has been read.
class FixedTable : public CacheTable {
 public:
  FixedTable(std::int64_t rows, Ids kept)
      : CacheTable(rows, static_cast<std::int64_t>(kept.size())) {
    for (std::size_t slot = 0; slot < kept.size(); ++slot) {
      place_[kept[slot]] = -static_cast<std::int32_t>(slot + 1);
    }
  }

 protected:
  void miss(std::int64_t id) override { place_[id] = std::abs(place_[id]); }
};

// The row whose last use lies furthest back goes first: slots in a list, the newest at its head.
class LruTable : public CacheTable {
 public:
  using CacheTable::CacheTable;

 private:
  void hit(std::int64_t slot) override {
    unlink(slot);
    push(slot);
  }
  void miss(std::int64_t id) override {
    if (slots_ == 0) return;
    auto slot = static_cast<std::int64_t>(row_in_.size());
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
  void push(std::int64_t slot) {
    older_[slot] = head_;
    newer_[slot] = -1;
    (head_ < 0 ? tail_ : newer_[head_]) = slot;
    head_ = slot;
  }
  void unlink(std::int64_t slot) {
    (newer_[slot] < 0 ? head_ : older_[newer_[slot]]) = older_[slot];
    (older_[slot] < 0 ? tail_ : newer_[older_[slot]]) = newer_[slot];
  }

  std::int64_t head_ = -1, tail_ = -1;
  std::vector<std::int64_t> row_in_, older_, newer_;
};

}  // namespace spgnn
