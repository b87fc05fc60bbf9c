// Groups of vertices: clusters, communities, parts.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace spgnn {

// Renames labels, each in [0, size), to 0, 1, … in order of first appearance; returns how many
// there are.
template <class Labels>
std::int64_t number_in_order(Labels& labels) {
  Labels name(labels.size());  // + 1, so that 0 means none
  std::int32_t count = 0;
  for (std::int32_t& label : labels) {
    if (name[label] == 0) name[label] = ++count;
    label = name[label] - 1;
  }
  return count;
}

// The vertices of each of `count` groups, in rising order.
class Members {
 public:
  Members(std::span<const std::int32_t> group_of, std::int64_t count)
      : begin_(count + 1, 0), vertices_(group_of.size()) {
    for (std::int32_t group : group_of) ++begin_[group + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    std::vector<std::int64_t> next(begin_.begin(), begin_.end() - 1);
    for (std::size_t v = 0; v < group_of.size(); ++v) {
      vertices_[next[group_of[v]]++] = static_cast<std::int32_t>(v);
    }
  }

  std::span<const std::int32_t> of(std::int64_t group) const {
    return {vertices_.data() + begin_[group], vertices_.data() + begin_[group + 1]};
  }

 private:
  std::vector<std::int64_t> begin_;
  std::vector<std::int32_t> vertices_;
};

}  // namespace spgnn
