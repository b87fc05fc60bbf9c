#pragma once

#include <cstddef>
#include <iterator>
#include <map>

namespace spgnn {

// Which stretches of a length of memory are taken. The lowest that is free is given out, so that
// as few pages as possible are ever touched.
class Arena {
 public:
  Arena(std::size_t first, std::size_t last) : end_(last), top_(first) {
    free_[first] = last - first;
  }

  // 0 if there is no room.
  std::size_t take(std::size_t length) {
    length = rounded(length);
    for (auto stretch = free_.begin(); stretch != free_.end(); ++stretch) {
      const auto [first, size] = *stretch;
      if (size < length) continue;
      free_.erase(stretch);
      if (size > length) free_[first + length] = size - length;
      taken_ += length;
      if (first + length > top_) top_ = first + length;
      return first;
    }
    return 0;
  }

  void release(std::size_t first, std::size_t length) {
    length = rounded(length);
    taken_ -= length;
    auto next = free_.lower_bound(first);
    if (next != free_.end() && first + length == next->first) {
      length += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == first) {
        before->second += length;
        return;
      }
    }
    free_[first] = length;
  }

  std::size_t taken() const { return taken_; }

  // Calls `body(first, length)` for stretches that are free and may have been touched.
  template <class Body>
  void each_free(Body body) {
    for (const auto& [first, size] : free_) {
      const std::size_t last = first + size < top_ ? first + size : top_;
      if (first < last) body(first, last - first);
    }
    if (!free_.empty() && std::prev(free_.end())->first + std::prev(free_.end())->second == end_) {
      top_ = std::prev(free_.end())->first;
    }
  }

 private:
  static std::size_t rounded(std::size_t length) { return (length + 63) / 64 * 64; }

  std::map<std::size_t, std::size_t> free_;
  std::size_t end_;
  std::size_t top_;
  std::size_t taken_ = 0;
};

}  // namespace spgnn
