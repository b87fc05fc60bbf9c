// A set of column numbers that knows how many of its members come before any of them.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

namespace spgnn {

// Bits in leaves of kLeafColumns columns, made when first needed: memory follows the columns that
// occur, not the width of the matrix.
class ColumnSet {
 public:
  explicit ColumnSet(std::int64_t columns) : leaves_(columns / kLeafColumns + 1) {}

  void insert(std::int64_t column) {
    auto& leaf = leaves_[column >> kLeafBits];
    if (!leaf) leaf = std::make_unique<Leaf>();
    leaf->bits[word_of(column)] |= bit_of(column);
  }

  // Counts members; nothing may be inserted after that.
  std::int64_t finish() {
    std::int64_t members = 0;
    for (auto& leaf : leaves_) {
      if (!leaf) continue;
      for (int word = 0; word < kWords; ++word) {
        leaf->before[word] = members;
        members += std::popcount(leaf->bits[word]);
      }
    }
    return members;
  }

  // How many members are below a member.
  std::int64_t rank(std::int64_t column) const {
    const Leaf& leaf = *leaves_[column >> kLeafBits];
    const int word = word_of(column);
    return leaf.before[word] + std::popcount(leaf.bits[word] & (bit_of(column) - 1));
  }

  // Calls visit(column) for all members, from the least to the greatest.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      if (!leaves_[i]) continue;
      for (int word = 0; word < kWords; ++word) {
        for (std::uint64_t bits = leaves_[i]->bits[word]; bits; bits &= bits - 1) {
          visit(static_cast<std::int64_t>(i) * kLeafColumns + word * 64 + std::countr_zero(bits));
        }
      }
    }
  }

 private:
  static constexpr int kLeafBits = 10;
  static constexpr std::int64_t kLeafColumns = std::int64_t{1} << kLeafBits;
  static constexpr int kWords = kLeafColumns / 64;
  struct Leaf {
    std::uint64_t bits[kWords]{};
    std::int64_t before[kWords];
  };

  static int word_of(std::int64_t column) { return static_cast<int>(column >> 6) & (kWords - 1); }
  static std::uint64_t bit_of(std::int64_t column) { return std::uint64_t{1} << (column & 63); }

  std::vector<std::unique_ptr<Leaf>> leaves_;
};

}  // namespace spgnn
