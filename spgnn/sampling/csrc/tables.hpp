// From vertices to their numbers in a sample.
//
// Both tables are kept from call to call and never cleared in between: an entry counts while it is
// not below `base`, which rises beyond all entries with every call. Several threads may use a table
// at once if each keeps to keys of its own part.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "big_array.hpp"
#include "hash.hpp"

namespace spgnn {

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

}  // namespace spgnn
