// Which of a row's entries are sampled, where all of them are alike.
//
// A chooser takes k of the entries [start, start + degree), degree > k where none may come twice,
// and may be told beforehand what it is going to be asked.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <numeric>
#include <vector>

#include "hash.hpp"
#include "rows.hpp"

namespace spgnn {

// Marks of offsets, which a new row makes all invalid without a pass over them.
class Marks {
 public:
  static constexpr std::uint32_t kCount = 1024;

  void next_row() {
    if (++row_ == 0) std::fill(std::begin(marks_), std::end(marks_), row_++);
  }
  [[gnu::always_inline]] bool has(std::uint32_t offset) const {
    return marks_[offset % kCount] == row_;
  }
  [[gnu::always_inline]] void add(std::uint32_t offset) { marks_[offset % kCount] = row_; }

 private:
  std::uint32_t row_ = 0, marks_[kCount] = {};
};

// Offsets of a row of at most `Marks::kCount` entries: each has a mark of its own.
class MarkedSet {
 public:
  explicit MarkedSet(Marks& marks) : marks_(marks) { marks_.next_row(); }
  bool has(std::uint32_t offset, const std::uint32_t*, std::int64_t) const {
    return marks_.has(offset);
  }
  // Whether it was new. `chosen` are those that were, this one behind them.
  [[gnu::always_inline]] bool insert(std::uint32_t offset, const std::uint32_t*, std::int64_t) {
    const bool fresh = !marks_.has(offset);
    marks_.add(offset);
    return fresh;
  }

 private:
  Marks& marks_;
};

// At most so many that most of them have a mark of their own: only where two share one, all are
// compared.
class FilteredSet {
 public:
  static constexpr std::int64_t kMost = 65;

  explicit FilteredSet(Marks& marks) : marks_(marks) { marks_.next_row(); }
  bool has(std::uint32_t offset, const std::uint32_t* chosen, std::int64_t count) const {
    return marks_.has(offset) && compared(offset, chosen, count);
  }
  [[gnu::always_inline]] bool insert(std::uint32_t offset, const std::uint32_t* chosen,
                                     std::int64_t count) {
    if (marks_.has(offset)) return !compared(offset, chosen, count);
    marks_.add(offset);
    return true;
  }

 private:
  [[gnu::cold, gnu::noinline]] static bool compared(std::uint32_t offset,
                                                    const std::uint32_t* chosen,
                                                    std::int64_t count) {
    return std::find(chosen, chosen + count, offset) != chosen + count;
  }

  Marks& marks_;
};

// Any number of them; memory is the caller's.
class HashedSet {
 public:
  HashedSet(std::vector<std::uint32_t>& memory, std::int64_t most) : slots_(memory) {
    const std::uint64_t size = std::bit_ceil(static_cast<std::uint64_t>(2 * most));
    shift_ = 64 - std::countr_zero(size);
    slots_.assign(size, kFree);
  }
  bool has(std::uint32_t offset, const std::uint32_t*, std::int64_t) const {
    return slots_[place(offset)] == offset;
  }
  bool insert(std::uint32_t offset, const std::uint32_t*, std::int64_t) {
    std::uint32_t& slot = slots_[place(offset)];
    const bool fresh = slot != offset;
    slot = offset;
    return fresh;
  }

 private:
  static constexpr std::uint32_t kFree = ~std::uint32_t{0};
  std::uint64_t place(std::uint32_t offset) const {
    std::uint64_t i = (offset * kGolden) >> shift_;
    while (slots_[i] != kFree && slots_[i] != offset) i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  std::vector<std::uint32_t>& slots_;
  int shift_;
};

// choose(set) with an empty set for at most `most` offsets of a row.
class OffsetSets {
 public:
  template <class Choose>
  [[gnu::always_inline]] auto with_set(std::int64_t degree, std::int64_t most,
                                       const Choose& choose) {
    if (most > FilteredSet::kMost) return choose(HashedSet(memory_, most));
    if (degree <= Marks::kCount) return choose(MarkedSet(marks_));
    return choose(FilteredSet(marks_));
  }

 private:
  Marks marks_;
  std::vector<std::uint32_t> memory_;
};

// The first k of a random order of the row, so fewer entries are some of those that more would be:
// a vertex that draws for several layers finds no others. Short rows are shuffled; of longer ones
// an offset that was chosen before is drawn again, unless that would come too often.
template <class Index>
class UniformWithoutReplacement {
 public:
  static constexpr bool kWeighs = false;
  explicit UniformWithoutReplacement(const Rows<Index>&) {}

  void operator()(std::int64_t start, std::int64_t degree, std::int64_t k, VertexDraws draws,
                  std::int64_t* positions) {
    if (degree <= kShort) {
      std::uint8_t order[kShort];
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
  static constexpr std::int64_t kShort = 64;
  static constexpr auto kInOrder = [] {
    std::array<std::uint8_t, kShort> order{};
    std::iota(order.begin(), order.end(), 0);
    return order;
  }();

  // Fisher & Yates, as far as it is needed.
  template <class Offset>
  static void shuffle(Offset* order, std::int64_t start, std::int64_t degree, std::int64_t k,
                      VertexDraws draws, std::int64_t* positions) {
    for (std::int64_t j = 0; j < k; ++j) {
      const std::uint64_t drawn = j + below(draws[j], degree - j);
      positions[j] = start + order[drawn];
      order[drawn] = order[j];
    }
  }

  template <class Set>
  static void by_set(Set& chosen, std::int64_t start, std::int64_t degree, std::int64_t k,
                     VertexDraws draws, std::uint32_t* offsets, std::int64_t* positions) {
    std::uint64_t column = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      do {
        offsets[j] = static_cast<std::uint32_t>(below(draws[column++], degree));
      } while (!chosen.insert(offsets[j], offsets, j));
      positions[j] = start + offsets[j];
    }
  }

  OffsetSets sets_;
  std::vector<std::uint32_t> offsets_;
};

// Drawn one by one.
template <class Index>
class UniformWithReplacement {
 public:
  static constexpr bool kWeighs = false;
  explicit UniformWithReplacement(const Rows<Index>&) {}

  void operator()(std::int64_t start, std::int64_t degree, std::int64_t k, VertexDraws draws,
                  std::int64_t* positions) const {
    for (std::int64_t j = 0; j < k; ++j) {
      positions[j] = start + static_cast<std::int64_t>(below(draws[j], degree));
    }
  }
};

// The latest ones: entries are in the order of their times.
template <class Index>
class Latest {
 public:
  static constexpr bool kWeighs = false;
  explicit Latest(const Rows<Index>&) {}

  void operator()(std::int64_t start, std::int64_t degree, std::int64_t k, VertexDraws,
                  std::int64_t* positions) const {
    for (std::int64_t j = 0; j < k; ++j) positions[j] = start + degree - k + j;
  }
};

}  // namespace spgnn
