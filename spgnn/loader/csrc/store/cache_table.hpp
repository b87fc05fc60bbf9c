// Which rows a cache keeps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <span>
#include <utility>
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

// Belady's rule (1966) on batches: keep what is needed soonest, as far as that is known.
//
// All rows of a batch are served at once and a row need not be kept, so after each batch any of the
// rows at hand may stay; those with the nearest next uses are the best choice, for whatever else is
// kept can be exchanged for them without another miss.

class BeladyTable : public CacheTable {
 public:
  // `scores` [rows], or none: among rows whose next use is not known, the higher ones stay; without
  // them, those that were used last.
  BeladyTable(std::int64_t rows, std::int64_t slots, std::vector<float> scores)
      : CacheTable(rows, slots), scores_(std::move(scores)) {}

  std::int64_t announced() const override { return static_cast<std::int64_t>(batches_.size()); }

  void announce(Ids ids) override {
    const std::int64_t number = first_ + announced();
    batches_.emplace_back();
    needed_in_.emplace_back();
    Batch& batch = batches_.back();
    batch.records.reserve(ids.size());
    batch.next.assign(ids.size(), kUnknown);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::int32_t number_of_record = record_of(ids[i]);
      Record& record = records_[number_of_record];
      if (record.last_batch >= first_) {
        batches_[record.last_batch - first_].next[record.last_place] = number;
      } else {
        expect(number_of_record, number, number);
      }
      record.last_batch = number;
      record.last_place = static_cast<std::int64_t>(i);
      batch.records.push_back(number_of_record);
    }
  }

  void forget() override {
    for (const Batch& batch : batches_) {
      for (const std::int32_t number : batch.records) {
        Record& record = records_[number];
        record.last_batch = -1;
        expect(number, kUnknown, first_);
        release(number);
      }
    }
    first_ += announced();
    batches_.clear();
    needed_in_.clear();
  }

  Change plan() override {
    const Batch batch = std::move(batches_.front());
    batches_.pop_front();
    needed_in_.pop_front();
    const std::int64_t now = first_++;
    Change change(batch.records.size());
    for (std::size_t i = 0; i < batch.records.size(); ++i) {
      change.from[i] = records_[batch.records[i]].slot;
      expect(batch.records[i], batch.next[i], now);
    }
    for (std::size_t i = 0; i < batch.records.size(); ++i) {
      if (change.from[i] < 0) offer(batch.records[i]);
    }
    for (std::size_t i = 0; i < batch.records.size(); ++i) {
      const std::int32_t number = batch.records[i];
      if (change.from[i] < 0) change.to[i] = records_[number].slot;
    }
    for (const std::int32_t number : batch.records) release(number);
    for (const std::int32_t number : evicted_) release(number);
    evicted_.clear();
    if (unknown_.size() > static_cast<std::size_t>(4 * slots_ + 1024)) drop_stale();
    return change;
  }

 private:
  static constexpr std::int64_t kUnknown = -1;

  // Of a row that is kept, or is in a batch that has been announced.
  struct Record {
    std::int64_t id = 0, slot = -1;
    std::int64_t next = kUnknown;                  // batch of its next use
    double rank = 0;                               // among rows whose next use is not known
    std::int64_t last_batch = -1, last_place = 0;  // its last use that has been announced
  };
  struct Batch {
    std::vector<std::int32_t> records;
    std::vector<std::int64_t> next;  // batch of the next use after this one
  };
  using Unknown = std::pair<double, std::int32_t>;

  std::int32_t record_of(std::int64_t id) {
    if (place_[id] > 0) return place_[id] - 1;
    std::int32_t number;
    if (free_.empty()) {
      number = static_cast<std::int32_t>(records_.size());
      records_.emplace_back();
    } else {
      number = free_.back();
      free_.pop_back();
      records_[number] = {};
    }
    records_[number].id = id;
    place_[id] = number + 1;
    return number;
  }

  // Forgets a record that is of no more use, if it has not been forgotten.
  void release(std::int32_t number) {
    const Record& record = records_[number];
    if (record.slot >= 0 || record.last_batch >= first_) return;
    if (place_[record.id] != number + 1) return;
    place_[record.id] = 0;
    free_.push_back(number);
  }

  // Sets the next use of a record, which is kept or will be offered.
  void expect(std::int32_t number, std::int64_t next, std::int64_t now) {
    Record& record = records_[number];
    record.next = next;
    record.rank = scores_.empty() ? static_cast<double>(now) : scores_[record.id];
    if (record.slot >= 0) remember(number);
  }

  // Puts a record that is kept where `worst` finds it.
  void remember(std::int32_t number) {
    const Record& record = records_[number];
    if (record.next == kUnknown) {
      unknown_.emplace(record.rank, number);
    } else {
      needed_in_[record.next - first_].push_back(number);
      furthest_ = std::max(furthest_, record.next);
    }
  }

  // Keeps a row that has been read, if it is better than one of those that are kept.
  void offer(std::int32_t number) {
    Record& record = records_[number];
    if (used_ < slots_) {
      record.slot = used_++;
    } else {
      const std::int32_t other = worst();
      if (other < 0 || !better(record, records_[other])) return;
      record.slot = std::exchange(records_[other].slot, -1);
      evicted_.push_back(other);
    }
    remember(number);
  }

  // What is kept and has the worst prospects, or −1; forgets what is out of date on the way.
  std::int32_t worst() {
    for (; !unknown_.empty(); unknown_.pop()) {
      const auto [rank, number] = unknown_.top();
      const Record& record = records_[number];
      if (record.slot >= 0 && record.next == kUnknown && record.rank == rank) return number;
    }
    for (; furthest_ >= first_; --furthest_) {
      auto& needed = needed_in_[furthest_ - first_];
      for (; !needed.empty(); needed.pop_back()) {
        const Record& record = records_[needed.back()];
        if (record.slot >= 0 && record.next == furthest_) return needed.back();
      }
    }
    return -1;
  }

  void drop_stale() {
    unknown_ = {};
    for (std::size_t number = 0; number < records_.size(); ++number) {
      const Record& record = records_[number];
      if (record.slot >= 0 && record.next == kUnknown) {
        unknown_.emplace(record.rank, static_cast<std::int32_t>(number));
      }
    }
  }

  static bool better(const Record& a, const Record& b) {
    if (a.next == kUnknown) return b.next == kUnknown && a.rank > b.rank;
    return b.next == kUnknown || a.next < b.next;
  }

  std::vector<float> scores_;
  std::vector<Record> records_;
  std::vector<std::int32_t> free_, evicted_;
  std::deque<Batch> batches_;                        // announced, not yet planned
  std::deque<std::vector<std::int32_t>> needed_in_;  // kept records by the batch of their next use
  std::priority_queue<Unknown, std::vector<Unknown>, std::greater<Unknown>> unknown_;
  std::int64_t first_ = 0;      // number of the first batch that is to be planned
  std::int64_t furthest_ = -1;  // no kept record is needed later
  std::int64_t used_ = 0;       // slots
};

}  // namespace spgnn
