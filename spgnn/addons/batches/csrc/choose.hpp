// Which of a row's entries are sampled, where all are alike: k of [start, start + degree), degree >
// k where none may come twice.
#pragma once

#include "lanes.hpp"
#include "rows.hpp"

namespace spgnn {

// Marks of offsets, which a new row makes all invalid without a pass over them.
class Marks {
 public:
  static constexpr u32 kCount = 1024;

  void next_row() {
    if (++row_ == 0) std::fill(std::begin(marks_), std::end(marks_), row_++);
  }
  [[gnu::always_inline]] bool has(u32 offset) const { return marks_[offset % kCount] == row_; }
  [[gnu::always_inline]] void add(u32 offset) { marks_[offset % kCount] = row_; }

 private:
  u32 row_ = 0, marks_[kCount] = {};
};

// Offsets of a row of at most `Marks::kCount` entries: each has a mark of its own.
class MarkedSet {
 public:
  explicit MarkedSet(Marks& marks) : marks_(marks) { marks_.next_row(); }
  bool has(u32 offset, const u32*, i64) const { return marks_.has(offset); }
  // Whether it was new. `chosen` are those that were, this one behind them.
  [[gnu::always_inline]] bool insert(u32 offset, const u32*, i64) {
    const bool fresh = !marks_.has(offset);
    marks_.add(offset);
    return fresh;
  }

 private:
  Marks& marks_;
};

// Most of them have a mark of their own: only where two share one, all are compared.
class FilteredSet {
 public:
  static constexpr i64 kMost = 65;

  explicit FilteredSet(Marks& marks) : marks_(marks) { marks_.next_row(); }
  bool has(u32 offset, const u32* chosen, i64 count) const {
    return marks_.has(offset) && compared(offset, chosen, count);
  }
  [[gnu::always_inline]] bool insert(u32 offset, const u32* chosen, i64 count) {
    if (marks_.has(offset)) return !compared(offset, chosen, count);
    marks_.add(offset);
    return true;
  }

 private:
  [[gnu::cold, gnu::noinline]] static bool compared(u32 offset, const u32* chosen, i64 count) {
    return std::find(chosen, chosen + count, offset) != chosen + count;
  }

  Marks& marks_;
};

// Any number of them; memory is the caller's.
class HashedSet {
 public:
  HashedSet(std::vector<u32>& memory, i64 most) : slots_(memory) {
    const u64 size = std::bit_ceil(static_cast<u64>(2 * most));
    shift_ = 64 - std::countr_zero(size);
    slots_.assign(size, kFree);
  }
  bool has(u32 offset, const u32*, i64) const { return slots_[place(offset)] == offset; }
  bool insert(u32 offset, const u32*, i64) {
    u32& slot = slots_[place(offset)];
    const bool fresh = slot != offset;
    slot = offset;
    return fresh;
  }

 private:
  static constexpr u32 kFree = ~u32{0};
  u64 place(u32 offset) const {
    u64 i = (offset * kGolden) >> shift_;
    while (slots_[i] != kFree && slots_[i] != offset) i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  std::vector<u32>& slots_;
  int shift_;
};

// choose(set) with an empty set for at most `most` offsets of a row.
class OffsetSets {
 public:
  template <class Choose>
  [[gnu::always_inline]] auto with_set(i64 degree, i64 most, const Choose& choose) {
    if (most > FilteredSet::kMost) return choose(HashedSet(memory_, most));
    if (degree <= Marks::kCount) return choose(MarkedSet(marks_));
    return choose(FilteredSet(marks_));
  }

 private:
  Marks marks_;
  std::vector<u32> memory_;
};

// The first k of a random order of the row, so fewer entries are some of those that more would be.
// Short rows are shuffled; of longer ones what was chosen before is drawn again, if that is rare.
template <class Index> class UniformWithoutReplacement {
 public:
  static constexpr bool kWeighs = false;
  explicit UniformWithoutReplacement(const Rows<Index>&) {}

  void operator()(i64 start, i64 degree, i64 k, VertexDraws draws, i64* positions) {
    if (degree <= kShort) {
      u8 order[kShort];
      std::memcpy(order, kInOrder.data(), kShort);
      shuffle(order, start, degree, k, draws, positions);
    } else if (2 * k > degree) {
      offsets_.resize(degree);
      std::iota(offsets_.begin(), offsets_.end(), 0);
      shuffle(offsets_.data(), start, degree, k, draws, positions);
    } else {
      offsets_.resize(k);
      sets_.with_set(degree, k, [&](auto&& chosen) {
        by_set(chosen, start, degree, k, draws, offsets_.data(), positions);
      });
    }
  }

 private:
  static constexpr i64 kShort = 64;
  static constexpr auto kInOrder = [] {
    std::array<u8, kShort> order{};
    std::iota(order.begin(), order.end(), 0);
    return order;
  }();

  // Fisher & Yates, as far as it is needed.
  template <class Offset>
  static void shuffle(Offset* order, i64 start, i64 degree, i64 k, VertexDraws draws,
                      i64* positions) {
    for (i64 j = 0; j < k; ++j) {
      const u64 drawn = j + below(draws[j], degree - j);
      positions[j] = start + order[drawn];
      order[drawn] = order[j];
    }
  }

  template <class Set>
  static void by_set(Set& chosen, i64 start, i64 degree, i64 k, VertexDraws draws, u32* offsets,
                     i64* positions) {
    u64 column = 0;
    for (i64 j = 0; j < k; ++j) {
      do {
        offsets[j] = static_cast<u32>(below(draws[column++], degree));
      } while (!chosen.insert(offsets[j], offsets, j));
      positions[j] = start + offsets[j];
    }
  }

  OffsetSets sets_;
  std::vector<u32> offsets_;
};

// Drawn one by one.
template <class Index> class UniformWithReplacement {
 public:
  static constexpr bool kWeighs = false;
  explicit UniformWithReplacement(const Rows<Index>&) {}

  void operator()(i64 start, i64 degree, i64 k, VertexDraws draws, i64* positions) const {
    for (i64 j = 0; j < k; ++j) {
      positions[j] = start + static_cast<i64>(below(draws[j], degree));
    }
  }
};

// The latest ones: entries are in the order of their times.
template <class Index> class Latest {
 public:
  static constexpr bool kWeighs = false;
  explicit Latest(const Rows<Index>&) {}

  void operator()(i64 start, i64 degree, i64 k, VertexDraws, i64* positions) const {
    for (i64 j = 0; j < k; ++j) positions[j] = start + degree - k + j;
  }
};

}  // namespace spgnn
