// Which vertices a sample has: hash tables, and numbers in the order in which they come.
#pragma once

#include "big_array.hpp"
#include "buffer.hpp"
#include "lanes.hpp"
#include "parallel.hpp"

namespace spgnn {

// Tables from vertices to their numbers in a sample, kept from call to call and never cleared: an
// entry counts while it is not below `base`, which rises beyond all with every call.

// Numbers that one call may give out.
inline constexpr u32 kMostNumbers = 1U << 31;

// One entry for every key there can be.
class ArrayTable {
 public:
  // Entries that are still to come, whatever they are asked for.
  explicit ArrayTable(u64 keys) : entries_(keys) {}

  void begin() {
    if (base_ > std::numeric_limits<u32>::max() - kMostNumbers) {
      std::fill(entries_.begin(), entries_.end(), 0);
      base_ = 1;
    }
  }
  // Forgets all entries; they were below `numbers`.
  void end(u32 numbers) { base_ += numbers; }

  [[gnu::always_inline]] void prefetch(u64 key) const { __builtin_prefetch(&entries_[key], 1); }

  // The number of the key, which is `fresh` if it has none yet.
  u32 number(u64 key, u32 fresh) {
    u32& entry = entries_[key];
    if (entry < base_) entry = base_ + fresh;
    return entry - base_;
  }
  // The number of the key, or `missing`.
  u32 find(u64 key, u32 missing) const {
    const u32 entry = entries_[key];
    return entry < base_ ? missing : entry - base_;
  }

 private:
  BigArray<u32> entries_;
  u32 base_ = 1;
};

// Open addressing, for keys from a large range.
class HashTable {
 public:
  void begin() {
    if (base_ > std::numeric_limits<u32>::max() - kMostNumbers) {
      std::fill(slots_.begin(), slots_.end(), Slot{});
      base_ = 1;
    }
    used_ = 0;
  }
  void end(u32 numbers) { base_ += numbers; }

  [[gnu::always_inline]] void prefetch(u64 key) const { __builtin_prefetch(&slots_[home(key)], 1); }

  u32 number(u64 key, u32 fresh) {
    Slot& slot = slots_[place(key)];
    if (slot.entry >= base_) return slot.entry - base_;
    slot = {key, base_ + fresh};
    if (++used_ * 2 > slots_.size()) grow();
    return fresh;
  }
  u32 find(u64 key, u32 missing) const {
    const Slot& slot = slots_[place(key)];
    return slot.entry < base_ ? missing : slot.entry - base_;
  }

 private:
  struct Slot {
    u64 key = 0;
    u32 entry = 0;
  };

  u64 home(u64 key) const { return (key * kGolden) >> shift_; }
  // Where the key is, or where it would go.
  u64 place(u64 key) const {
    const u64 mask = slots_.size() - 1;
    u64 i = home(key);
    while (slots_[i].entry >= base_ && slots_[i].key != key) i = (i + 1) & mask;
    return i;
  }
  void grow() {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.size() * 2));
    --shift_;
    for (const Slot& slot : old) {
      if (slot.entry >= base_) slots_[place(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  u64 used_ = 0;
  int shift_ = 54;  // 64 − log2 of the slots
  u32 base_ = 1;
};

// Keys of a sample so far, each once; `Key` is unsigned. By one thread: others draw meanwhile.
template <class Table, class Key> class Numbering {
 public:
  explicit Numbering(Table& table) : table_(table) { table_.begin(); }
  Numbering(const Numbering&) = delete;
  Numbering& operator=(const Numbering&) = delete;
  ~Numbering() { table_.end(most_); }

  i64 size() const { return size_; }
  const Key* keys() const { return keys_.data(); }
  // −1 if it has none.
  i64 find(Key key) const {
    const u32 found = table_.find(key, kMostNumbers);
    return found == kMostNumbers ? -1 : i64{found};
  }

  // numbers[e] = that of keys[e]; new ones follow in order.
  void add(const Key* keys, i64 count, i32* numbers) {
    expect(count);
    add_expected(keys, count, numbers);
  }

  // So many come next. What keys() gave before may still be read until others are expected.
  void expect(i64 count) {
    if (size_ + count >= kMostNumbers) {
      throw std::length_error("a sample has at most 2^31 vertices and edges");
    }
    most_ = std::max(most_, static_cast<u32>(size_ + count + 1));
    if (size_ + count <= keys_.size()) return;
    Buffer<Key> more(size_ + count);
    std::copy_n(keys_.data(), size_, more.data());
    keys_before_ = std::move(keys_);
    keys_ = std::move(more);
  }

  // Some of them, in order.
  void add_expected(const Key* keys, i64 count, i32* numbers) {
    for (i64 e = 0; e < count; ++e) {
      if (e + kAhead < count) table_.prefetch(keys[e + kAhead]);
      const auto fresh = static_cast<u32>(size_);
      const u32 number = table_.number(keys[e], fresh);
      keys_[size_] = keys[e];
      size_ += number == fresh;
      numbers[e] = static_cast<i32>(number);
    }
  }

 private:
  static constexpr i64 kAhead = 16;

  Table& table_;
  i64 size_ = 0;
  u32 most_ = 1;
  Buffer<Key> keys_, keys_before_;
};

}  // namespace spgnn
