// Which vertices a sample has: hash tables, and numbers in the order in which they come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "big_array.hpp"
#include "buffer.hpp"
#include "hash.hpp"
#include "parallel.hpp"

namespace spgnn {

// From vertices to their numbers in a sample.
//
// Both tables are kept from call to call and never cleared in between: an entry counts while it is
// not below `base`, which rises beyond all entries with every call. Several threads may use a table
// at once if each keeps to keys of its own part.

// Numbers that one call may give out.
inline constexpr std::uint32_t kMostNumbers = 1U << 31;

// Which of some parts a key belongs to. Keys that share a cache line of an ArrayTable share a part.
inline int part_of(std::uint64_t key, std::uint32_t parts) {
  const std::uint64_t spread = ((key >> 4) * kGolden) >> 32;
  return static_cast<int>((spread * parts) >> 32);
}

// One entry for every key there can be.
class ArrayTable {
 public:
  // Entries that are still to come, whatever they are asked for.
  explicit ArrayTable(std::uint64_t keys) : entries_(keys) {}

  void begin(int) {
    if (base_ > std::numeric_limits<std::uint32_t>::max() - kMostNumbers) {
      std::fill(entries_.begin(), entries_.end(), 0);
      base_ = 1;
    }
  }
  // Forgets all entries; they were below `numbers`.
  void end(std::uint32_t numbers) { base_ += numbers; }

  [[gnu::always_inline]] void prefetch(int, std::uint64_t key) const {
    __builtin_prefetch(&entries_[key], 1);
  }

  // The number of the key, which is `fresh` if it has none yet.
  std::uint32_t number(int, std::uint64_t key, std::uint32_t fresh) {
    std::uint32_t& entry = entries_[key];
    if (entry < base_) entry = base_ + fresh;
    return entry - base_;
  }
  void renumber(int, std::uint64_t key, std::uint32_t number) { entries_[key] = base_ + number; }
  // The number of the key, or `missing`.
  std::uint32_t find(int, std::uint64_t key, std::uint32_t missing) const {
    const std::uint32_t entry = entries_[key];
    return entry < base_ ? missing : entry - base_;
  }

 private:
  BigArray<std::uint32_t> entries_;
  std::uint32_t base_ = 1;
};

// Open addressing, for keys from a large range; each part is a table of its own.
class HashTable {
 public:
  void begin(int parts) {
    if (parts_.size() < static_cast<std::size_t>(parts)) parts_.resize(parts);
    if (base_ > std::numeric_limits<std::uint32_t>::max() - kMostNumbers) {
      for (Part& part : parts_) std::fill(part.slots.begin(), part.slots.end(), Slot{});
      base_ = 1;
    }
    for (Part& part : parts_) part.used = 0;
  }
  void end(std::uint32_t numbers) { base_ += numbers; }

  [[gnu::always_inline]] void prefetch(int part, std::uint64_t key) const {
    const Part& its = parts_[part];
    __builtin_prefetch(&its.slots[home(its, key)], 1);
  }

  std::uint32_t number(int part, std::uint64_t key, std::uint32_t fresh) {
    Part& its = parts_[part];
    Slot& slot = its.slots[place(its, key)];
    if (slot.entry >= base_) return slot.entry - base_;
    slot = {key, base_ + fresh};
    if (++its.used * 2 > its.slots.size()) grow(its);
    return fresh;
  }
  void renumber(int part, std::uint64_t key, std::uint32_t number) {
    Part& its = parts_[part];
    its.slots[place(its, key)].entry = base_ + number;
  }
  std::uint32_t find(int part, std::uint64_t key, std::uint32_t missing) const {
    const Part& its = parts_[part];
    const Slot& slot = its.slots[place(its, key)];
    return slot.entry < base_ ? missing : slot.entry - base_;
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    std::uint32_t entry = 0;
  };
  struct alignas(64) Part {
    std::vector<Slot> slots = std::vector<Slot>(1024);
    std::uint64_t used = 0;
    int shift = 54;  // 64 − log2 of the slots
  };

  static std::uint64_t home(const Part& part, std::uint64_t key) {
    return (key * kGolden) >> part.shift;
  }
  // Where the key is, or where it would go.
  std::uint64_t place(const Part& part, std::uint64_t key) const {
    const std::uint64_t mask = part.slots.size() - 1;
    std::uint64_t i = home(part, key);
    while (part.slots[i].entry >= base_ && part.slots[i].key != key) i = (i + 1) & mask;
    return i;
  }
  void grow(Part& part) {
    std::vector<Slot> old = std::move(part.slots);
    part.slots = std::vector<Slot>(old.size() * 2);
    --part.shift;
    for (const Slot& slot : old) {
      if (slot.entry >= base_) part.slots[place(part, slot.key)] = slot;
    }
  }

  std::vector<Part> parts_;
  std::uint32_t base_ = 1;
};

// Fewer threads together number more slowly than one of them, which others may draw for meanwhile.
inline constexpr int kLeastThreads = 9;
// So few keys are numbered by one thread.
inline constexpr std::int64_t kSerialKeys = 8192;
inline constexpr std::int64_t kKeysPerTask = 16384;

// Keys of a sample so far, each once; `Key` is unsigned.
template <class Table, class Key>
class Numbering {
 public:
  Numbering(Table& table, int threads)
      : table_(table), threads_(threads < kLeastThreads ? 1 : threads) {
    table_.begin(threads_);
  }
  Numbering(const Numbering&) = delete;
  Numbering& operator=(const Numbering&) = delete;
  ~Numbering() { table_.end(most_); }

  std::int64_t size() const { return size_; }
  const Key* keys() const { return keys_.data(); }
  // −1 if it has none. Not after those that were said to be the last.
  std::int64_t find(Key key) const {
    const std::uint32_t found = table_.find(part(key), key, kMostNumbers);
    return found == kMostNumbers ? -1 : std::int64_t{found};
  }

  // Whether keys are best added by one thread.
  bool is_serial() const { return threads_ == 1; }

  // numbers[e] = the number of keys[e]; new ones follow in the order found. Nothing is asked about
  // them afterwards if they are the `last`.
  void add(const Key* keys, std::int64_t count, std::int32_t* numbers, bool last) {
    expect(count);
    if (is_serial() || count < kSerialKeys) {
      add_expected(keys, count, numbers);
    } else {
      add_in_parallel(keys, count, numbers, last);
    }
  }

  // So many come next. What keys() gave before may still be read until others are expected.
  void expect(std::int64_t count) {
    if (size_ + count >= kMostNumbers) {
      throw std::length_error("a sample has at most 2^31 vertices and edges");
    }
    most_ = std::max(most_, static_cast<std::uint32_t>(size_ + count + 1));
    if (size_ + count <= keys_.size()) return;
    Buffer<Key> more(size_ + count);
    std::copy_n(keys_.data(), size_, more.data());
    keys_before_ = std::move(keys_);
    keys_ = std::move(more);
  }

  // Some of them, in order, by one thread.
  void add_expected(const Key* keys, std::int64_t count, std::int32_t* numbers) {
    for (std::int64_t e = 0; e < count; ++e) {
      if (e + kAhead < count) table_.prefetch(part(keys[e + kAhead]), keys[e + kAhead]);
      const auto fresh = static_cast<std::uint32_t>(size_);
      const std::uint32_t number = table_.number(part(keys[e]), keys[e], fresh);
      keys_[size_] = keys[e];
      size_ += number == fresh;
      numbers[e] = static_cast<std::int32_t>(number);
    }
  }

 private:
  static constexpr std::int64_t kAhead = 16;
  static constexpr std::int64_t kBlock = 1024;

  int part(Key key) const { return part_of(key, static_cast<std::uint32_t>(threads_)); }

  // Each thread looks up the keys of its part. A new key is known by the place where it was first
  // met until all threads are done; then the places are ranked.
  void add_in_parallel(const Key* keys, std::int64_t count, std::int32_t* numbers, bool last) {
    for_each_task(threads_, threads_,
                  [&](std::int64_t p) { look_up(static_cast<int>(p), keys, count, numbers); });
    const auto known = static_cast<std::int32_t>(size_);
    const std::int64_t tasks = (count + kKeysPerTask - 1) / kKeysPerTask;
    first_of_task_.at_least(tasks + 1);
    for_each_task(tasks, threads_, [&](std::int64_t task) {
      const std::int64_t begin = task * kKeysPerTask, end = std::min(begin + kKeysPerTask, count);
      std::int64_t found = 0;
      for (std::int64_t e = begin; e < end; ++e) {
        found += numbers[e] == known + static_cast<std::int32_t>(e);
      }
      first_of_task_[task + 1] = found;
    });
    first_of_task_[0] = size_;
    for (std::int64_t task = 0; task < tasks; ++task) {
      first_of_task_[task + 1] += first_of_task_[task];
    }
    ranks_.at_least(count);
    for_each_task(tasks, threads_, [&](std::int64_t task) {
      std::int64_t number = first_of_task_[task];
      for (std::int64_t e = task * kKeysPerTask; number < first_of_task_[task + 1]; ++e) {
        keys_[number] = keys[e];
        ranks_[e] = static_cast<std::int32_t>(number);
        number += numbers[e] == known + static_cast<std::int32_t>(e);
      }
    });
    size_ = first_of_task_[tasks];
    for_each_task(tasks, threads_, [&](std::int64_t task) {
      const std::int64_t begin = task * kKeysPerTask, end = std::min(begin + kKeysPerTask, count);
      for (std::int64_t e = begin; e < end; ++e) {
        if (numbers[e] >= known) numbers[e] = ranks_[numbers[e] - known];
      }
    });
    if (!last)
      for_each_task(threads_, threads_,
                    [&](std::int64_t p) { renumber(static_cast<int>(p), known); });
  }

  void look_up(int own, const Key* keys, std::int64_t count, std::int32_t* numbers) {
    std::int64_t places[kBlock + 1];
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
      const std::int64_t end = std::min(begin + kBlock, count);
      std::int64_t mine = 0;
      for (std::int64_t e = begin; e < end; ++e) {
        places[mine] = e;
        mine += part(keys[e]) == own;
      }
      for (std::int64_t i = 0; i < std::min(kAhead, mine); ++i) {
        table_.prefetch(own, keys[places[i]]);
      }
      for (std::int64_t i = 0; i < mine; ++i) {
        if (i + kAhead < mine) table_.prefetch(own, keys[places[i + kAhead]]);
        const std::int64_t e = places[i];
        const auto fresh = static_cast<std::uint32_t>(size_ + e);
        numbers[e] = static_cast<std::int32_t>(table_.number(own, keys[e], fresh));
      }
    }
  }

  void renumber(int own, std::int64_t known) {
    for (std::int64_t i = known; i < size_; ++i) {
      if (part(keys_[i]) == own) {
        table_.renumber(own, keys_[i], static_cast<std::uint32_t>(i));
      }
    }
  }

  Table& table_;
  int threads_;
  std::int64_t size_ = 0;
  std::uint32_t most_ = 1;
  Buffer<Key> keys_, keys_before_;
  Buffer<std::int32_t> ranks_;
  Buffer<std::int64_t> first_of_task_;
};

}  // namespace spgnn
